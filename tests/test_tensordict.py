"""TensorDicts in and out, beside the replay buffer of TorchRL."""

import contextlib
import itertools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf
from fbuf.trees import sum_tree

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")
pytest.importorskip("torchrl")

from fbuf_adapters.pytorch import InteropError  # noqa: E402
from fbuf_adapters.tensordict import TensorDictReplayBuffer  # noqa: E402
from tensordict import LazyStackedTensorDict, NonTensorData, TensorDict, lazy_stack  # noqa: E402
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement  # noqa: E402
from torchrl.data import TensorDictReplayBuffer as Theirs  # noqa: E402
from torchrl.envs.transforms import (  # noqa: E402
    Compose,
    MultiStepTransform,
    ObservationNorm,
    RenameTransform,
    ToTensorImage,
    Transform,
)
from torchrl.modules import QValueActor  # noqa: E402
from torchrl.objectives import DQNLoss  # noqa: E402

CAPACITY = 10
RAW = fbuf.Prioritized(alpha=1.0, beta=1.0, eps=0.0)
"""What it stores are the priorities that it is given."""


def ours(**options):
    return TensorDictReplayBuffer(CAPACITY, **options)


def theirs(**options):
    return Theirs(storage=LazyTensorStorage(CAPACITY), **options)


def rows(count, start=0, **more):
    """Rows that can be told apart, and know where they were written in an endless buffer."""
    number = torch.arange(start, start + count)
    reward = number.float().unsqueeze(-1) / 8
    return TensorDict({"number": number, "next": {"reward": reward}, **more}, batch_size=[count])


def filled(count=8, **options):
    rb = ours(sampler=RAW, **options)
    rb.extend(rows(count))
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
    """What is stored for each slot."""
    return sum_tree.values(rb.buffer.state.index.tree, jnp.arange(CAPACITY)).tolist()


def stored(rb, *key):
    """A leaf of all slots, straight from the buffer's memory."""
    found = rb.buffer.state.storage.rows()
    for part in key:
        found = found[part]
    return np.asarray(found).tolist()


# What goes in comes out, as from TorchRL's.


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
        "a": {"b": {"c": torch.randn(8), "d": torch.arange(8)}},
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
        "reversed": torch.randn(16, 2)[::2],
        "conjugated": torch.randn(8, dtype=torch.complex64).conj(),
    }


KINDS = [(flat, [8]), (collected, [8]), (wide, [8]), (images, [8]), (sequences, [8])]
KINDS += [(strided, [8]), (sequences, [8, 5])]


@pytest.mark.parametrize(("kind", "size"), KINDS, ids=lambda x: getattr(x, "__name__", str(x)))
def test_batches_are_those_of_torchrl(kind, size):
    torch.manual_seed(0)
    data = TensorDict(kind(), batch_size=size)
    mine, peer = ours(), theirs()
    assert torch.equal(mine.extend(data), peer.extend(data))
    got, wanted = mine.sample(5), peer.sample(5)
    assert type(got) is type(wanted)
    assert got.batch_size == wanted.batch_size
    assert got.device == wanted.device
    found = leaves(got)
    del found["index_generation",]  # what theirs cannot tell
    form = {key: (leaf.shape, leaf.dtype) for key, leaf in found.items()}
    assert form == {key: (leaf.shape, leaf.dtype) for key, leaf in leaves(wanted).items()}
    slots = got["index"].reshape(5, -1)[:, 0]
    for key, leaf in leaves(data).items():
        assert torch.equal(bits(got[key]), bits(leaf[slots])), key


def test_the_batch_and_what_was_given_have_memory_of_their_own():
    data = rows(8, d=torch.arange(8.0, dtype=torch.float64))
    keys, rb = sorted(leaves(data)), ours()
    rb.extend(data)
    assert sorted(leaves(data)) == keys
    wanted = data.clone()
    data.zero_()
    batch = rb.sample(5)
    assert not batch.is_locked
    assert_same(batch.select(*wanted.keys()), wanted[batch["index"]])
    batch.zero_()
    again = rb.sample(5)
    assert_same(again.select(*wanted.keys()), wanted[again["index"]])


def test_slots_are_those_of_torchrl():
    mine, peer = ours(), theirs()
    start = 0
    # also up to the end, around it, and more than there is room for
    for count in (3, 4, 0, 3, 5, 13, 4, 33, 1):
        data = rows(count, start)
        slots = mine.extend(data)
        assert slots.dtype == torch.int64
        assert slots.tolist() == peer.extend(data).tolist()
        start += count
        assert stored(mine, "number")[: len(mine)] == peer[:]["number"].tolist()
        assert len(mine) == len(peer)
        assert mine.write_count == peer.write_count == start
    batch = mine.sample(16)
    assert torch.equal(batch["number"], peer[:]["number"][batch["index"]])
    assert mine.add(rows(1, start)[0]) == peer.add(rows(1, start)[0])
    assert stored(mine, "number") == peer[:]["number"].tolist()
    assert sorted(stored(mine, "number")) == list(range(start - 9, start + 1))


def test_one_item_is_added():
    rb, peer = ours(), theirs()
    for number in range(12):
        item = rows(1, number)[0]
        assert item.batch_size == ()
        slot = rb.add(item)
        assert type(slot) is int
        assert slot == peer.add(item) == number % CAPACITY
    assert (len(rb), rb.write_count) == (10, 12)
    batch = rb.sample(8)
    assert batch["number"].tolist() == [peer[:]["number"][slot] for slot in batch["index"]]


def test_a_lazy_stack():
    items = [rows(1, number)[0] for number in range(8)]
    data = lazy_stack(items, 0)
    assert type(data) is LazyStackedTensorDict
    rb = ours()
    assert rb.extend(data).tolist() == list(range(8))
    batch = rb.sample(5)
    assert type(batch) is TensorDict
    assert_same(batch.select("number", "next"), rows(8)[batch["index"]])
    assert rb.add(data[3]) == 8
    assert stored(rb, "number")[8] == 3


def test_a_batch_can_be_written_again():
    rb = filled()
    batch = rb.sample(8)
    del batch["next", "reward"]
    batch["next", "reward"] = torch.full((8, 1), 9.0)
    assert rb.extend(batch).tolist() == [8, 9, 0, 1, 2, 3, 4, 5]
    assert stored(rb, "number")[:2] == batch["number"][2:4].tolist()
    again = rb.sample(64)  # with the index of this draw, and not of that one
    assert again["number"].tolist() == [stored(rb, "number")[slot] for slot in again["index"]]


def test_what_a_view_makes_of_rows_has_their_dtypes():
    data = rows(8, d=torch.randn(8, 2, dtype=torch.float64))
    rb = ours(sampler=fbuf.Uniform(window=2), view=fbuf.Sequence(2))
    rb.extend(data)
    batch = rb.sample(4)
    assert batch.batch_size == (4,)
    assert bool(batch["there"].all())
    steps = batch["index"].unsqueeze(-1) + torch.arange(2)
    assert batch["item", "number"].dtype == torch.int64
    assert torch.equal(batch["item", "number"], data["number"][steps])
    assert torch.equal(batch["item", "next", "reward"], data["next", "reward"][steps])
    assert batch["item", "d"].dtype == torch.float64
    assert torch.equal(batch["item", "d"], data["d"][steps])


# Priorities.


@pytest.mark.parametrize("shape", [(4,), (4, 1)], ids=str)
def test_extend_takes_priorities(shape):
    rb = ours(sampler=RAW)
    given = torch.tensor([1.0, 0.0, 3.0, 4.0]).reshape(shape)
    rb.extend(rows(4, td_error=given))
    assert priorities(rb)[:4] == [1, 0, 3, 4]
    batch = rb.sample(32)
    assert set(batch["number"].tolist()) == {0, 2, 3}
    assert torch.equal(batch["td_error"], given[batch["index"]])  # stored like all else
    rb.add(rows(1, 4, td_error=torch.tensor(7.0).reshape(1, *shape[1:]))[0])
    assert priorities(rb)[:5] == [1, 0, 3, 4, 7]


def test_the_priority_key_may_be_nested():
    rb = ours(sampler=RAW, priority_key=("next", "gap"))
    data = rows(4, td_error=torch.full((4,), 9.0))
    data["next", "gap"] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    rb.extend(data)
    assert priorities(rb)[:4] == [1, 2, 3, 4]
    batch = rb.sample(4)
    batch["next", "gap"] = torch.full((4,), 8.0)
    rb.update_tensordict_priority(batch)
    drawn = set(batch["index"].tolist())
    assert priorities(rb)[:4] == [8 if slot in drawn else slot + 1 for slot in range(4)]


def test_rows_without_priorities_get_the_largest():
    rb = filled(4)
    assert priorities(rb)[:5] == [1, 1, 1, 1, 0]
    rb.update_priority(2, 5.0)
    rb.extend(rows(4, 4))
    assert priorities(rb)[:8] == [1, 1, 5, 1, 5, 5, 5, 5]


@pytest.mark.parametrize("shape", [(16,), (16, 1), (16, 3), (16, 2, 2)], ids=str)
def test_update_tensordict_priority_takes_the_largest_of_each_row(shape):
    rb = filled()
    batch = rb.sample(16)
    errors = torch.randperm(int(np.prod(shape)), generator=torch.manual_seed(0)).float()
    batch["td_error"] = errors.reshape(shape).requires_grad_()
    rb.update_tensordict_priority(batch)
    wanted = dict.fromkeys(range(8), 1.0)  # of a row drawn twice the last counts
    wanted |= dict(zip(batch["index"].tolist(), errors.reshape(16, -1).amax(1), strict=True))
    assert len(set(batch["index"].tolist())) < 16
    assert priorities(rb)[:8] == [wanted[slot] for slot in range(8)]
    rb.buffer.raise_on_fault()


def test_update_tensordict_priority_takes_part_of_a_batch():
    rb = filled()
    batch = rb.sample(8)
    batch["td_error"] = torch.full((8,), 4.0)
    rb.update_tensordict_priority(batch[2:5])
    rb.update_tensordict_priority(batch[6])
    named = {*batch["index"][2:5].tolist(), int(batch["index"][6])}
    assert priorities(rb)[:8] == [4 if slot in named else 1 for slot in range(8)]


def test_replaced_rows_are_known_by_a_batch_and_not_by_their_slots():
    rb = filled()
    batch = rb.sample(16)
    drawn = set(batch["index"].tolist())
    assert rb.extend(rows(5, 8)).tolist() == [8, 9, 0, 1, 2]
    assert drawn & {0, 1, 2}
    assert drawn & {3, 4, 5, 6, 7}
    batch["td_error"] = torch.full((16,), 9.0)
    rb.update_tensordict_priority(batch)
    assert priorities(rb) == [9 if slot in drawn - {0, 1, 2} else 1 for slot in range(10)]
    rb.update_priority(batch["index"], torch.full((16,), 5.0))
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


def test_update_priority_takes_a_column():
    rb = filled()
    rb.update_priority(torch.tensor([5, 6]), torch.tensor([[2.0], [3.0]]))
    assert priorities(rb)[:8] == [1, 1, 1, 1, 1, 2, 3, 1]


def test_of_a_slot_named_twice_the_last_priority_counts():
    rb = filled()
    rb.update_priority(torch.tensor([4, 1, 4, 1, 4]), torch.tensor([2.0, 3.0, 5.0, 6.0, 4.0]))
    assert priorities(rb)[:8] == [1, 6, 1, 1, 4, 1, 1, 1]


def test_negative_slots_are_passed_over():
    rb = filled()
    rb.update_priority(torch.tensor([-1, 3, -8]), torch.tensor([7.0, 5.0, 9.0]))
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
    rb = ours()
    # a td_error is stored all the same, and nobody is warned
    rb.extend(rows(8, td_error=torch.arange(8.0)))
    batch = rb.sample(4)
    assert torch.equal(batch["td_error"], batch["number"].float())
    assert not {"_weight", "priority_weight"} & set(batch.keys())
    before = jax.tree.map(np.asarray, rb.buffer.state)
    rb.update_tensordict_priority(batch)
    rb.update_tensordict_priority(TensorDict({}, batch_size=[4]))
    for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(rb.buffer.state), strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="keeps no priorities|no priorities"):
        rb.update_priority(batch["index"], 1.0)


# Weights.

GIVEN = torch.tensor([1.0, 2.0, 4.0, 8.0, 1.0, 2.0, 4.0, 8.0])


def weighted(sampler=RAW, **options):
    rb = ours(sampler=sampler, **options)
    rb.extend(rows(8, td_error=GIVEN))
    return rb


def test_weights_are_there_under_both_names():
    batch = weighted().sample(16)
    share = GIVEN[batch["index"]] / GIVEN.sum()
    wanted = (8 * share) ** -1.0
    assert batch["_weight"].shape == (16,)
    assert batch["_weight"].dtype == torch.float32
    torch.testing.assert_close(batch["_weight"], wanted / wanted.max())
    assert batch["priority_weight"].data_ptr() == batch["_weight"].data_ptr()
    assert len(set(batch["_weight"].tolist())) == 4


def test_weights_can_be_those_of_torchrl():
    sampler = fbuf.Prioritized(alpha=1.0, beta=0.5, eps=0.0, normalize="buffer")
    rb = weighted(sampler)
    batch = rb.sample(16)
    wanted = (GIVEN[batch["index"]] / GIVEN.min()) ** -0.5  # its formula
    torch.testing.assert_close(batch["priority_weight"], wanted)


def test_beta_can_be_set():
    rb, same = weighted(), weighted(fbuf.Prioritized(alpha=1.0, beta=0.25, eps=0.0))
    assert rb.beta is None
    rb.beta = 0.25
    assert_same(rb.sample(16), same.sample(16))
    rb.beta = 0.0
    assert rb.sample(16)["_weight"].tolist() == [1.0] * 16
    rb.beta, same.beta = None, 1.0
    same.sample(16)
    assert_same(rb.sample(16), same.sample(16))


def test_alpha_can_be_set():
    rb = weighted()
    assert rb.alpha is None
    rb.alpha = 2.0
    rb.update_priority([0, 1], [3.0, 4.0])
    batch = rb.sample(16)
    batch["td_error"] = torch.full((16,), 1.5)
    rb.update_tensordict_priority(batch)
    drawn = set(batch["index"].tolist())
    now = [9, 16, *GIVEN.tolist()[2:]]
    assert priorities(rb)[:8] == [2.25 if s in drawn else now[s] for s in range(8)]
    rb.extend(rows(8, td_error=GIVEN))
    assert priorities(rb)[8:] == [1, 4]
    assert priorities(rb)[:6] == [16, 64, 1, 4, 16, 64]
    rb.alpha = None
    rb.update_priority(0, 3.0)
    assert priorities(rb)[0] == 3


def test_a_mixture_has_weights_and_priorities():
    rb = weighted(fbuf.Mixture(priorities=RAW))
    batch = rb.sample(16)
    chance = 0.5 / 8 + 0.5 * GIVEN[batch["index"]] / GIVEN.sum()
    wanted = (8 * chance) ** -1.0
    torch.testing.assert_close(batch["_weight"], wanted / wanted.max())
    batch["td_error"] = torch.full((16,), 3.0)
    rb.update_tensordict_priority(batch)
    tree = rb.buffer.state.index.priorities.tree
    drawn = set(batch["index"].tolist())
    found = sum_tree.values(tree, jnp.arange(8)).tolist()
    assert found == [3 if slot in drawn else GIVEN[slot] for slot in range(8)]


def test_return_info():
    batch, info = filled().sample(4, return_info=True)
    keys = {"index", "index_generation", "_weight", "priority_weight"}
    assert set(info) == keys
    for key in keys:
        assert torch.equal(info[key], batch[key])
    plain = ours()
    plain.extend(rows(8))
    batch, info = plain.sample(4, return_info=True)
    assert set(info) == {"index", "index_generation"}
    assert torch.equal(info["index"], batch["index"])


def test_a_loss_of_torchrl_reads_the_weights_and_writes_the_priorities():
    torch.manual_seed(0)
    never = torch.zeros(8, 1, dtype=torch.bool)
    after = {"observation": torch.randn(8, 3), "reward": torch.randn(8, 1)}
    after |= {"done": never, "terminated": never}
    data = {"observation": torch.randn(8, 3), "action": torch.arange(8) % 2, "next": after}
    rb = ours(sampler=RAW)
    rb.extend(TensorDict(data, batch_size=[8]))
    rb.update_priority(torch.arange(8), GIVEN)
    network = torch.nn.Linear(3, 2)
    actor = QValueActor(network, in_keys=["observation"], action_space="categorical")
    loss = DQNLoss(actor, action_space="categorical", delay_value=False)
    loss.make_value_estimator(gamma=0.9)
    batch = rb.sample(4)
    weight = batch["priority_weight"]
    assert len(set(weight.tolist())) > 1
    value = loss(batch)["loss"]
    error = batch["td_error"].squeeze(-1)
    torch.testing.assert_close(value, (error * weight).sum() / weight.sum())
    plain = loss(batch.exclude("priority_weight", "_weight"))["loss"]
    torch.testing.assert_close(plain, error.mean())
    assert abs(float(value - plain)) > 1e-3
    value.backward()
    assert network.weight.grad is not None
    rb.update_tensordict_priority(batch)
    wanted = dict(enumerate(GIVEN.tolist()))
    wanted |= dict(zip(batch["index"].tolist(), error.tolist(), strict=True))
    assert priorities(rb)[:8] == [wanted[slot] for slot in range(8)]


# Transforms.


def seen(data):
    """Rows with something to see."""
    count = len(data)
    pixels = torch.arange(count * 12, dtype=torch.uint8).reshape(count, 2, 2, 3)
    return data.update({"observation": torch.arange(count * 2.0).reshape(count, 2), "p": pixels})


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
    plain, given, appended = ours(), ours(transform=make()), ours()
    assert appended.append_transform(make()) is appended
    wanted = None
    for rb in (plain, given, appended):
        rb.extend(seen(rows(8)))
        batch = rb.sample(4)
        if wanted is None:
            wanted = by_hand(batch)
        assert_same(batch, wanted)
    assert sorted(stored(plain)) == sorted(stored(given)) == ["next", "number", "observation", "p"]


class Told(Transform):
    """Tells when it is called, and with what."""

    def __init__(self, name, told):
        super().__init__()
        self.name, self.told = name, told

    def forward(self, data):
        assert not self.training
        self.told.append((self.name, "out", tuple(data.batch_size), "number" in data.keys()))  # noqa: SIM118
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
        rb.sample(4)
    mine, peer = told.values()
    assert mine == peer
    assert [name for name, *_ in mine] == [*"bcad", *"dacb"]


def test_a_transform_is_called_with_what_was_stored_and_before_the_rest_is_set():
    def meddle(batch):
        keys.append(set(batch.keys()))
        return batch.set("index", torch.full((4,), 99)).set("_weight", torch.zeros(4))

    keys = []
    rb, plain = filled(transform=meddle), filled()
    assert_same(rb.sample(4), plain.sample(4))
    assert keys == [{"number", "next"}]


class Halves(Transform):
    """Stores the reward in another dtype and under another key."""

    def forward(self, data):
        return data.set("reward", data.pop("halved").double() * 2)

    def _inv_call(self, data):
        return data.set("halved", (data["next", "reward"] / 2).half()).exclude("next")


def test_inverses_are_called_with_what_is_written():
    mine, peer = ours(transform=Halves()), theirs(transform=Halves())
    data = rows(8)
    for rb in (mine, peer):
        assert rb.extend(data).tolist() == list(range(8))
        assert rb.add(rows(1, 8)[0]) == 8
    assert_same(data, rows(8))  # which the caller does not notice
    assert sorted(stored(mine)) == ["halved", "number"]
    assert stored(mine, "halved")[:9] == [[number / 16] for number in range(9)]
    batch = mine.sample(4)
    found = set(leaves(batch)) - {("index_generation",)}
    assert found == set(leaves(peer.sample(4)))
    assert batch["reward"].dtype == torch.float64
    assert torch.equal(batch["reward"][:, 0], batch["number"] / 8)


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
        assert mine.extend(data).shape == wanted.shape
        assert len(mine) == len(peer)
        start += count
    batch, known = mine.sample(16), peer[:]
    for key, leaf in leaves(known).items():
        if key != ("index",):
            assert torch.equal(batch[key], leaf[batch["index"]]), key


# Iteration.


def test_iteration_has_no_end():
    rb, same = ours(batch_size=4), ours(batch_size=4)
    rb.extend(rows(8))
    same.extend(rows(8))
    assert rb.batch_size == 4
    for batch in itertools.islice(rb, 3):
        assert_same(batch, same.sample())
    for _ in range(3):
        assert_same(rb.next(), same.sample())
    assert len(rb.sample(2)) == 2


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_epoch_has_every_row_once(prefetch):
    rb = ours(sampler=fbuf.Shuffled(), batch_size=5, prefetch=prefetch)
    rb.extend(rows(10))
    orders = []
    for _ in range(3):
        numbers = [batch["number"].tolist() for batch in rb]
        assert [len(part) for part in numbers] == [5, 5]
        orders.append(tuple(itertools.chain(*numbers)))
    for _ in range(2):
        batches = [rb.next() for _ in range(3)]
        assert batches.pop() is None
        orders.append(tuple(itertools.chain(*[batch["number"].tolist() for batch in batches])))
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len(set(orders)) == len(orders)


def test_the_last_batch_of_an_epoch_has_no_rows_too_many():
    mine = ours(sampler=fbuf.Shuffled(), batch_size=4)
    peer = theirs(sampler=SamplerWithoutReplacement(), batch_size=4)
    for rb in (mine, peer):
        rb.extend(rows(10))
        batches = list(rb)
        assert [len(batch) for batch in batches] == [4, 4, 2]
        assert sorted(torch.cat([batch["number"] for batch in batches]).tolist()) == [*range(10)]


def test_a_batch_has_no_rows_that_were_not_drawn():
    rb = ours(sampler=fbuf.Uniform(window=2), view=fbuf.Sequence(2))
    rb.extend(rows(1))
    assert len(rb) == 1
    assert not rb.can_sample()
    with contextlib.suppress(RuntimeError):  # to say so is as good as to give none
        assert (rb.sample(4)["index"] >= 0).all()


# Where episodes end.

LENGTHS = (3, 2, 4)
EPISODE = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS))
ENDS = torch.tensor([2, 4])
STARTS = {0, 1, 3, 5, 6, 7}
FLAGS = ("terminated", "truncated", "done")


def episodes(told, lacking=(), column=True):
    """Three of them, whose ends are told by these flags, in turn."""
    flags = {name: torch.zeros(9, dtype=torch.bool) for name in FLAGS if name not in lacking}
    for place, end in enumerate(ENDS):
        flags[told[place % len(told)]][end] = True
    if column:
        flags = {name: flag.unsqueeze(-1) for name, flag in flags.items()}
    data = {"t": torch.arange(9), "episode": EPISODE, "next": flags}
    return TensorDict(data, batch_size=[9])


CASES = {
    "terminated": (("terminated",), (), True),
    "truncated": (("truncated",), (), True),
    "either": (("terminated", "truncated"), (), True),
    "done": (("done",), ("terminated", "truncated"), True),
    "no column": (("truncated", "terminated"), ("done",), False),
}


def pairs():
    return ours(sampler=fbuf.Uniform(window=2), view=fbuf.Sequence(2), batch_size=64)


def assert_whole(rb):
    batch = rb.sample()
    steps, episode = batch["item", "t"], batch["item", "episode"]
    assert torch.equal(steps[:, 1], steps[:, 0] + 1)
    assert torch.equal(episode[:, 1], episode[:, 0])
    assert set(steps[:, 0].tolist()) == STARTS


@pytest.mark.parametrize("case", CASES)
def test_two_steps_are_of_one_episode(case):
    rb = pairs()
    rb.extend(episodes(*CASES[case]))
    assert_whole(rb)


def test_two_steps_are_of_one_episode_if_added_one_by_one():
    rb = pairs()
    for item in episodes(("terminated", "truncated")):
        rb.add(item)
    assert_whole(rb)


def test_done_does_not_matter_where_the_others_are_told():
    rb = pairs()
    rb.extend(episodes(("done",)))
    assert set(rb.sample()["item", "t"][:, 0].tolist()) == set(range(8))


# Empty.


def test_empty():
    rb, peer = filled(), theirs()
    peer.extend(rows(8))
    old = rb.sample(16)
    rb.empty()
    peer.empty()
    assert len(rb) == len(peer) == 0
    assert not rb.can_sample(4)
    with pytest.raises(RuntimeError, match="empty"):
        rb.sample(4)
    assert rb.extend(rows(8, 20)).tolist() == peer.extend(rows(8, 20)).tolist()
    old["td_error"] = torch.full((16,), 9.0)
    rb.update_tensordict_priority(old)
    assert priorities(rb)[:8] == [1] * 8
    batch = rb.sample(4)
    assert torch.equal(batch["number"], batch["index"] + 20)


def test_empty_counts_anew():
    rb, peer = filled(), theirs()
    peer.extend(rows(8))
    rb.empty()
    peer.empty()
    assert rb.write_count == peer.write_count == 0


def test_a_new_buffer_is_empty():
    rb, peer = ours(), theirs()
    assert len(rb) == len(peer) == 0
    assert rb.write_count == peer.write_count == 0
    assert rb.can_sample() is False
    with pytest.raises(RuntimeError, match="nothing has been added"):
        rb.sample(4)
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


def agent(prefetch, scale=2.0, seed=3, sampler=RAW):
    norm = ObservationNorm(loc=0.0, scale=scale, in_keys=[("next", "reward")])
    return ours(sampler=sampler, batch_size=4, seed=seed, prefetch=prefetch, transform=norm)


def go_on(rb):
    """What a learner does next: everything that comes of it."""
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


def by_dict(one, other, path):
    other.load_state_dict(one.state_dict())


def by_torch(one, other, path):
    torch.save(one.state_dict(), path / "rb.pt")
    other.load_state_dict(torch.load(path / "rb.pt", weights_only=True))


def by_dumps(one, other, path):
    one.dumps(path / "some" / "rb")
    assert os.listdir(path / "some" / "rb") == ["buffer.pt"]
    other.loads(str(path / "some" / "rb"))


@pytest.mark.parametrize("way", [by_dict, by_torch, by_dumps])
@pytest.mark.parametrize("times", [1, 2], ids=["before the end", "around the end"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_comes_next_is_the_same(prefetch, times, way, tmp_path):
    rb = agent(prefetch)
    for _ in range(times):
        rb.extend(rows(8, rb.write_count))
        batch = rb.sample()
        batch["td_error"] = batch["number"].float()
        rb.update_tensordict_priority(batch)
    new, old = agent(prefetch, scale=7.0, seed=4), agent(prefetch, scale=7.0, seed=4)
    old.extend(rows(8, 50))  # which is forgotten
    old.sample()
    way(rb, new, tmp_path)
    way(rb, old, tmp_path)
    assert len(new) == len(old) == len(rb)
    wanted = go_on(rb)
    assert_all_same(go_on(new), wanted)
    assert_all_same(go_on(old), wanted)
    assert wanted[0]["next", "reward"].squeeze(-1).tolist() == [
        number / 4 for number in wanted[0]["number"].tolist()
    ]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_what_was_saved_is_nobody_elses(prefetch):
    rb = agent(prefetch)
    rb.extend(rows(8))
    rb.sample()
    saved = rb.state_dict()
    wanted = go_on(rb)
    for _ in range(2):
        new = agent(prefetch)
        new.load_state_dict(saved)
        for batch in (told := go_on(new)):
            assert batch is not None
        assert_all_same(told, wanted)
        new.extend(rows(8, 70))
        new.sample().zero_()


def test_what_was_saved_of_a_transform_is_nobody_elses():
    rb = agent(0)
    rb.extend(rows(8))
    saved = rb.state_dict()
    rb._transforms[0].scale.fill_(100.0)
    new = agent(0, scale=7.0)
    new.load_state_dict(saved)
    batch = new.sample()
    assert torch.equal(batch["next", "reward"].squeeze(-1), batch["number"] / 4)


def test_what_a_view_made_is_saved_too(tmp_path):
    def make():
        return ours(sampler=fbuf.Uniform(window=2), view=fbuf.Sequence(2), batch_size=4, prefetch=1)

    rb, new = make(), make()
    rb.extend(rows(8))
    rb.sample()
    rb.dumps(tmp_path)
    new.loads(tmp_path)
    assert_all_same([rb.sample() for _ in range(3)], [new.sample() for _ in range(3)])


def test_a_dump_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    def half(saved, file):
        file.write(b"half of it")
        raise OSError("no space left")

    rb = agent(0)
    rb.extend(rows(8))
    rb.dumps(tmp_path)
    saved = (tmp_path / "buffer.pt").read_bytes()
    first, wanted = agent(0), go_on(rb)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", half)
        with pytest.raises(OSError, match="no space left"):
            rb.dumps(tmp_path)
    assert (tmp_path / "buffer.pt").read_bytes() == saved
    first.loads(tmp_path)
    assert_all_same(go_on(first), wanted)
    rb.dumps(tmp_path)
    assert os.listdir(tmp_path) == ["buffer.pt"]
    assert (tmp_path / "buffer.pt").read_bytes() != saved


def test_what_does_not_fit_is_not_loaded():
    rb = agent(0)
    rb.extend(rows(8))
    saved = rb.state_dict()
    before = rb.sample()
    with pytest.raises(ValueError, match="1 transforms, and are 0"):
        filled().load_state_dict(saved)
    other = TensorDictReplayBuffer(7, sampler=RAW, transform=lambda batch: batch)
    with pytest.raises(ValueError, match="'capacity': 10"):
        other.load_state_dict(saved)
    for wrong in (saved | {"transforms": []}, saved | {"buffer": saved["buffer"] | {"version": 0}}):
        with pytest.raises(ValueError, match="load_state_dict"):
            rb.load_state_dict(wrong)
    again = agent(0)
    again.load_state_dict(saved)
    assert_same(again.sample(), before)
    assert_same(again.sample(), rb.sample())  # nothing of rb has changed


# Ahead.


def test_batches_ahead_are_the_same():
    now, ahead = agent(0), agent(2)
    for rb in (now, ahead):
        rb.extend(rows(8))
    for _ in range(4):
        assert_same(ahead.sample(), now.sample())


def test_batches_ahead_are_those_of_their_time():
    rb = ours(batch_size=4, prefetch=2)
    rb.extend(rows(10))
    first = [rb.sample()]
    rb.extend(rows(10, 10))
    batches = first + [rb.sample() for _ in range(3)]
    assert [int(batch["number"].min()) >= 10 for batch in batches] == [False, False, False, True]
    with pytest.raises(ValueError, match="drawn ahead"):
        rb.sample(5)
    with pytest.raises(ValueError, match="batch_size"):
        ours(prefetch=1)


# What is refused.


def refused(error, match, function, *arguments):
    with pytest.raises(error, match=match):
        function(*arguments)


@pytest.mark.parametrize("data", [{"number": torch.ones(3)}, torch.ones(3), None], ids=type)
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
    refused(InteropError, r"items\['more'\] is new", rb.extend, rows(8, more=torch.ones(8)))
    missing = rows(8).exclude(("next", "reward"))
    refused(InteropError, r"items\['next'\]\['reward'\] is missing", rb.extend, missing)
    assert (len(rb), rb.write_count) == (8, 8)
    assert rb.extend(rows(8)).tolist() == [8, 9, 0, 1, 2, 3, 4, 5]


CHANGES = {
    "shape": (torch.ones(8, 3), torch.ones(8, 4)),
    "float64 to pairs": (torch.ones(8).double(), torch.ones(8, 2, dtype=torch.int32)),
    "pairs to float64": (torch.ones(8, 2, dtype=torch.int32), torch.ones(8).double()),
    "float32 to float64": (torch.ones(8), torch.ones(8).double()),
    "float64 to float32": (torch.ones(8).double(), torch.ones(8)),
    "float32 to int64": (torch.ones(8), torch.ones(8).long()),
    "int64 to int32": (torch.ones(8).long(), torch.ones(8).int()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_shape_or_dtype(change):
    before, after = CHANGES[change]
    rb = ours()
    rb.extend(rows(8, x=before))
    refused((TypeError, ValueError), "x", rb.extend, rows(8, x=after))
    assert rb.write_count == 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128], ids=str)
def test_what_requires_grad(dtype):
    data = rows(8, x=torch.ones(8, dtype=dtype, requires_grad=True))
    refused(InteropError, r"\['x'\].*requires grad.*\.detach", ours().extend, data)
    rb = ours()
    rb.extend(data.detach())
    assert not rb.sample(2)["x"].requires_grad


def test_an_integer_that_does_not_fit():
    rb = ours()
    wide = torch.arange(8) + 2**31 - 7
    refused(InteropError, r"\['x'\].*does not", rb.extend, rows(8, x=wide))
    rb.extend(rows(8, x=wide - 1))
    refused(InteropError, r"\['x'\].*does not", rb.extend, rows(8, x=wide))
    assert len(rb) == rb.write_count == 8
    assert int(rb.sample(64)["x"].max()) == 2**31 - 1


def test_a_batch_without_priorities_or_ids():
    rb = filled()
    batch = rb.sample(4)
    refused(InteropError, "no 'td_error'.*priority_key", rb.update_tensordict_priority, batch)
    batch["td_error"] = torch.full((4,), 9.0)
    for key in ("index", "index_generation"):
        lacking = batch.exclude(key)
        refused(InteropError, f"no '{key}'", rb.update_tensordict_priority, lacking)
    assert priorities(rb)[:8] == [1] * 8


def test_no_batch_size():
    rb = ours()
    rb.extend(rows(8))
    for function in (rb.sample, lambda: next(iter(rb)), rb.next):
        refused(ValueError, "batch_size", function)


def test_a_closed_buffer():
    rb = filled(batch_size=4, prefetch=1)
    batch = rb.sample()
    batch["td_error"] = torch.ones(4)
    rb.close()
    rb.close()
    calls = {
        rb.extend: [rows(8)],
        rb.add: [rows(1)[0]],
        rb.sample: [],
        rb.next: [],
        rb.empty: [],
        rb.state_dict: [],
        rb.stats: [],
        rb.can_sample: [],
        rb.__len__: [],
        rb.update_priority: [[0], 1.0],
        rb.update_tensordict_priority: [batch],
    }
    for function, arguments in calls.items():
        refused(RuntimeError, "closed", function, *arguments)
    assert torch.equal(batch["number"], batch["index"])  # what was given out stays
