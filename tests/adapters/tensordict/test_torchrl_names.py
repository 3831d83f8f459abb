"""Names, arguments and directories of TorchRL, and the answers to them."""

import inspect
import re

import pytest

import fbuf

pytest.importorskip("torchrl")

import torch
from fbuf_adapters.pytorch import ReplayBuffer
from fbuf_adapters.tensordict import TensorDictReplayBuffer
from tensordict import TensorDict
from torchrl import data

PLACE = r"fbuf_adapters\.tensordict\.TensorDictReplayBuffer"
WHOLE = r"from_torchrl\(rb\)"


def rows(count=4, **more):
    made = {"observation": torch.randn(count, 4), "action": torch.arange(count), **more}
    made["next"] = {"observation": torch.randn(count, 4), "reward": torch.randn(count, 1)}
    made["next"]["done"] = torch.zeros(count, 1, dtype=torch.bool)
    return TensorDict(made, batch_size=[count])


def test_n_step_of_the_layout_of_torchrl():
    """The first error names the reward; the second the next observation; then it works."""
    names = {}
    for name in ("reward", "next_observation"):
        rb = TensorDictReplayBuffer(8, view=fbuf.NStep(2, gamma=0.9, **names), batch_size=6)
        rb.extend(rows())
        key = name.replace("next_", "")
        with pytest.raises(ValueError, match=f'give {name}="next.{key}"') as refusal:
            rb.sample()
        assert "action: int32[], next.done: bool[1]" in str(refusal.value)
        names[name] = f"next.{key}"
    rb = TensorDictReplayBuffer(8, view=fbuf.NStep(1, gamma=0.9, **names), batch_size=6)
    added = rows()
    rb.extend(added)
    batch = rb.sample()
    assert batch["reward"].shape == (6,)
    assert torch.equal(batch["reward"], added["next", "reward"][batch["index"], 0])


def test_a_key_of_torchrl_as_the_name_of_a_field():
    view = fbuf.NStep(2, gamma=0.9, reward=("next", "reward"))  # pyright: ignore[reportArgumentType]
    rb = TensorDictReplayBuffer(8, view=view, batch_size=6)
    rb.extend(rows())
    with pytest.raises(TypeError, match=r"reward must be .*; write a nested name .*'next\.reward'"):
        rb.sample()


# Attributes.


@pytest.mark.parametrize(
    ("ask", "match"),
    [
        (lambda rb: rb.sampler.beta, r"has no 'sampler': set rb\.alpha and rb\.beta"),
        (lambda rb: rb.set_sampler(None), r"set rb\.alpha and rb\.beta"),
        (lambda rb: rb.storage, r"has no 'storage': read rows with rb\[:\]"),
        (lambda rb: rb.set_storage(None), "give capacity=n"),
        (lambda rb: rb.writer, "rb.extend writes"),
        (lambda rb: rb.transform, r"rb\.append_transform"),
        (lambda rb: rb.set_rng(None), "give seed="),
        (lambda rb: rb.update_, r"rb\.buffer\.write"),
        (lambda rb: rb.dim_extend, "give num_envs="),
        (lambda rb: rb.nothing, "object has no attribute 'nothing'"),
        (lambda rb: rb.seed, "object has no attribute 'seed'"),
    ],
)
def test_an_attribute_of_torchrls_is_answered_with_ours(ask, match):
    with pytest.raises(AttributeError, match=match):
        ask(TensorDictReplayBuffer(8))


def test_every_public_attribute_of_torchrls_is_there_or_answered():
    """Names that no program of one process needs are left to Python's own answer."""
    theirs = dir(data.TensorDictReplayBuffer(storage=data.ListStorage(3)))
    rb, bare = TensorDictReplayBuffer(8), set()
    for name in theirs:
        if not name.startswith("_"):
            try:
                getattr(rb, name)
            except AttributeError as error:
                if "has no attribute" in str(error):
                    bare.add(name)
    assert bare <= {"initialized", "query", "service_backend"}


@pytest.mark.parametrize(
    "kind", [TensorDictReplayBuffer, ReplayBuffer, fbuf.host.HostStore], ids=lambda kind: kind
)
def test_what_a_class_lists_it_has(kind):
    assert [name for name in dir(kind) if not hasattr(kind, name)] == []
    assert "sampler" not in dir(kind)  # an argument cannot be read


# Arguments.


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda kind: kind(storage=data.LazyTensorStorage(8)),
            rf"'storage'; give capacity=n.*{WHOLE}",
        ),
        (
            lambda kind: kind(data.LazyTensorStorage(8)),
            rf"LazyTensorStorage; give capacity=n.*{WHOLE}",
        ),
        (lambda kind: kind(capacity=data.ListStorage(8)), "ListStorage; give capacity=n"),
        (
            lambda kind: kind(8, sampler=data.RandomSampler()),
            rf"RandomSampler; give sampler=fbuf\.Uniform\(\), .*{WHOLE}",
        ),
        (
            lambda kind: kind(8, sampler=object.__new__(data.PrioritizedSampler)),
            r"give sampler=fbuf\.Prioritized\(alpha=",
        ),
        (
            lambda kind: kind(8, sampler=data.SliceSampler(slice_len=2)),
            r"give sampler=fbuf\.Uniform\(window=L, by=\"episode\"\), view=fbuf\.Sequence\(L\)",
        ),
        (lambda kind: kind(8, writer=data.RoundRobinWriter()), "leave writer out"),
        (lambda kind: kind(8, alpha=0.6), r"'alpha'; give sampler=fbuf\.Prioritized\(alpha="),
        (lambda kind: kind(8, collate_fn=torch.stack), "give transform="),
        (lambda kind: kind(8, sampler=3), r"must be a Sampler, such as fbuf\.Uniform"),
        (lambda kind: kind(8, nothing=3), "unexpected keyword argument 'nothing'"),
    ],
)
def test_an_argument_of_torchrls_is_answered_with_ours(make, match):
    with pytest.raises(TypeError, match=match):
        make(TensorDictReplayBuffer)


def test_the_constructor_has_its_own_signature():
    assert list(inspect.signature(TensorDictReplayBuffer).parameters)[:2] == [
        "capacity",
        "num_envs",
    ]


# Saving.


def test_a_directory_of_torchrls_is_called_so(tmp_path):
    theirs = data.TensorDictReplayBuffer(storage=data.LazyTensorStorage(8))
    theirs.extend(rows())
    theirs.dumps(tmp_path)
    with pytest.raises(fbuf.CheckpointError, match=rf"written by a buffer of TorchRL.*{WHOLE}"):
        TensorDictReplayBuffer(8).loads(tmp_path)


@pytest.mark.parametrize(
    ("kind", "load", "host"),
    [
        (TensorDictReplayBuffer, "loads", False),
        (TensorDictReplayBuffer, "loads", True),
        (ReplayBuffer, "load", False),
    ],
)
def test_another_sampler_is_given_to_the_buffer(kind, load, host, tmp_path):
    saved = kind(8, sampler=fbuf.Prioritized(0.5), host=host)
    saved.extend({"action": torch.arange(4)})
    saved.save(tmp_path)
    place = rf"^{re.escape(kind.__module__.rpartition('.')[0])}\.{kind.__name__}\.{load}: "
    for sampler, match in (
        (
            fbuf.Uniform(),
            r"of this buffer is Uniform\(.*; make the buffer with sampler=Prioritized\(alpha=0.5",
        ),
        (
            fbuf.Prioritized(0.6, beta=0.3),
            r"has alpha=0.5, and that of this buffer has 0.6; beta=0.4, and that of this buffer "
            r"has 0.3; make the buffer with sampler=Prioritized\(\.\.\.\)",
        ),
    ):
        other = kind(8, sampler=sampler, host=host)
        with pytest.raises(fbuf.CheckpointError, match=match) as refusal:
            getattr(other, load)(tmp_path)
        assert re.search(place, str(refusal.value))
        assert "leave sampler out" not in str(refusal.value)


# The class and the argument in errors.


def closed():
    rb = TensorDictReplayBuffer(8, batch_size=2)
    rb.extend(rows())
    rb.close()
    return rb


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda rb: rb.extend(rows().exclude("action")),
            r"\.extend: data .*data\['action'\] is missing",
        ),
        (lambda rb: rb.extend(rows(action=torch.full((4,), 2**40))), r"\.extend: data\['action'\]"),
        (lambda rb: rb.end_episode([True]), r"\.end_episode: mask must be"),
        (lambda rb: rb.sample(), r"\.sample: batch_size is None"),
        (lambda rb: rb.loads("x", episodes="x"), r"\.loads: episodes must be one of"),
        (lambda rb: TensorDictReplayBuffer(8, prefetch=1), r"\.__init__: prefetch needs"),
        (lambda rb: TensorDictReplayBuffer(8, prefetch=-1), r"\.__init__: prefetch must be"),
        (lambda rb: closed().sample(), r"\.sample: this buffer is closed"),
        (lambda rb: len(closed()), r"\.__len__: this buffer is closed"),
        (lambda rb: closed().stats(), r"\.stats: this buffer is closed"),
        (lambda rb: TensorDictReplayBuffer(8).raise_on_fault(), r"\.raise_on_fault: "),
    ],
)
def test_errors_name_this_class(call, match):
    rb = TensorDictReplayBuffer(8)
    rb.extend(rows())
    with pytest.raises((TypeError, ValueError, RuntimeError), match=f"^{PLACE}{match}"):
        call(rb)


@pytest.mark.parametrize("kind", [TensorDictReplayBuffer, ReplayBuffer])
def test_an_integer_of_64_bits_may_be_kept_as_its_halves(kind):
    wide = torch.tensor([2**40, -(2**40) - 3])
    with pytest.raises(TypeError, match=re.escape("x.unsqueeze(-1).view(torch.int32)")):
        kind(8).extend({"id": wide})
    rb = kind(8)
    rb.extend({"id": wide.unsqueeze(-1).view(torch.int32)})
    assert torch.equal(rb[:]["id"].view(torch.int64)[:, 0], wide)


def test_a_fault_is_raised():
    rb = TensorDictReplayBuffer(8, sampler=fbuf.Prioritized())
    rb.extend(rows())
    rb.raise_on_fault()
    rb.update_priority([0], [float("nan")])
    with pytest.raises(RuntimeError, match="priority"):
        rb.raise_on_fault()
