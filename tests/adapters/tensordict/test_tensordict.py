"""The buffer of TensorDicts alone, beside the replay buffer of TorchRL.

The rest, both buffers do: see `test_buffers.py`.
"""

import contextlib
import copy
import dataclasses
import io
import itertools
import os
import pickle
import threading

import jax
import numpy as np
import pytest

import fbuf
from fbuf.checkpoint import manifest

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")
pytest.importorskip("torchrl")

from fbuf_adapters.pytorch import InteropError  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.buffer import _snapshot  # noqa: E402 (after the skip)
from fbuf_adapters.tensordict import TensorDictReplayBuffer  # noqa: E402 (after the skip)
from support import buffers  # noqa: E402 (after the skip)
from support.buffers import BATCH, CAPACITY, EXACT, PAIRS  # noqa: E402 (after the skip)
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, lazy_stack  # noqa: E402 (after the skip)
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement  # noqa: E402 (after the skip)
from torchrl.data import TensorDictReplayBuffer as Theirs  # noqa: E402 (after the skip)
from torchrl.envs.transforms import (  # noqa: E402 (after the skip)
    Compose,
    MultiStepTransform,
    ObservationNorm,
    RenameTransform,
    ToTensorImage,
    Transform,
)
from torchrl.modules import QValueActor  # noqa: E402 (after the skip)
from torchrl.objectives import DQNLoss  # noqa: E402 (after the skip)


def ours(**options):
    return TensorDictReplayBuffer(CAPACITY, **{"batch_size": BATCH, "seed": 0, **options})


def theirs(**options):
    return Theirs(storage=LazyTensorStorage(CAPACITY), **options)


def rows(count, start=0, **more):
    """Rows that can be told apart, and know where they were written in an endless buffer."""
    number = torch.arange(start, start + count)
    reward = number.float().unsqueeze(-1) / 8
    return TensorDict({"number": number, "next": {"reward": reward}, **more}, batch_size=[count])


def filled(sampler=EXACT, **options):
    """Eight rows, of priority 1 if they have any."""
    rb = ours(sampler=sampler, **options)
    rb.extend(rows(8))
    return rb


def leaves(data):
    """All tensors by key, whatever they are nested in."""
    found = data.items(include_nested=True, leaves_only=True)
    return {key if isinstance(key, tuple) else (key,): leaf for key, leaf in found}


def bits(tensor):
    """The bytes of a tensor: of a float they say more than its value."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def assert_same(one, other):
    """Equal in keys, shapes, dtypes and every bit."""
    assert one.batch_size == other.batch_size
    one, other = leaves(one), leaves(other)
    assert sorted(one) == sorted(other)
    for key, leaf in one.items():
        assert leaf.dtype == other[key].dtype, key
        assert leaf.shape == other[key].shape, key
        assert torch.equal(bits(leaf), bits(other[key])), key


def priorities(rb):
    """Return the values stored for each slot."""
    return buffers.priorities(rb.buffer.state)


def stored(rb, *key):
    """A leaf of all slots, straight from the buffer's memory."""
    found = buffers.stored(rb.buffer.state)
    for part in key:
        found = found[part]
    return np.asarray(found).tolist()


def flags_of(rb):
    """1 where an episode terminated, 2 where it was truncated."""
    return buffers.flags(rb.buffer.state)


def refused(error, match, function, *arguments):
    with pytest.raises(error, match=match):
        function(*arguments)


# A TensorDict comes out as it went in, as from TorchRL's.


def flat():
    return {
        "observation": torch.randn(8, 3),
        "action": torch.arange(8),
        "one_hot": torch.eye(8, dtype=torch.int64)[:, :3],
        "done": torch.arange(8).unsqueeze(-1) % 3 == 0,
        "half": torch.randn(8, 2).half(),
        "brain": torch.randn(8, 2).bfloat16(),
        "complex": torch.randn(8, dtype=torch.complex64),
        "small": torch.arange(8, dtype=torch.int8) - 4,
        "empty": torch.zeros(8, 0),
    }


def collected():
    """As a collector of TorchRL's lays it out."""
    done = {"done": torch.zeros(8, 1).bool(), "terminated": torch.zeros(8, 1).bool()}
    following = {"observation": torch.randn(8, 3), "reward": torch.randn(8, 1), **done}
    return {
        "observation": torch.randn(8, 3),
        "action": torch.arange(8) % 2,
        **done,
        "step_count": torch.arange(8).unsqueeze(-1),
        "collector": {"traj_ids": torch.arange(8) // 3},
        "next": {**following, "truncated": torch.arange(8).unsqueeze(-1) == 5},
        "a": {"b": {"c": torch.randn(8), "d": torch.arange(8), "reward": torch.randn(8).double()}},
        "b": {"c": torch.arange(8)},  # the same names, and other dtypes
        "reward": torch.arange(8),
    }


def wide():
    patterns = torch.randint(-(2**63), 2**63 - 1, (8, 2))
    special = [float("nan"), -float("nan"), float("inf"), -0.0, 5e-324, 0.1, 1 / 3, -1e308]
    limits = [-(2**31), 2**31 - 1, 0, -1, 1, 2, 3, 4]
    return {
        "patterns": patterns.view(torch.float64),
        "special": torch.tensor(special, dtype=torch.float64),
        "column": torch.randn(8, 1, dtype=torch.float64),
        "complex": torch.randn(8, 2, dtype=torch.complex128),
        "limits": torch.tensor(limits),
        "next": {"special": torch.tensor(special, dtype=torch.float64).flip(0)},
    }


def images():
    shape = (8, 3, 4, 4)
    return {"pixels": torch.randint(0, 256, shape, dtype=torch.uint8), "action": torch.arange(8)}


def sequences():
    """Items of five steps each, of which only the leaves know."""
    return {
        "observation": torch.randn(8, 5, 3),
        "action": torch.arange(40).reshape(8, 5),
        "done": torch.zeros(8, 5, 1).bool(),
        "value": torch.randn(8, 5, dtype=torch.float64),
    }


def strided():
    return {
        "columns": torch.randn(8, 6)[:, ::2],
        "expanded": torch.randn(1, 3).expand(8, 3),
        "transposed": torch.randn(3, 8, dtype=torch.float64).t(),
        "stepped": torch.randn(16, 2)[::2],
        "conjugated": torch.randn(8, dtype=torch.complex64).conj(),
    }


KINDS = (flat, wide, images, sequences, strided)


@pytest.mark.parametrize("size", [pytest.param([8], marks=pytest.mark.sweep), [8, 5]], ids=str)
def test_batches_are_those_of_torchrl(size):
    torch.manual_seed(0)
    kinds = {kind.__name__: kind() for kind in KINDS} | collected()
    given = TensorDict(kinds if len(size) == 1 else sequences(), batch_size=size)
    data = given.clone()
    # those with dimensions of their own are for the next test, too
    mine, peer = ours(sampler=fbuf.Uniform() if len(size) == 1 else EXACT), theirs()
    assert torch.equal(mine.extend(given), peer.extend(given))
    assert sorted(leaves(given)) == sorted(leaves(data))
    given.exclude("strided").zero_()  # it is the caller's again
    for _ in range(2):
        got, wanted = mine.sample(), peer.sample(BATCH)
        assert type(got) is type(wanted)
        assert got.batch_size == wanted.batch_size
        assert got.device == wanted.device
        found = leaves(got)
        for key in ("index_generation", "_weight", "priority_weight"):  # what theirs cannot tell
            found.pop((key,), None)
        form = {key: (leaf.shape, leaf.dtype) for key, leaf in found.items()}
        assert form == {key: (leaf.shape, leaf.dtype) for key, leaf in leaves(wanted).items()}
        slots = got["index"].reshape(BATCH, -1)[:, 0]
        assert len(set(slots.tolist())) > 1
        for key, leaf in leaves(data).items():
            assert torch.equal(bits(got[key]), bits(leaf[slots])), key
        assert not got.is_locked
        got.zero_()  # it is nobody else's
    again = ours(sampler=fbuf.Uniform() if len(size) == 1 else EXACT)
    again.load_state_dict(mine.state_dict(), episodes="keep")
    assert_same(again.sample(), mine.sample())


def test_priorities_of_items_that_have_dimensions_of_their_own():
    rb = ours(sampler=EXACT)
    rb.extend(TensorDict(sequences(), batch_size=[8, 5]))
    batch = rb.sample()
    assert batch.batch_size == batch["index"].shape == batch["priority_weight"].shape == (BATCH, 5)
    assert torch.equal(batch["action"], 5 * batch["index"] + torch.arange(5))
    batch["td_error"] = (batch["action"] - 9).abs().float()
    rb.update_tensordict_priority(batch)
    drawn = set(batch["index"].flatten().tolist())
    wanted = [max(9 - 5 * slot, 5 * slot - 5) if slot in drawn else 1 for slot in range(8)]
    assert priorities(rb)[:8] == wanted


def test_slots_are_those_of_torchrl():
    mine, peer = ours(), theirs()
    start = 0
    # also up to the end, around it, and more than there is room for
    for count in (8, 0, 1, 1, 8, 13, 8):
        data = rows(count, start)
        slots = mine.extend(data)
        assert slots.dtype == torch.int64
        assert slots.tolist() == peer.extend(data).tolist()
        start += count
        assert stored(mine, "number")[: len(mine)] == peer[:]["number"].tolist()
        assert len(mine) == len(peer)
        assert mine.write_count == peer.write_count == start
    batch = mine.sample()
    assert torch.equal(batch["number"], peer[:]["number"][batch["index"]])
    assert mine.add(rows(1, start)[0]) == peer.add(rows(1, start)[0])
    assert stored(mine, "number") == peer[:]["number"].tolist()
    assert sorted(stored(mine, "number")) == list(range(start - 9, start + 1))
    assert mine.extend(rows(8, 50)).tolist() == peer.extend(rows(8, 50)).tolist()


def test_one_item_is_added():
    rb, peer = ours(), theirs()
    for number in range(12):
        item = rows(1, number)[0]
        assert item.batch_size == ()
        slot = rb.add(item)
        assert type(slot) is int
        assert slot == peer.add(item) == number % CAPACITY
    assert (len(rb), rb.write_count) == (10, 12)
    batch = rb.sample()
    assert batch["number"].tolist() == [peer[:]["number"][slot] for slot in batch["index"]]


def test_a_lazy_stack():
    items = [rows(1, number)[0] for number in range(8)]
    data = lazy_stack(items, 0)
    assert type(data) is LazyStackedTensorDict
    rb = ours()
    assert rb.extend(data).tolist() == list(range(8))
    batch = rb.sample()
    assert type(batch) is TensorDict
    assert_same(batch.select("number", "next"), rows(8)[batch["index"]])
    assert rb.add(data[3]) == 8
    assert stored(rb, "number")[8] == 3


def test_dicts_are_taken_as_tensordicts():
    rb = ours()
    data = rows(8)
    assert rb.extend(data.to_dict()).tolist() == list(range(8))
    assert rb.add(data[3].to_dict()) == 8
    assert stored(rb, "number")[:9] == [*range(8), 3]
    rb = ours(num_envs=2)
    assert rb.extend(data.reshape(2, 4).to_dict()).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_priorities_may_be_passed_over():
    rb = ours(sampler=EXACT)
    rb.extend(rows(8, td_error=torch.full((8,), 7.0)), update_priority=False)
    assert priorities(rb)[:8] == [1] * 8


def test_a_batch_can_be_written_again():
    rb = filled()
    batch = rb.sample()[:8]
    assert rb.extend(batch).tolist() == [8, 9, 0, 1, 2, 3, 4, 5]
    numbers = batch["number"].tolist()
    wanted = [*numbers[2:], 6, 7, *numbers[:2]]
    assert stored(rb, "number") == wanted
    again = rb.sample()  # with the index of this draw, and not of that one
    assert again["number"].tolist() == [wanted[slot] for slot in again["index"]]


def test_rows_may_be_added_in_jax_meanwhile():
    rb = filled(fbuf.Uniform())
    rb.buffer.state = fbuf.add(rb.buffer.state, buffers.of_jax(buffers.rows(8, 20)))
    assert rb.extend(rows(8, 30)).tolist() == [6, 7, 8, 9, 0, 1, 2, 3]
    assert stored(rb, "number") == [34, 35, 36, 37, 26, 27, 30, 31, 32, 33]


# Views.


def windowed(**options):
    """Two steps of an episode each; what rows know of episodes is in their flags."""
    return ours(**{"slices": "nested", "traj_key": False, **PAIRS, **options})


def endless(**options):
    """The same, of rows that are all one episode."""
    return windowed(end_keys=(), **options)


def test_what_a_view_makes_of_rows_has_their_dtypes():
    rb, data = endless(), rows(8)
    rb.extend(data)
    batch = rb.sample()
    assert batch.batch_size == (PAIRS["batch_size"],)
    fields = [field.name for field in dataclasses.fields(fbuf.SequenceSteps)]
    for name in ("state", "next_observation"):  # of which the view was told nothing
        fields.remove(name)
    fields.remove("time_major")  # is no tensor
    assert {*batch.keys()} == {*fields, "index", "index_generation"}
    for name in fields[1:]:
        assert batch[name].shape == (PAIRS["batch_size"], 2), name
        assert batch[name].dtype == torch.bool, name
    assert bool(batch[fields[1]].all())  # all steps are there
    steps = batch["index"].unsqueeze(-1) + torch.arange(2)
    assert batch["item", "number"].dtype == torch.int64
    assert torch.equal(batch["item", "number"], data["number"][steps])
    assert torch.equal(batch["item", "next", "reward"], data["next", "reward"][steps])


@pytest.mark.sweep
def test_what_a_view_makes_anew_has_its_own_dtype():
    data = {"reward": torch.arange(8), "next_observation": torch.arange(8), "steps": torch.rand(8)}
    rb = ours(view=fbuf.NStep(2, gamma=0.5))
    rb.extend(TensorDict(data, batch_size=[8]))
    batch = rb.sample()
    reward = torch.tensor([0.5, 2.0, 3.5, 5.0, 6.5, 8.0, 9.5, 7.0])
    assert batch["reward"].dtype == torch.float32
    assert torch.equal(batch["reward"], reward[batch["index"]])
    assert batch["steps"].dtype in (torch.int32, torch.int64)
    assert torch.equal(batch["item", "steps"], data["steps"][batch["index"]])
    assert batch["item", "reward"].dtype == torch.int64
    assert torch.equal(batch["next_observation"], (batch["index"] + 1).clamp(max=7))


@pytest.mark.sweep
def test_stacked_frames_have_their_dtype():
    rb = filled(fbuf.Uniform(), view=fbuf.FrameStack(2, field="number"))
    batch = rb.sample()
    slots = batch["index"].unsqueeze(-1)
    assert batch["number"].dtype == torch.int64
    assert torch.equal(batch["number"], torch.cat([(slots - 1).clamp(min=0), slots], 1))


def test_views_that_compute_do_not_read_floats_of_64_bits():
    wide = rows(8, d=torch.ones(8, dtype=torch.float64))
    rb = ours(view=fbuf.FrameStack(2, field="number"))
    refused(InteropError, r"\['d'\].*64-bit", rb.extend, wide)


@pytest.mark.sweep
def test_views_that_do_not_compute_return_all_bits():
    wide = torch.rand(8, 2, dtype=torch.float64)
    for slices in ("nested", "flat"):
        rb = endless(slices=slices)
        rb.extend(rows(8, d=wide))
        batch = rb.sample()
        batch = batch["item"] if slices == "nested" else batch
        assert torch.equal(batch["d"], wide[batch["number"]])


# Environments that step together.


@pytest.mark.sweep
def test_environments_that_step_together():
    def steps(count, start):
        given = torch.arange(1.0, 2 * count + 1).reshape(2, count, 1)
        never = torch.zeros(2, count, 1, dtype=torch.bool)
        data = rows(2 * count, start).reshape(2, count)
        data["next"].update({"terminated": never, "truncated": never})
        return data.set("td_error", given)

    rb = ours(num_envs=2, sampler=EXACT)
    assert rb.extend(steps(4, 0)).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert rb.extend(steps(1, 8)[:, 0]).tolist() == [8, 9]
    assert stored(rb, "number") == [0, 4, 1, 5, 2, 6, 3, 7, 8, 9]
    assert rb.extend(steps(4, 10)).tolist() == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert priorities(rb) == [1, 5, 2, 6, 3, 7, 4, 8, 1, 2]
    assert (len(rb), rb.write_count) == (10, 18)
    refused(InteropError, "extend", rb.add, rows(1)[0])


# Priorities.


@pytest.mark.sweep
def test_extend_takes_priorities():
    rb = ours(sampler=EXACT)
    given = torch.tensor([1.0, 0.0, 3.0, 4.0, 5.0, 6.0, 0.5, 8.0])
    rb.extend(rows(8, td_error=given))
    assert priorities(rb)[:8] == given.flatten().tolist()
    assert stored(rb, "td_error")[:8] == given.tolist()  # like all else


def test_add_takes_a_priority():
    rb = ours(sampler=EXACT)
    rb.add(rows(1, td_error=torch.tensor([7.0]))[0])
    assert priorities(rb)[:2] == [7, 0]


def test_the_priority_key_may_be_nested():
    rb = ours(sampler=EXACT, priority_key=("next", "reward"))
    rb.extend(rows(8, 1))
    assert priorities(rb)[:8] == [number / 8 for number in range(1, 9)]
    batch = rb.sample()
    batch["next", "reward"] += 1
    rb.update_tensordict_priority(batch)
    drawn = set(batch["index"].tolist())
    assert priorities(rb)[:8] == [(slot + 1) / 8 + (slot in drawn) for slot in range(8)]


def test_rows_without_priorities_get_the_largest():
    rb = filled()
    assert priorities(rb) == [1] * 8 + [0, 0]
    rb.update_priority(7, 5.0)
    rb.extend(rows(8, 8))
    assert priorities(rb) == [5, 5, 5, 5, 5, 5, 1, 5, 5, 5]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2)], ids=str)
def test_update_tensordict_priority_takes_the_largest_of_each_row(shape):
    rb = filled()
    batch = rb.sample()
    errors = torch.randperm(BATCH * int(np.prod(shape)), generator=torch.manual_seed(0)).float()
    batch["td_error"] = errors.reshape(BATCH, *shape).requires_grad_()
    rb.update_tensordict_priority(batch)
    wanted = dict.fromkeys(range(8), 1.0)  # of a row drawn twice the last counts
    largest = errors.reshape(BATCH, -1).amax(1).tolist()
    wanted |= dict(zip(batch["index"].tolist(), largest, strict=True))
    assert len(set(batch["index"].tolist())) < BATCH
    assert priorities(rb)[:8] == [wanted[slot] for slot in range(8)]
    rb.buffer.raise_on_fault()


def test_update_tensordict_priority_takes_part_of_a_batch():
    rb = filled()
    batch = rb.sample()
    batch["td_error"] = torch.full((BATCH,), 4.0)
    rb.update_tensordict_priority(batch[2:4])
    rb.update_tensordict_priority(batch[6])
    named = set(batch["index"][[2, 3, 6]].tolist())
    assert priorities(rb)[:8] == [4 if slot in named else 1 for slot in range(8)]


def test_replaced_rows_are_known_by_a_batch_and_not_by_their_slots():
    rb = filled()
    batch = rb.sample()
    drawn = set(batch["index"].tolist())
    assert rb.extend(rows(8, 8)).tolist() == [8, 9, 0, 1, 2, 3, 4, 5]
    assert drawn & {0, 1, 2, 3, 4, 5}
    assert drawn & {6, 7}
    batch["td_error"] = torch.full((BATCH,), 9.0)
    rb.update_tensordict_priority(batch)
    assert priorities(rb) == [9 if slot in drawn & {6, 7} else 1 for slot in range(10)]
    rb.update_priority(batch["index"], torch.full((BATCH,), 5.0))
    assert priorities(rb) == [5 if slot in drawn else 1 for slot in range(10)]


def test_update_priority_takes_what_torchrl_takes():
    rb = filled()
    rb.update_priority(3, 5.0)
    rb.update_priority(torch.tensor([0, 1]), 2)
    rb.update_priority([2, 4], [3.0, 6.0])
    rb.update_priority(torch.tensor([5, 6], dtype=torch.int32), torch.tensor([7.0, 8.0]))
    assert priorities(rb)[:8] == [2, 2, 3, 5, 6, 7, 8, 1]
    rb.update_priority(torch.tensor([0, 1]), torch.tensor(4.0, dtype=torch.float64))
    rb.update_priority(torch.tensor([2, 3]), torch.tensor([1.5], requires_grad=True))
    assert priorities(rb)[:8] == [4, 4, 1.5, 1.5, 6, 7, 8, 1]


def test_update_priority_takes_no_mask_and_no_floats():
    rb = filled()
    for index in (torch.tensor([False, True]), [0.9]):
        with pytest.raises(TypeError, match="index must be integers"):
            rb.update_priority(index, 5.0)
    rb.update_priority([], 5.0)


def test_update_priority_takes_a_column():
    rb = filled()
    rb.update_priority(torch.tensor([5, 6]), torch.tensor([[2.0], [3.0]]))
    assert priorities(rb)[:8] == [1, 1, 1, 1, 1, 2, 3, 1]


def test_of_a_slot_named_twice_the_last_priority_counts():
    rb = filled()
    rb.update_priority(torch.tensor([4, 4]), torch.tensor([2.0, 5.0]))
    rb.update_priority([1, 1], [6.0, 4.0])
    assert priorities(rb)[:8] == [1, 4, 1, 1, 5, 1, 1, 1]


def test_negative_slots_are_passed_over():
    rb = filled()
    rb.update_priority(torch.tensor([-1, 3]), torch.tensor([7.0, 5.0]))
    rb.update_priority(torch.tensor([-8, -1]), torch.tensor([7.0, 5.0]))
    rb.update_priority(-1, 4.0)
    assert priorities(rb) == [1, 1, 1, 5, 1, 1, 1, 1, 0, 0]
    rb.buffer.raise_on_fault()


@pytest.mark.parametrize("slot", [2**32 + 1, -(2**32) + 1, 2**31, 9, 10])
def test_slots_that_hold_no_row_are_not_taken_for_others(slot):
    rb = filled()
    with contextlib.suppress(InteropError, ValueError, IndexError, OverflowError):
        rb.update_priority(torch.tensor([slot]), 7.0)
    assert priorities(rb) == [1] * 8 + [0, 0]


def test_without_priorities_there_is_nothing_to_update():
    rb = filled(fbuf.Uniform())
    batch = rb.sample()
    assert not {"_weight", "priority_weight"} & set(batch.keys())
    before = jax.tree.map(np.asarray, rb.buffer.state)
    rb.update_tensordict_priority(batch)
    batch["td_error"] = torch.ones(BATCH)
    rb.update_tensordict_priority(batch)
    rb.update_tensordict_priority(TensorDict({}, batch_size=[4]))
    rb.update_priority(batch["index"], 1.0)
    now = jax.tree.leaves(rb.buffer.state)
    for one, other in zip(jax.tree.leaves(before), now, strict=True):
        np.testing.assert_array_equal(one, other)


def test_without_priorities_the_key_is_one_like_others():
    rb = ours()
    rb.extend(rows(8, td_error=torch.arange(8.0)))  # and nobody is warned
    assert stored(rb, "td_error")[:8] == list(range(8))


# Weights.

GIVEN = torch.tensor([1.0, 2.0, 4.0, 8.0, 1.0, 2.0, 4.0, 8.0])


def weighted(sampler=EXACT):
    rb = filled(sampler)
    rb.update_priority(torch.arange(8), GIVEN)
    return rb


def weights(share, beta):
    """The weights by the book, the largest being 1."""
    weight = (8 * share) ** -beta
    return weight / weight.max()


def test_weights_are_there_under_both_names():
    batch = weighted().sample()
    assert batch["_weight"].shape == (BATCH,)
    assert batch["_weight"].dtype == torch.float32
    share = GIVEN[batch["index"]] / GIVEN.sum()
    torch.testing.assert_close(batch["_weight"], weights(share, 1.0))
    assert torch.equal(batch["priority_weight"], batch["_weight"])
    assert len(set(batch["_weight"].tolist())) == 4


@pytest.mark.sweep
def test_beta_is_no_argument_of_a_draw():
    with pytest.raises(TypeError, match=r"^fbuf\S*Buffer\.sample: .*'beta'; .* rb\.beta = 0\.5$"):
        filled().sample(beta=0.5)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'betas'"):
        filled().sample(betas=0.5)


def test_alpha_can_be_set():
    rb = ours(sampler=EXACT, priority_key="number")
    rb.extend(rows(8, 1))
    assert rb.alpha is None
    rb.alpha = 2.0
    rb.update_priority([0, 1], [3.0, 4.0])
    batch = rb.sample()
    batch["number"] = torch.full((BATCH,), 7)
    rb.update_tensordict_priority(batch)
    drawn = set(batch["index"].tolist())
    now = [9, 16, 3, 4, 5, 6, 7, 8]
    wanted = [49 if slot in drawn else now[slot] for slot in range(8)]
    assert priorities(rb)[:8] == pytest.approx(wanted, rel=1e-6)
    rb.extend(rows(8, 1))
    wanted = [9, 16, 25, 36, 49, 64, *wanted[6:], 1, 4]
    assert priorities(rb) == pytest.approx(wanted, rel=1e-6)
    rb.alpha = None
    rb.update_priority(0, 3.0)
    assert priorities(rb)[0] == 3


def test_a_mixture_has_priorities():
    rb = filled(fbuf.Mixture(priorities=EXACT))
    batch = TensorDict({"index": torch.arange(8), "td_error": torch.arange(8.0)}, batch_size=[8])
    batch["index_generation"] = torch.zeros(8, dtype=torch.int64)
    rb.update_tensordict_priority(batch)
    assert priorities(rb)[:8] == list(range(8))


@pytest.mark.sweep
def test_a_mixture_has_weights_and_priorities():
    rb = filled(fbuf.Mixture(priorities=EXACT))
    batch = rb.sample()
    assert batch["_weight"].tolist() == [1] * BATCH
    batch["td_error"] = torch.full((BATCH,), 3.0)
    rb.update_tensordict_priority(batch)
    drawn = set(batch["index"].tolist())
    given = torch.tensor([3.0 if slot in drawn else 1.0 for slot in range(8)])
    assert priorities(rb)[:8] == given.tolist()
    batch = rb.sample()
    share = 0.5 / 8 + 0.5 * given[batch["index"]] / given.sum()
    torch.testing.assert_close(batch["_weight"], weights(share, 1.0))


@pytest.mark.parametrize("sampler", [fbuf.Uniform(), EXACT], ids=["uniform", "prioritised"])
def test_return_info(sampler):
    batch, info = filled(sampler).sample(return_info=True)
    keys = {"index", "index_generation"}
    assert set(info) == (keys | {"_weight", "priority_weight"} if sampler == EXACT else keys)
    for key, told in info.items():
        assert torch.equal(told, batch[key])


def test_a_loss_of_torchrl_reads_the_weights_and_writes_the_priorities():
    def transition(batch):
        """Give the drawn rows the keys that the loss looks for."""
        number = batch["number"]
        batch.set("observation", table[number]).set("action", number % 2)
        never = torch.zeros(BATCH, 1, dtype=torch.bool)
        after = {"observation": table[number + 1], "done": never, "terminated": never}
        batch["next"].update(after)
        return batch

    torch.manual_seed(0)
    table = torch.randn(9, 3)
    rb = filled(transform=transition)
    rb.update_priority(torch.arange(8), GIVEN)
    network = torch.nn.Linear(3, 2)
    actor = QValueActor(network, in_keys=["observation"], action_space="categorical")
    loss = DQNLoss(actor, action_space="categorical", delay_value=False)
    loss.make_value_estimator(gamma=0.9)
    batch = rb.sample()
    weight = batch["priority_weight"]
    assert len(set(weight.tolist())) > 1
    value = loss(batch)["loss"]
    error = batch["td_error"].squeeze(-1)
    torch.testing.assert_close(value, (error * weight).sum() / weight.sum())
    plain = loss(batch.exclude("priority_weight", "_weight"))["loss"]
    torch.testing.assert_close(plain, error.mean())
    assert abs(value.item() - plain.item()) > 1e-3
    value.backward()
    assert network.weight.grad is not None
    rb.update_tensordict_priority(batch)
    wanted = dict(enumerate(GIVEN.tolist()))
    wanted |= dict(zip(batch["index"].tolist(), error.tolist(), strict=True))
    assert priorities(rb)[:8] == [wanted[slot] for slot in range(8)]


# Transforms.


def seen(data):
    """Rows with something to see."""
    number = data["number"].to(torch.uint8)
    pixels = torch.arange(12, dtype=torch.uint8).reshape(2, 2, 3) + number.reshape(-1, 1, 1, 1)
    observation = torch.arange(2.0) + data["next", "reward"]
    return data.update({"observation": observation, "p": pixels})


SCALE = {"loc": torch.tensor([1.0, -1.0]), "scale": torch.tensor([2.0, 0.5])}
TRANSFORMS = {
    "rename": (
        lambda: RenameTransform(["observation"], ["renamed"]),
        lambda b: b.rename_key_("observation", "renamed"),
    ),
    "norm": (
        lambda: ObservationNorm(in_keys=["observation"], **SCALE),
        lambda b: b.set("observation", b["observation"] * SCALE["scale"] + SCALE["loc"]),
    ),
    "image": (
        lambda: ToTensorImage(in_keys=["p"]),
        lambda b: b.set("p", b["p"].permute(0, 3, 1, 2).float() / 255),
    ),
    "compose": (
        lambda: Compose(
            ObservationNorm(in_keys=["observation"], **SCALE),
            RenameTransform(["observation"], ["renamed"]),
        ),
        lambda b: b.set("renamed", b.pop("observation") * SCALE["scale"] + SCALE["loc"]),
    ),
    "function": (
        lambda: lambda b: b.set("twice", b["observation"] * 2),
        lambda b: b.set("twice", b["observation"] * 2),
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_torchrl_are_applied(name):
    make, by_hand = TRANSFORMS[name]
    plain, given, appended = ours(transform=seen), ours(transform=make()), ours(transform=seen)
    assert given.insert_transform(0, seen) is given
    assert appended.append_transform(make()) is appended
    wanted = None
    for rb in (plain, given, appended):
        rb.extend(rows(8))
        batch = rb.sample()
        if wanted is None:
            wanted = by_hand(batch)
        assert_same(batch, wanted)
    assert sorted(stored(given)) == ["next", "number"]


class Told(Transform):
    """Tells when it is called, and with what."""

    def __init__(self, name, told):
        super().__init__()
        self.name, self.told = name, told

    def forward(self, data):
        assert not self.training
        there = "number" in data.keys()  # noqa: SIM118 (a TensorDict has no `in`)
        self.told.append((self.name, "out", tuple(data.batch_size), there))
        return data

    def _inv_call(self, data):
        self.told.append((self.name, "in", tuple(data.batch_size)))
        return data


def test_transforms_come_in_the_order_of_torchrl():
    told = {}
    for rb in (ours(), theirs()):
        calls = told.setdefault(rb, [])
        rb.append_transform(Told("a", calls))
        rb.append_transform(Told("b", calls))
        rb.insert_transform(1, Told("c", calls))
        rb.insert_transform(0, Told("d", calls))
        rb.extend(rows(8))
        rb.sample(BATCH)
    mine, peer = told.values()
    assert mine == peer
    assert [name for name, *_ in mine] == [*"bcad", *"dacb"]


def test_a_transform_is_given_what_is_added_and_may_leave_rows_out():
    """Added keys go along with the rows, and are added again where a transform drops them."""

    def odd(batch):
        keys.append(set(batch.keys()))
        return batch[batch["number"] % 2 == 1].flip(0)

    keys = []
    added = {"index", "index_generation", "_weight", "priority_weight"}
    rb, plain = filled(transform=odd), filled()
    batch, wanted = rb.sample(), plain.sample()
    assert_same(batch, wanted[wanted["number"] % 2 == 1].flip(0))
    assert keys == [{"number", "next", *added}]
    dropping = filled(transform=lambda batch: batch.select("number", "next"))
    assert_same(dropping.sample(), wanted)
    wrong = filled(transform=lambda batch: batch.select("number")[:3])
    refused(RuntimeError, r"a transform made 3 rows of 16.*'index'", wrong.sample)


class Halves(Transform):
    """Stores the reward in another dtype and under another key."""

    def forward(self, data):
        return data.set("reward", data.pop("halved").double() * 2)

    def _inv_call(self, data):
        return data.set("halved", (data["next", "reward"] / 2).half()).exclude("next")


@pytest.mark.sweep
def test_inverses_are_called_with_what_is_written():
    mine, peer = ours(transform=Halves()), theirs(transform=Halves())
    data = rows(8)
    for rb in (mine, peer):
        assert rb.extend(data).tolist() == list(range(8))
    assert_same(data, rows(8))  # which the caller does not notice
    assert sorted(stored(mine)) == ["halved", "number"]
    assert stored(mine, "halved")[:8] == [[number / 16] for number in range(8)]
    batch = mine.sample()
    found = set(leaves(batch)) - {("index_generation",)}
    assert found == set(leaves(peer.sample(BATCH)))
    assert batch["reward"].dtype == torch.float64
    assert torch.equal(batch["reward"][:, 0], batch["number"] / 8)


@pytest.mark.sweep
def test_an_inverse_may_keep_rows_back():
    """As that for several steps does, which has too few of them at first."""
    mine, peer = ours(seed=1), theirs()
    for rb in (mine, peer):
        rb.append_transform(MultiStepTransform(n_steps=3, gamma=0.5))
    start = 0
    for count in (2, 4, 4):
        number = torch.arange(start, start + count).unsqueeze(-1)
        never = torch.zeros(count, 1, dtype=torch.bool)
        after = {"reward": number + 1.0, "done": never, "terminated": never, "number": number + 1}
        data = TensorDict({"number": number, "next": after}, batch_size=[count])
        wanted = peer.extend(data.clone())
        assert mine.extend(data).flatten().tolist() == wanted.flatten().tolist()
        assert len(mine) == len(peer)
        start += count
    for key, leaf in leaves(peer[:].exclude("index")).items():
        assert stored(mine, *key)[: len(mine)] == leaf.tolist(), key


def doubled(batch):
    return batch.set("number", batch["number"] * 2)


@pytest.mark.parametrize("prefetch", [0, 3])
def test_a_new_transform_holds_for_all_batches_from_then_on(prefetch):
    """Also for those that were drawn ahead, and without one being lost or drawn twice."""
    rb, plain = filled(prefetch=prefetch), filled()
    for turn in range(4):
        number, expected = rb.sample()["number"], plain.sample()["number"]
        assert torch.equal(number, expected * 2 ** min(turn, 2))
        if turn < 2:
            assert rb.append_transform(doubled) is rb
    rb.close()


@pytest.mark.sweep
def test_an_inverted_transform():
    mine, peer = ours(), theirs()
    for rb in (mine, peer):
        rb.append_transform(Halves(), invert=True)
        rb.extend(rows(8).set("halved", torch.arange(8.0).unsqueeze(-1)))
        batch = rb.sample(BATCH)
        assert batch["halved"].dtype == torch.float16
        assert "next" not in batch.keys()  # noqa: SIM118 (a TensorDict has no `in`)
    written = ours()
    written.append_transform(doubled, invert=True)
    written.extend(rows(8))
    assert stored(written, "number")[:8] == list(range(0, 16, 2))
    assert set(written.sample()["number"].tolist()) <= set(range(0, 16, 2))


@pytest.mark.parametrize("index", [2, -2])
def test_a_place_among_the_transforms_that_is_not_there(index):
    rb = ours(transform=doubled)
    refused(
        ValueError,
        f"insert_transform: .*from -1 to 1.*{index}",
        rb.insert_transform,
        index,
        doubled,
    )


# Iteration.


def test_next_from_several_threads():
    """Each batch goes to one of them."""
    rb, same = filled(), filled()
    found, errors = [], []

    def work():
        try:
            found.extend(rb.next()["index"].tolist() for _ in range(20))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert sorted(found) == sorted(same.next()["index"].tolist() for _ in range(80))


def test_next_has_no_end():
    rb, same = filled(), filled()
    assert rb.batch_size == BATCH
    for _ in range(3):
        assert_same(rb.next(), same.sample())


@pytest.mark.sweep
def test_the_last_batch_of_an_epoch_has_no_rows_too_many():
    mine = ours(sampler=fbuf.Shuffled(), batch_size=4)
    peer = theirs(sampler=SamplerWithoutReplacement(), batch_size=4)
    for rb in (mine, peer):
        rb.extend(rows(8))
        rb.extend(rows(8, 8))
        batches = list(rb)
        assert [len(batch) for batch in batches] == [4, 4, 2]
        numbers = torch.cat([batch["number"] for batch in batches])
        assert sorted(numbers.tolist()) == list(range(6, 16))
    for _ in range(2):
        batches = [mine.next() for _ in range(4)]
        assert batches.pop() is None
        numbers = torch.cat([batch["number"] for batch in batches])
        assert sorted(numbers.tolist()) == list(range(6, 16))


def assert_nothing_is_drawn(rb):
    assert len(rb) > 0
    assert not rb.can_sample()
    with contextlib.suppress(RuntimeError):  # to say so is as good as to give none
        assert (rb.sample()["index"] >= 0).all()


def test_a_batch_has_no_rows_that_were_not_drawn():
    rb = endless()
    rb.extend(rows(1))
    assert_nothing_is_drawn(rb)
    rb.extend(rows(1, 1))
    assert rb.sample()["index"].tolist() == [0] * PAIRS["batch_size"]


@pytest.mark.sweep
def test_there_may_be_nothing_to_draw_any_more():
    rb = windowed()
    data = episodes(("terminated",))
    rb.extend(data)
    assert len(rb.sample()) == PAIRS["batch_size"]
    data["next", "terminated"] = torch.ones(9, 1, dtype=torch.bool)
    for _ in range(2):
        rb.extend(data)  # episodes of one step
    assert_nothing_is_drawn(rb)


def all_ids(rb):
    return fbuf.newest_ids(rb.buffer.state, CAPACITY)


GONE = {
    "removed": (EXACT, lambda rb: rb.buffer.remove(all_ids(rb))),
    "removed, uniform": (fbuf.Uniform(), lambda rb: rb.buffer.remove(all_ids(rb))),
    "of no priority": (EXACT, lambda rb: rb.update_priority(torch.arange(CAPACITY), 0.0)),
    "of no priority, by the core": (
        EXACT,
        lambda rb: rb.buffer.update_priority(all_ids(rb), torch.zeros(CAPACITY)),
    ),
    "cleared": (
        fbuf.Uniform(),
        lambda rb: setattr(rb.buffer, "state", fbuf.clear(rb.buffer.state)),
    ),
}


@pytest.mark.parametrize("prefetch", [pytest.param(0, marks=pytest.mark.sweep), 2])
@pytest.mark.parametrize("name", GONE)
def test_rows_that_are_gone_are_never_drawn(name, prefetch):
    """Without a window, too: once there are none, a batch of them is an error."""
    sampler, go = GONE[name]
    rb = filled(sampler, prefetch=prefetch)
    assert (rb.sample()["index"] >= 0).all()
    go(rb)
    with contextlib.suppress(RuntimeError):  # perhaps what was drawn before is given out still
        for _ in range(prefetch):
            assert (rb.sample()["index"] >= 0).all()
    refused(RuntimeError, r"sample: there is nothing to draw.*add rows", rb.sample)
    with pytest.raises(RuntimeError, match="nothing to draw"):
        next(iter(rb))
    rb.extend(rows(8, 50))
    assert set(rb.sample()["number"].tolist()) <= set(range(50, 58))
    rb.close()


# Where episodes end; for all else of it see test_ends.py.

LENGTHS = (3, 2, 4)
EPISODE = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS))
ENDS = torch.tensor([2, 4])
STARTS = {0, 1, 3, 5, 6, 7}
FLAGS = ("terminated", "truncated", "done")


def episodes(told, lacking=(), column=True):
    """Three of them, whose ends are told by these flags, in turn."""
    flags = {name: torch.zeros(9, dtype=torch.bool) for name in FLAGS if name not in lacking}
    for name, end in zip(itertools.cycle(told), ENDS, strict=False):
        flags[name][end] = True
    if column:
        flags = {name: flag.unsqueeze(-1) for name, flag in flags.items()}
    data = {"t": torch.arange(9), "episode": EPISODE, "next": flags}
    return TensorDict(data, batch_size=[9])


def assert_whole(rb):
    batch = rb.sample()
    steps, episode = batch["item", "t"], batch["item", "episode"]
    assert torch.equal(steps[:, 1], steps[:, 0] + 1)
    assert torch.equal(episode[:, 1], episode[:, 0])
    assert set(steps[:, 0].tolist()) == STARTS


@pytest.mark.sweep
@pytest.mark.parametrize(
    "told",
    [
        pytest.param(FLAGS[:1], marks=pytest.mark.sweep),
        pytest.param(FLAGS[1:2], marks=pytest.mark.sweep),
        FLAGS[:2],
    ],
    ids=" ".join,
)
def test_two_steps_are_of_one_episode(told):
    rb = windowed()
    rb.extend(episodes(told))
    assert_whole(rb)


@pytest.mark.sweep
def test_two_steps_are_of_one_episode_if_added_one_by_one():
    rb = windowed()
    for item in episodes(("truncated", "terminated")):
        rb.add(item)
    assert_whole(rb)


@pytest.mark.sweep
def test_flags_of_any_shape_are_found():
    for column in (True, False):
        rb = ours()
        rb.extend(episodes(("terminated", "truncated"), column=column))
        assert flags_of(rb) == [0, 0, 1, 0, 2, 0, 0, 0, 0, 0]


def test_done_is_enough():
    rb = ours()
    rb.extend(episodes(("done",), lacking=("terminated", "truncated")))
    assert flags_of(rb) == [0, 0, 1, 0, 1, 0, 0, 0, 0, 0]


def test_done_beside_the_others_truncates():
    rb = ours()
    rb.extend(episodes(("done", "truncated")))
    assert flags_of(rb) == [0, 0, 2, 0, 2, 0, 0, 0, 0, 0]


# Empty.


def test_empty():
    rb, peer = filled(), theirs()
    peer.extend(rows(8))
    old = rb.sample()
    rb.empty()
    peer.empty()
    assert len(rb) == len(peer) == 0
    assert not rb.can_sample(4)
    refused(RuntimeError, "empty", rb.sample)
    assert rb.extend(rows(8, 20)).tolist() == peer.extend(rows(8, 20)).tolist()
    old["td_error"] = torch.full((BATCH,), 9.0)
    rb.update_tensordict_priority(old)
    assert priorities(rb)[:8] == [1] * 8
    batch = rb.sample()
    assert torch.equal(batch["number"], batch["index"] + 20)


def test_empty_counts_anew():
    rb, peer = filled(), theirs()
    peer.extend(rows(8))
    for one in (rb, peer):
        one.empty(empty_write_count=False)
        assert (len(one), one.write_count) == (0, 8)
        one.empty()
        assert one.write_count == 0


def test_a_new_buffer_is_empty():
    rb, peer = ours(), theirs()
    assert len(rb) == len(peer) == 0
    assert rb.write_count == peer.write_count == 0
    assert rb.can_sample() is False
    refused(RuntimeError, "there is nothing to draw", rb.sample)
    peer.empty()
    rb.empty()
    assert rb.extend(rows(8)).tolist() == list(range(8))


def test_figures():
    rb, peer = ours(), theirs()
    for one in (rb, peer):
        one.extend(rows(13))
    mine, other = rb.stats(), peer.stats()
    assert {key: mine[key] for key in ("size", "write_count")} == {"size": 10, "write_count": 13}
    assert {key: other[key] for key in ("size", "write_count")} == {"size": 10, "write_count": 13}
    assert rb.can_sample() is True
    assert rb.can_sample(64) is True


# Saving.


def agent(prefetch, scale=2.0, seed=3):
    norm = ObservationNorm(loc=0.0, scale=scale, in_keys=[("next", "reward")])
    return ours(sampler=EXACT, seed=seed, prefetch=prefetch, transform=norm)


def go_on(rb):
    """Return everything that comes of a learner's next steps."""
    start, told = rb.write_count, []
    for step in range(4):
        batch = rb.sample()
        told.append(batch.clone())
        batch["td_error"] = (batch["number"] % 4 + step).float()
        rb.update_tensordict_priority(batch)
        if step == 1:
            told.append(TensorDict({"slots": rb.extend(rows(8, start))}, batch_size=[8]))
    told.append(TensorDict({"priorities": torch.tensor(priorities(rb))}, batch_size=[]))
    told.append(TensorDict({"written": torch.tensor(rb.write_count)}, batch_size=[]))
    return told


def assert_all_same(some, others):
    for one, other in zip(some, others, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_dump_goes_on_where_it_was(prefetch, tmp_path):
    rb = agent(prefetch)
    rb.extend(rows(8))
    batch = rb.sample()
    batch["td_error"] = batch["number"].float()
    rb.update_tensordict_priority(batch)
    new, old = agent(prefetch, scale=7.0, seed=4), agent(prefetch, scale=7.0, seed=4)
    old.extend(rows(8, 50))  # which is forgotten
    old.sample()
    rb.dumps(tmp_path / "some" / "rb")
    assert "MANIFEST-00000001" in os.listdir(tmp_path / "some" / "rb")
    for other in (new, old):
        other.loads(str(tmp_path / "some" / "rb"), episodes="keep")
    assert len(new) == len(old) == len(rb)
    wanted = go_on(rb)
    assert_all_same(go_on(new), wanted)
    assert_all_same(go_on(old), wanted)
    first = wanted[0]  # the transform is as it was saved
    assert torch.equal(first["next", "reward"].squeeze(-1), first["number"] / 4)


def test_what_was_saved_of_a_transform_is_nobody_elses():
    norm = ObservationNorm(loc=0.0, scale=2.0, in_keys=[("next", "reward")])
    rb, new = filled(transform=norm), agent(0, scale=7.0)
    saved = rb.state_dict()
    norm.scale.fill_(100.0)
    new.load_state_dict(saved)
    batch = new.sample()
    assert torch.equal(batch["next", "reward"].squeeze(-1), batch["number"] / 4)


def steps(start, count, ends=(), lead=()):
    """Steps that a transform for several steps takes; rewards are numbered, from 1 on."""
    number = torch.arange(start, start + count).unsqueeze(-1).expand(*lead, count, 1)
    done = sum((number == end for end in ends), torch.zeros_like(number)).bool()
    after = {"reward": number + 1.0, "done": done, "terminated": done, "number": number + 1}
    return TensorDict({"number": number, "next": after}, batch_size=[*lead, count])


def several(**options):
    return ours(transform=Compose(MultiStepTransform(n_steps=3, gamma=1.0)), **options)


def moved(how, rb, new, path, **options):
    """Save one buffer, and load it into another."""
    if how == "state_dict":
        saved = io.BytesIO()
        torch.save(rb.state_dict(), saved)
        new.load_state_dict(torch.load(io.BytesIO(saved.getvalue())), **options)
    else:
        rb.dumps(path)
        new.loads(path, **options)
    return new


HOWS = pytest.mark.parametrize("how", ["state_dict", "dumps"])


@HOWS
@pytest.mark.parametrize("num_envs", [None, 2])
def test_rows_that_a_transform_holds_back_are_saved(how, num_envs, tmp_path):
    lead = () if num_envs is None else (num_envs,)
    rb, new = several(num_envs=num_envs), several(num_envs=num_envs)
    new.extend(steps(90, 5, lead=lead))  # which is forgotten
    rb.extend(steps(0, 5, lead=lead))
    moved(how, rb, new, tmp_path, episodes="keep")
    for one in (rb, new):
        one.extend(steps(5, 2, lead=lead))
    assert len(new) == len(rb) == 4 * (num_envs or 1)
    assert_same(new[:], rb[:])
    assert new[..., 2]["next", "reward"].flatten().tolist() == [3.0 + 4 + 5] * (num_envs or 1)


@HOWS
def test_rows_held_back_are_joined_to_no_other_episode(how, tmp_path):
    rb, new = several(), several()
    rb.extend(steps(0, 6, ends=[4]))  # step 4 ends an episode, step 5 begins another
    moved(how, rb, new, tmp_path)
    new.extend(steps(90, 5))
    assert new[:]["number"].flatten().tolist() == [0, 1, 2, 3, 4, 90, 91]
    assert new[:]["next", "reward"].flatten().tolist() == [6, 9, 12, 9, 5, 276, 279]


def test_no_rows_of_another_run_are_held_back():
    rb, new = several(), several()
    new.extend(steps(90, 5))
    moved("state_dict", rb, new, None, episodes="keep")
    new.extend(steps(0, 4))
    assert new[:]["number"].flatten().tolist() == [0]


def test_copies_hold_the_same_rows_back():
    """A deep copy goes on within the episode; `pickle` ends the episode."""
    rb = several()
    rb.extend(steps(0, 5))
    other, pickled = copy.deepcopy(rb), pickle.loads(pickle.dumps(rb))
    for one in (rb, other, pickled):
        one.extend(steps(5, 4))
    assert rb[:]["number"].flatten().tolist() == [0, 1, 2, 3, 4, 5]
    assert_same(other[:], rb[:])
    assert pickled[:]["number"].flatten().tolist() == [0, 1, 5]


def test_a_state_dict_of_an_earlier_version_holds_no_rows_back():
    rb, new = several(), several()
    new.extend(steps(90, 5))
    saved = rb.state_dict()
    del saved["pending"]
    new.load_state_dict(saved, episodes="keep")
    new.extend(steps(0, 4))
    assert new[:]["number"].flatten().tolist() == [0]


def test_rows_held_back_stay_after_a_load_that_fails(monkeypatch):
    rb, new = several(), several()
    rb.extend(steps(0, 5))
    new.extend(steps(90, 5))

    def raises(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(_snapshot, "_resumed", raises)
        with pytest.raises(MemoryError):
            new.load_state_dict(rb.state_dict())
    new.extend(steps(95, 1))
    assert new[:]["number"].flatten().tolist() == [90, 91, 92]


def test_rows_held_back_need_their_transform():
    other = ours(transform=lambda batch: batch)
    other.extend(rows(2))
    with pytest.raises(ValueError, match=r"pending rows of 1 MultiStepTransforms.*has 0 of them"):
        other.load_state_dict(several().state_dict())


@pytest.mark.sweep
def test_what_a_view_made_is_saved_too(tmp_path):
    rb, new = endless(prefetch=1), endless(prefetch=1)
    rb.extend(rows(8))
    rb.sample()
    rb.dumps(tmp_path)
    new.loads(tmp_path, episodes="keep")
    assert_all_same([rb.sample() for _ in range(3)], [new.sample() for _ in range(3)])


def test_a_dump_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    def half(*_):
        raise OSError("no space left")

    rb = agent(0)
    rb.extend(rows(8))
    rb.dumps(tmp_path)
    first, wanted = agent(0), go_on(rb)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write", half)
        with pytest.raises(OSError, match="no space left"):
            rb.dumps(tmp_path)
    first.loads(tmp_path, episodes="keep")
    assert_all_same(go_on(first), wanted)
    rb.dumps(tmp_path)
    assert manifest.numbers(tmp_path) == [1, 2]


def test_a_dump_of_other_transforms_changes_nothing(tmp_path):
    rb, other = agent(0), filled()
    rb.extend(rows(8))
    rb.dumps(tmp_path)
    before = buffers.bits(other.buffer.state)
    with pytest.raises(ValueError, match="1 transforms, but this buffer has 0"):
        other.loads(tmp_path)
    for x, y in zip(before, buffers.bits(other.buffer.state), strict=True):
        np.testing.assert_array_equal(x, y)


def test_what_does_not_fit_is_not_loaded():
    rb = agent(0)
    rb.extend(rows(8))
    saved = rb.state_dict()
    before = rb.sample()
    with pytest.raises(ValueError, match="state_dict has 1 transforms, but this buffer has 0"):
        filled().load_state_dict(saved)
    other = TensorDictReplayBuffer(7, sampler=EXACT, transform=lambda batch: batch)
    with pytest.raises(ValueError, match="made with capacity=10, but"):
        other.load_state_dict(saved)
    for wrong in (saved | {"transforms": []}, saved | {"buffer": saved["buffer"] | {"version": 0}}):
        with pytest.raises(ValueError, match="load_state_dict"):
            rb.load_state_dict(wrong)
    again = agent(0)
    again.load_state_dict(saved, episodes="keep")
    assert_same(again.sample(), before)
    assert_same(again.sample(), rb.sample())  # nothing of rb has changed


@pytest.mark.parametrize("part", ["rows", "transform"])
def test_a_load_that_fails_halfway_changes_nothing(part, tmp_path, monkeypatch):
    rb, other = agent(0), agent(0, scale=7.0)
    for count, one in ((8, rb), (4, other)):
        one.extend(rows(count))
    saved, form = rb.state_dict(), other._run.form
    rb.dumps(tmp_path)
    load_transform, loads = ObservationNorm.load_state_dict, []

    def fails(transform, state):
        load_transform(transform, state)
        loads.append(state)
        if len(loads) % 2:
            raise MemoryError

    def raises(*_):
        raise MemoryError

    if part == "rows":
        monkeypatch.setattr(_snapshot, "_resumed", raises)
    else:
        monkeypatch.setattr(ObservationNorm, "load_state_dict", fails)
    for load in (lambda: other.load_state_dict(saved), lambda: other.loads(tmp_path)):
        with pytest.raises(MemoryError):
            load()
        (transform,) = other._codec.transforms.state_dicts()
        assert transform["scale"] == 7
        assert other._run.form is form
        assert len(other) == 4


@pytest.mark.parametrize("again", [copy.deepcopy, lambda rb: pickle.loads(pickle.dumps(rb))])
def test_a_copy_goes_on_by_itself(again):
    rb = agent(2)
    rb.extend(rows(8))
    rb.sample()
    other = again(rb)
    wanted = go_on(rb)
    assert_all_same(go_on(other), wanted)
    rb.close()
    other.close()


def test_other_names_of_saving(tmp_path):
    rb, new = agent(0), agent(0)
    rb.extend(rows(8))
    for name in ("save", "dump"):
        getattr(rb, name)(tmp_path / name)
        new.load(tmp_path / name)
        assert len(new) == 8


@pytest.mark.parametrize(("save", "load"), [("dumps", "loads"), ("save", "load"), ("dump", "load")])
def test_networks_are_saved_with_the_buffer(save, load, tmp_path):
    rb, net = agent(0), torch.nn.Linear(2, 3)
    rb.extend(rows(8))
    extra = {"net": net.state_dict(), "steps": 8}
    getattr(rb, save)(tmp_path, extra=extra)
    with torch.no_grad():
        wanted = net.weight.clone()
        net.weight.fill_(0)
    new = agent(0)
    found = getattr(new, load)(tmp_path)
    assert found["steps"] == 8
    assert torch.equal(found["net"]["weight"], wanted)
    assert len(new) == 8
    getattr(rb, save)(tmp_path)
    assert getattr(new, load)(tmp_path) is None


def test_what_cannot_be_saved_with_the_buffer(tmp_path):
    rb = filled()
    with pytest.raises(TypeError, match=r"Buffer\.dumps: extra cannot write a .*Linear"):
        rb.dumps(tmp_path, extra={"net": torch.nn.Linear(2, 3)})
    assert not os.listdir(tmp_path)


def test_what_it_is_in_one_line():
    rb = filled()
    assert repr(rb).startswith("TensorDictReplayBuffer(8 of 10 rows, sampler=Prioritized(")
    assert repr(rb).endswith(f"view=Item(fields=None), batch_size=16, seed={rb.buffer.seed})")
    rb.close()
    assert "closed" in repr(rb)


# Refusals.


@pytest.mark.parametrize("data", [torch.ones(3), [torch.ones(3)], None], ids=type)
@pytest.mark.parametrize("function", ["extend", "add"])
def test_only_tensordicts_are_taken(function, data):
    refused(InteropError, "must be a TensorDict", getattr(ours(), function), data)


def test_items_need_a_dimension_that_counts_them():
    refused(InteropError, r"batch dimension.*add\(\)", ours().extend, rows(1)[0])


def test_what_is_no_tensor_is_not_left_out():
    refused(InteropError, "name", ours().extend, rows(2, name=NonTensorData("a", batch_size=[2])))


def test_a_key_that_is_new_or_missing():
    rb = ours()
    rb.extend(rows(8))
    refused(InteropError, r"data\['more'\] is new", rb.extend, rows(8, more=torch.ones(8)))
    missing = rows(8).exclude(("next", "reward"))
    refused(InteropError, r"data\['next'\]\['reward'\] is missing", rb.extend, missing)
    assert (len(rb), rb.write_count) == (8, 8)
    assert rb.extend(rows(8)).tolist() == [8, 9, 0, 1, 2, 3, 4, 5]


OF_EIGHT = {
    "single": torch.ones(8),
    "double": torch.ones(8, dtype=torch.float64),
    "long": torch.ones(8, dtype=torch.int64),
    "pairs": torch.ones(8, 2, dtype=torch.int32),
}
CHANGES = {
    "a shape": ("pairs", torch.ones(8, 3, dtype=torch.int32)),
    "double to pairs": ("double", OF_EIGHT["pairs"]),
    "pairs to double": ("pairs", OF_EIGHT["double"]),
    "single to double": ("single", OF_EIGHT["double"]),
    "double to single": ("double", OF_EIGHT["single"]),
    "single to long": ("single", OF_EIGHT["long"]),
    "long to int": ("long", torch.ones(8, dtype=torch.int32)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_shape_or_dtype(change):
    name, leaf = CHANGES[change]
    rb, data = ours(), TensorDict(OF_EIGHT, batch_size=[8])
    rb.extend(data)
    refused((TypeError, ValueError), name, rb.extend, data.clone().set(name, leaf))
    assert (len(rb), rb.write_count) == (8, 8)
    assert rb.extend(data).tolist() == [8, 9, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
def test_what_requires_grad(dtype):
    data = rows(8, x=torch.ones(8, dtype=dtype, requires_grad=True))
    refused(InteropError, r"'x'.*requires grad.*\.detach", ours().extend, data)


def test_a_batch_without_priorities_or_ids():
    rb = filled()
    batch = rb.sample()
    refused(InteropError, "no 'td_error'.*priority_key", rb.update_tensordict_priority, batch)
    batch["td_error"] = torch.full((BATCH,), 9.0)
    for key in ("index", "index_generation"):
        lacking = batch.exclude(key)
        refused(InteropError, f"no '{key}'", rb.update_tensordict_priority, lacking)
    assert priorities(rb)[:8] == [1] * 8


def test_no_batch_size():
    rb = filled(batch_size=None)
    for function in (rb.sample, lambda: next(iter(rb)), rb.next):
        refused(ValueError, "batch_size", function)


def test_a_closed_buffer():
    rb = filled(prefetch=1)
    batch = rb.sample()
    batch["td_error"] = torch.ones(BATCH)
    rb.close()
    rb.close()
    calls = {
        rb.next: [],
        rb.can_sample: [4],
        rb.update_priority: [[0], 1.0],
        rb.update_tensordict_priority: [batch],
    }
    for function, arguments in calls.items():
        refused(RuntimeError, "closed", function, *arguments)
    assert torch.equal(batch["number"], batch["index"])  # what was given out stays
