"""Every misuse of every method is told in the user's words: the class, the method, the argument."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from fbuf_adapters.pytorch import ReplayBuffer
from fbuf_adapters.tensordict import TensorDictReplayBuffer
from tensordict import TensorDict

import fbuf

TENSORS = "fbuf_adapters.pytorch.ReplayBuffer"
DICTS = "fbuf_adapters.tensordict.TensorDictReplayBuffer"

FOREIGN = re.compile(
    r"\bjnp\b|\bjax\.jit|\bjit\b|static_arg|\btraced\b|\bpytree|fbuf\.[a-z_]+(?!\w*\.)\b|'items"
)
"""Words of the core, or of JAX."""

ITEM = {"x": torch.zeros(2), "r": torch.tensor(0.0)}


def items(*lead, **changes):
    made = {"x": torch.zeros(*lead, 2), "r": torch.zeros(lead)} | changes
    return {name: leaf for name, leaf in made.items() if leaf is not None}


@functools.cache
def tensors(kind="prioritized"):
    """A buffer with rows, for all misuses: none changes it."""
    options = {
        "uniform": {},
        "prioritized": {"sampler": fbuf.Prioritized()},
        "envs": {"num_envs": 3, "capacity": 9},
        "shuffled": {"sampler": fbuf.Shuffled()},
        "next": {"next_of": "x"},
        "view": {"view": fbuf.Transition()},
        "n_step": {"view": fbuf.NStep(2, gamma=0.9)},
        "field": {"view": fbuf.Item(fields=("z",))},
    }[kind]
    made = ReplayBuffer(**{"capacity": 8, "seed": 0} | options)
    lead = (3, 2) if kind == "envs" else (5,)
    more = {"next_observation": torch.zeros(*lead, 2)} if kind == "next" else {}
    made.extend(items(*lead), **more)
    return made


@functools.cache
def dicts(kind="prioritized"):
    options = {
        "prioritized": {"sampler": fbuf.Prioritized()},
        "slices": {"view": fbuf.Sequence(2), "sampler": fbuf.Uniform(window=2), "end_keys": ()},
        "view": {"view": fbuf.ReturnToGo(0.9)},
    }[kind]
    made = TensorDictReplayBuffer(8, seed=0, **options | {"traj_key": False})
    made.extend(of(5))
    return made


def of(*lead, **changes):
    return TensorDict(items(*lead, **changes), batch_size=lead)


def ids(count=2):
    return fbuf.Ids(torch.zeros(count, dtype=torch.int32), torch.zeros(count, dtype=torch.int32))


BOOLS = torch.zeros(4, dtype=torch.bool)

MISUSES = [
    # method, the buffer or its class, arguments, options, words that the message has
    ("__init__", ReplayBuffer, (0,), {}, "capacity"),
    ("__init__", ReplayBuffer, (7,), {"num_envs": 2}, "capacity"),
    ("__init__", ReplayBuffer, ("8",), {}, "capacity"),
    ("__init__", ReplayBuffer, (8,), {"num_envs": 0}, "num_envs"),
    ("__init__", ReplayBuffer, (8,), {"autoreset": "never"}, "autoreset"),
    ("__init__", ReplayBuffer, (8,), {"sampler": fbuf.Uniform}, "sampler"),
    ("__init__", ReplayBuffer, (8,), {"view": "item"}, "view"),
    ("__init__", ReplayBuffer, (8,), {"batch_size": 0}, "batch_size"),
    ("__init__", ReplayBuffer, (8,), {"prefetch": -1}, "prefetch"),
    ("__init__", ReplayBuffer, (8,), {"prefetch": 1}, "prefetch"),
    ("__init__", ReplayBuffer, (8,), {"seed": -1}, "seed"),
    ("__init__", ReplayBuffer, (8,), {"to": "cuda:99"}, "to must be a device"),
    ("__init__", ReplayBuffer, (8,), {"to": "nowhere"}, "to must be a device"),
    ("__init__", ReplayBuffer, (8,), {"host": 1}, "host"),
    ("__init__", ReplayBuffer, (8,), {"item": {"x": 1}}, "item"),
    ("__init__", ReplayBuffer, (8,), {"item": ITEM, "next_of": "z"}, "next_of"),
    ("__init__", ReplayBuffer, (8,), {"item": ITEM, "max_ends": 3}, "max_ends"),
    ("__init__", ReplayBuffer, (8,), {"item": ITEM, "next_of": "x", "max_ends": 0}, "max_ends"),
    ("__init__", ReplayBuffer, (8,), {"sampler": fbuf.Uniform(window=9)}, "window"),
    ("add", tensors, (items(x=torch.zeros(3)),), {}, r"item\['x'\]"),
    ("add", tensors, (items(x=torch.zeros(2).double()),), {}, r"item\['x'\]"),
    ("add", tensors, (items(x=torch.zeros(2).int()),), {}, r"item\['x'\]"),
    ("add", tensors, (items(r=None),), {}, r"item\['r'\] is missing"),
    ("add", tensors, (items(z=torch.zeros(1)),), {}, r"item\['z'\] is new"),
    ("add", tensors, (items(4),), {}, "looks like a batch; use extend"),
    ("add", tensors, ("text",), {}, "item"),
    ("add", tensors, (None,), {}, "item"),
    ("add", tensors, (ITEM,), {"terminated": BOOLS}, "terminated"),
    ("add", tensors, (ITEM,), {"terminated": 2}, "terminated"),
    ("add", tensors, (ITEM,), {"truncated": torch.tensor(0.5)}, "truncated"),
    ("add", tensors, (ITEM,), {"priority": torch.ones(3)}, "priority"),
    ("add", tensors, (ITEM,), {"alpha": -1.0}, "alpha"),
    ("add", tensors, (ITEM,), {"mask": torch.tensor(1.0)}, "mask"),
    ("add", tensors, (ITEM,), {"next_observation": torch.zeros(2)}, "next_observation"),
    ("add", lambda: tensors("next"), (ITEM,), {}, "next_observation"),
    ("add", lambda: tensors("next"), (ITEM,), {"next_observation": torch.zeros(3)}, "next_obs"),
    ("add", lambda: tensors("uniform"), (ITEM,), {"priority": 1.0}, "priority"),
    ("add", lambda: tensors("envs"), (items(2),), {}, "2"),
    ("extend", tensors, (items(4, x=torch.zeros(4, 3)),), {}, r"items\['x'\]"),
    ("extend", tensors, (items(4, x=torch.zeros(3, 2)),), {}, "items"),
    ("extend", tensors, (items(4, x=torch.zeros(4, 2, dtype=torch.int64)),), {}, r"items\['x'\]"),
    ("extend", tensors, (ITEM,), {}, "looks like one item; use add"),
    ("extend", tensors, ([],), {}, "items"),
    ("extend", tensors, ([1, 2],), {}, "items"),
    ("extend", tensors, (items(0),), {}, "items"),
    ("extend", tensors, (items(4),), {"terminated": torch.zeros(3)}, "terminated"),
    ("extend", tensors, (items(4),), {"terminated": torch.zeros(4)}, "terminated"),
    ("extend", tensors, (items(4),), {"priority": torch.ones(3)}, "priority"),
    ("extend", tensors, (items(4),), {"time_major": True}, "time_major"),
    ("extend", lambda: tensors("envs"), (items(2, 3),), {}, "3"),
    ("update_priority", tensors, (torch.tensor([1]), torch.ones(1)), {}, "ids"),
    ("update_priority", tensors, (ids(), torch.ones(3)), {}, "priority"),
    ("update_priority", tensors, (ids(), "high"), {}, "priority"),
    ("update_priority", tensors, (ids(), torch.ones(2)), {"alpha": -1.0}, "alpha"),
    ("update_priority", tensors, (ids(), torch.ones(2)), {"mask": torch.ones(2)}, "mask"),
    ("update_priority", lambda: tensors("uniform"), (ids(), torch.ones(2)), {}, "priorit"),
    ("write", tensors, (ids(), {"z": torch.zeros(2)}), {}, "z"),
    ("write", tensors, (ids(), {"x": torch.zeros(2)}), {}, r"fields\['x'\]"),
    ("write", tensors, (ids(), {"x": torch.zeros(2, 2).int()}), {}, r"fields\['x'\]"),
    ("write", tensors, (torch.ones(2), {"x": torch.zeros(2, 2)}), {}, "ids"),
    ("remove", tensors, (torch.ones(2),), {}, "ids"),
    ("remove", tensors, (ids(),), {"mask": torch.ones(3)}, "mask"),
    ("end_episode", tensors, (BOOLS,), {}, "mask"),
    ("end_episode", lambda: tensors("envs"), (torch.zeros(3),), {}, "mask"),
    ("sample", tensors, (0,), {}, "batch_size"),
    ("sample", tensors, (2.0,), {}, "batch_size"),
    ("sample", tensors, ("2",), {}, "batch_size"),
    ("sample", tensors, (), {}, "batch_size"),
    ("sample", tensors, (2,), {"beta": -1}, "beta"),
    ("sample", tensors, (2,), {"beta": float("nan")}, "beta"),
    ("sample", tensors, (2,), {"beta": "half"}, "beta"),
    ("sample", lambda: tensors("view"), (2,), {}, r"fbuf\.Transition: next_of"),
    ("sample", lambda: tensors("n_step"), (2,), {}, r"fbuf\.NStep: reward"),
    ("sample", lambda: tensors("field"), (2,), {}, "'z'"),
    ("sample", lambda: ReplayBuffer(8), (2,), {}, "nothing has been added yet"),
    ("__getitem__", tensors, (9,), {}, "position 9"),
    ("__getitem__", tensors, ("z",), {}, "'z'"),
    ("__setitem__", tensors, (0, ITEM), {}, "extend"),
    ("load_state_dict", tensors, ({},), {}, "state_dict"),
    ("load_state_dict", tensors, ({},), {"episodes": "go on"}, "episodes"),
    ("load", tensors, ("/nowhere",), {}, "/nowhere"),
    ("load", tensors, ("/nowhere",), {"episodes": "go on"}, "episodes"),
    ("save", tensors, ("/dev/null/x",), {"keep": 0}, "keep"),
    ("save", tensors, (3,), {}, "path"),
    ("save", tensors, ("/dev/null/x",), {"extra": object()}, "extra"),
    ("stats", lambda: closed(tensors_of()), (), {}, "closed"),
    # of TensorDicts
    ("__init__", TensorDictReplayBuffer, (0,), {}, "capacity"),
    ("__init__", TensorDictReplayBuffer, (8,), {"batch_size": 0}, "batch_size"),
    ("__init__", TensorDictReplayBuffer, (8,), {"seed": -1}, "seed"),
    ("__init__", TensorDictReplayBuffer, (8,), {"view": 1}, "view"),
    ("__init__", TensorDictReplayBuffer, (8,), {"slices": "long"}, "slices"),
    ("add", dicts, (of(4),), {}, "looks like a batch; use extend"),
    ("add", dicts, (of(x=torch.zeros(3)),), {}, r"data\['x'\]"),
    ("add", dicts, (3,), {}, "data"),
    ("extend", dicts, (of(4, x=torch.zeros(4, 3)),), {}, r"data\['x'\]"),
    ("extend", dicts, (of(4, x=torch.zeros(4, 2).int()),), {}, r"data\['x'\]"),
    ("extend", dicts, (of(4, r=None),), {}, r"data\['r'\] is missing"),
    ("extend", dicts, (of(),), {}, "batch dimension"),
    ("extend", dicts, ([],), {}, "data"),
    ("extend", dicts, (3,), {}, "data"),
    ("sample", dicts, (0,), {}, "batch_size"),
    ("sample", dicts, (-1,), {}, "batch_size"),
    ("sample", dicts, (1.5,), {}, "batch_size"),
    ("sample", dicts, (), {}, "batch_size"),
    ("sample", lambda: dicts("slices"), (3,), {}, "batch_size"),
    ("sample", lambda: dicts("view"), (2,), {}, r"fbuf\.ReturnToGo: reward"),
    ("sample", lambda: beta(-1.0), (2,), {}, "beta"),
    ("update_priority", dicts, (0.5, 1.0), {}, "index"),
    ("update_priority", lambda: alpha(-1.0), (0, 1.0), {}, "alpha"),
    ("update_tensordict_priority", dicts, (of(4),), {}, "td_error"),
    ("end_episode", dicts, (BOOLS,), {}, "mask"),
    ("__getitem__", dicts, (9,), {}, "position 9"),
    ("__getitem__", dicts, (torch.tensor([1, 9]),), {}, "9"),
    ("load_state_dict", dicts, ({},), {"episodes": "on"}, "state_dict|transforms|episodes"),
    ("loads", dicts, ("/nowhere",), {}, "/nowhere"),
    ("dumps", dicts, ("/dev/null/x",), {"extra": object()}, "extra"),
    ("empty", lambda: closed(dicts_of()), (), {}, "closed"),
]


def tensors_of():
    return ReplayBuffer(8, item=ITEM)


def dicts_of():
    return TensorDictReplayBuffer(8)


def closed(made):
    made.close()
    return made


def beta(value):
    made = TensorDictReplayBuffer(8, sampler=fbuf.Prioritized())
    made.extend(of(5))
    made.beta = value
    return made


def alpha(value):
    made = beta(0.5)
    made.alpha = value
    return made


@pytest.mark.parametrize(
    ("method", "of", "arguments", "options", "said"),
    MISUSES,
    ids=[f"{m}-{n}" for n, (m, *_) in enumerate(MISUSES)],
)
def test_misuse(method, of, arguments, options, said):
    if isinstance(of, type):
        kind, call = of, of
    else:
        buffer = of()
        kind, call = type(buffer), getattr(buffer, method)
    with pytest.raises(Exception) as raised:  # noqa: PT011 (the text is looked at below)
        call(*arguments, **options)
    told = str(raised.value.args[0] if raised.value.args else raised.value)
    name = TENSORS if kind is ReplayBuffer else DICTS
    assert told.startswith(f"{name}.{method}: "), told
    assert told.count(f"{name}.{method}: ") == 1, told
    assert re.search(said, told), told
    rest = told.removeprefix(f"{name}.{method}: ").replace("fbuf_adapters", "")
    rest = rest.replace("fbuf.ids_at(buffer.state, ", "")  # which takes the state of a buffer
    assert not FOREIGN.search(rest), told
    if method == "add":
        assert "items[" not in rest, told


def test_words_of_other_code_stay():
    """An error of a user's transform is the user's own."""

    def fails(batch):
        raise ValueError("items[0] of jnp is mine")

    buffer = ReplayBuffer(8, transform=fails)
    buffer.extend(items(5))
    with pytest.raises(ValueError, match=r"^items\[0\] of jnp is mine$"):
        buffer.sample(2)


def test_vmap_says_what_is_wrong():
    buffer = tensors()
    for call in (
        lambda x: buffer.add({"x": x, "r": torch.tensor(0.0)}),
        lambda x: buffer.update_priority(ids(), x),
        lambda x: buffer.add(ITEM, priority=x.sum()),
    ):
        with pytest.raises(TypeError, match=r"torch\.func\.vmap.*with the whole batch \(extend"):
            torch.func.vmap(call)(torch.zeros(3, 2))
