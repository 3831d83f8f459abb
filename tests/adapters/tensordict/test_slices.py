"""Batches of slices, beside those of TorchRL's slice samplers."""

import pytest

import fbuf

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")
pytest.importorskip("torchrl")

from fbuf_adapters.tensordict import TensorDictReplayBuffer  # noqa: E402 (after the skip)
from support import buffers  # noqa: E402 (after the skip)
from tensordict import TensorDict  # noqa: E402 (after the skip)
from torchrl.data import LazyTensorStorage, PrioritizedSliceSampler, SliceSampler  # noqa: E402 (after the skip)
from torchrl.data import TensorDictReplayBuffer as Theirs  # noqa: E402 (after the skip)

CAPACITY, LENGTH, SLICES = 24, 3, 32
ROWS = LENGTH * SLICES
LENGTHS = (5, 2, 1, 4, 8)
EPISODE = torch.repeat_interleave(torch.arange(5), torch.tensor(LENGTHS))
STEP = torch.cat([torch.arange(length) for length in LENGTHS])
COUNT = len(EPISODE)
WHOLE = {t for t in range(COUNT) if t + 2 < COUNT and EPISODE[t] == EPISODE[t + 2]}
"""Where slices of three steps may begin."""
EXACT = {"alpha": 1.0, "beta": 1.0, "eps": 0.0}


def ours(sampler=None, boundary="stop", **options):
    sampler = sampler or fbuf.Uniform(window=LENGTH, by="episode")
    view = fbuf.Sequence(LENGTH, boundary=boundary)
    return TensorDictReplayBuffer(
        CAPACITY, sampler=sampler, view=view, **{"batch_size": ROWS, "seed": 0, **options}
    )


def ragged(slices="flat", **options):
    """Slices that are shorter than three steps where their episodes are."""
    sampler = fbuf.Uniform(window=LENGTH, by="episode", strict=False)
    return ours(sampler, boundary="pad", slices=slices, **options)


def theirs(sampler):
    return Theirs(storage=LazyTensorStorage(CAPACITY), sampler=sampler, batch_size=ROWS)


def trajectories(*flags, start=0):
    """All kinds of leaves; the flags that are named say where episodes end, as the ids do."""
    ended = torch.cat([EPISODE[1:] != EPISODE[:-1], torch.ones(1, dtype=torch.bool)])
    data = {
        "t": torch.arange(start, start + COUNT),
        "episode": EPISODE,
        "step": STEP.unsqueeze(-1),
        "wide": torch.rand(COUNT, 2, dtype=torch.float64),
        "image": torch.arange(COUNT, dtype=torch.uint8).reshape(-1, 1, 1).expand(-1, 2, 2),
        "next": {name: ended.unsqueeze(-1) for name in flags},
    }
    return TensorDict(data, batch_size=[COUNT])


def form(data):
    """Return all that a program can tell of a batch without its values."""
    data = data.exclude("index_generation", "_weight")
    data["index"] = slots(data)  # theirs are [rows, 1]
    found = data.items(True, True)
    return {key: (tuple(leaf.shape), leaf.dtype) for key, leaf in found}


def slots(batch):
    return batch["index"].reshape(len(batch))


def check(batch, given, lengths, terminated=None):
    """Rows of slices of so many steps are what was stored, and marked as they should be."""
    assert len(batch) == int(lengths.sum())
    slot = slots(batch)
    for key in ("t", "episode", "step", "wide", "image"):
        assert torch.equal(batch[key], given[key][slot % COUNT]), key
        assert batch[key].dtype == given[key].dtype
    first = torch.zeros(len(batch), dtype=torch.bool)
    last = first.clone()
    ends = lengths.cumsum(0)
    first[ends - lengths], last[ends - 1] = True, True
    assert torch.equal(batch["t"][1:][~first[1:]], batch["t"][:-1][~first[1:]] + 1)
    assert torch.equal(batch["episode"][1:][~first[1:]], batch["episode"][:-1][~first[1:]])
    assert torch.equal(batch["next", "truncated"], last.unsqueeze(-1))
    return first, last


@pytest.mark.sweep
@pytest.mark.parametrize(
    "flags",
    [
        ("done",),
        pytest.param((), marks=pytest.mark.sweep),
        pytest.param(("terminated", "done", "truncated"), marks=pytest.mark.sweep),
    ],
    ids=str,
)
def test_slices_are_laid_out_as_those_of_torchrl(flags):
    given = trajectories(*flags)
    mine, peer = ours(), theirs(SliceSampler(slice_len=LENGTH))
    for rb in (mine, peer):
        rb.extend(given.clone())
        batch, info = rb.sample(return_info=True)
        _, last = check(batch, given, torch.full((SLICES,), LENGTH))
        told = given["next", "done"][slots(batch)] if "done" in flags else torch.zeros(ROWS, 1)
        assert torch.equal(batch["next", "done"], told.bool() | last.unsqueeze(-1))
        told = "terminated" in flags and given["next", "terminated"][slots(batch)]
        assert torch.equal(batch["next", "terminated"], torch.zeros(ROWS, 1).bool() | told)
        assert {t for t in batch["t"].reshape(-1, LENGTH)[:, 0].tolist()} <= WHOLE
        assert {("next", "truncated"), ("next", "done"), ("next", "terminated")} < set(info)
    assert form(mine.sample()) == form(peer.sample())
    drawn = {t for _ in range(4) for t in mine.sample()["t"].reshape(-1, LENGTH)[:, 0].tolist()}
    assert drawn == WHOLE


@pytest.mark.sweep
def test_slices_around_the_end_name_their_rows():
    rb = ours(fbuf.Prioritized(window=LENGTH, **EXACT))
    for start in (0, COUNT, 2 * COUNT):
        rb.extend(trajectories(start=start))
    batch = rb.sample()
    assert torch.equal(batch["t"] % CAPACITY, batch["index"])
    assert torch.equal(batch["t"] // CAPACITY, batch["index_generation"])
    assert int(batch["index_generation"].max()) == 2
    assert set(batch["t"].tolist()) <= set(range(3 * COUNT - CAPACITY, 3 * COUNT))


@pytest.mark.sweep
def test_short_slices_are_whole_and_make_the_batch_shorter():
    rb, given = ragged(), trajectories()
    rb.extend(given)
    batch = rb.sample()
    ends = batch["next", "truncated"][:, 0].nonzero()[:, 0]
    lengths = torch.diff(ends, prepend=torch.tensor([-1]))
    first, _ = check(batch, given, lengths)
    assert len(lengths) == SLICES
    assert set(lengths.tolist()) == {1, 2, 3}
    episode = batch["episode"][first]
    assert torch.equal(lengths, torch.tensor(LENGTHS)[episode].clamp(max=LENGTH))
    assert set(batch["t"][first].tolist()) <= WHOLE | {5, 7}  # these are whole episodes


@pytest.mark.sweep
def test_slices_may_begin_anywhere():
    rb, given = ours(fbuf.Uniform(), boundary="pad"), trajectories()
    rb.extend(given)
    batch = rb.sample()
    ends = batch["next", "truncated"][:, 0].nonzero()[:, 0]
    lengths = torch.diff(ends, prepend=torch.tensor([-1]))
    first, _ = check(batch, given, lengths)
    left = torch.tensor(LENGTHS)[batch["episode"][first]] - batch["step"][first, 0]
    assert torch.equal(lengths, left.clamp(max=LENGTH))
    assert set(batch["t"][first].tolist()) - WHOLE


@pytest.mark.sweep
@pytest.mark.parametrize("drop_last", [False, True])
def test_an_epoch_has_a_slice_of_every_episode(drop_last):
    """And its last batch is short, or left out."""
    sampler = fbuf.Shuffled(window=LENGTH, by="episode")
    rb = ours(sampler, batch_size=2 * LENGTH, drop_last=drop_last)
    rb.extend(trajectories())
    seen = set()
    for _ in range(8):
        sizes, episodes = [], []
        for batch in rb:
            sizes.append(len(batch) // LENGTH)
            episodes += batch["episode"].reshape(-1, LENGTH)[:, 0].tolist()
            seen |= set(batch["t"].reshape(-1, LENGTH)[:, 0].tolist())
        assert sizes == ([2] if drop_last else [2, 1])
        assert len(set(episodes)) == len(episodes)
        assert set(episodes) <= {0, 3, 4}
    assert seen <= WHOLE
    assert len(seen) > 3


@pytest.mark.sweep
def test_short_slices_can_be_padded():
    """As TorchRL pads: with the last step, and a mask."""
    rb, given = ragged("padded"), trajectories()
    rb.extend(given)
    batch, info = rb.sample(return_info=True)
    assert len(batch) == ROWS
    mask = batch["collector", "mask"]
    assert (mask.shape, mask.dtype) == ((ROWS,), torch.bool)
    assert torch.equal(info["collector", "mask"], mask)
    lengths = mask.reshape(SLICES, LENGTH).sum(1)
    assert set(lengths.tolist()) == {1, 2, 3}
    check(batch[mask].exclude("collector"), given, lengths)
    assert not batch["next", "truncated"][~mask].any()
    last = (torch.arange(SLICES) * LENGTH + lengths - 1).repeat_interleave(LENGTH)
    for key in ("t", "wide", "image", "index", "index_generation"):
        assert torch.equal(batch[key][~mask], batch[key][last][~mask]), key
    peer = theirs(SliceSampler(slice_len=LENGTH, strict_length=False, pad_output=True))
    peer.extend(given.clone())
    assert form(batch) == form(peer.sample())


@pytest.mark.sweep
@pytest.mark.parametrize("padded", [True, False])
def test_first_steps_are_marked_where_the_key_is_stored(padded):
    rb, given = ragged("padded" if padded else "flat"), trajectories()
    rb.extend(given.set("is_init", (STEP == 0).unsqueeze(-1)))
    batch = rb.sample()
    batch = batch[batch["collector", "mask"]] if padded else batch
    ends = batch["next", "truncated"][:, 0]
    begun = torch.cat([torch.ones(1, dtype=torch.bool), ends[:-1]])
    assert torch.equal(batch["is_init"][:, 0], begun)
    rb = ragged()
    rb.extend(trajectories())
    assert "is_init" not in rb.sample().keys()  # noqa: SIM118 (a TensorDict has no `in`)


@pytest.mark.sweep
def test_marks_can_be_left_out_or_go_elsewhere():
    given = trajectories()
    rb = ours(truncated_key=None)
    rb.extend(given)
    assert ("next", "truncated") not in rb.sample().keys(True)
    rb = ours(truncated_key=("some", "cut"))
    rb.extend(given)
    assert rb.sample()["some", "cut"].reshape(SLICES, LENGTH).int().tolist() == [[0, 0, 1]] * SLICES


@pytest.mark.sweep
def test_nested_slices():
    rb = ours(slices="nested", batch_size=SLICES)
    rb.extend(trajectories())
    batch = rb.sample()
    assert batch.batch_size == (SLICES,)
    assert batch["item", "t"].shape == (SLICES, LENGTH)
    assert batch["item", "wide"].dtype == torch.float64
    assert torch.equal(batch["index"], batch["item", "t"][:, 0])


# Batch sizes.


@pytest.mark.sweep
def test_a_batch_size_counts_rows():
    rb = ours()
    rb.extend(trajectories())
    assert rb.batch_size == ROWS
    for size in (ROWS + 1, 2, 0):
        with pytest.raises(ValueError, match=r"sample: batch_size .* divisible .* length, 3, got"):
            rb.sample(size)
    with pytest.raises(ValueError, match=r"__init__: batch_size .* divisible"):
        ours(batch_size=ROWS + 1)
    for view in (fbuf.Sequence(2, burn_in=1), fbuf.Sequence(3, time_major=True)):
        with pytest.raises(ValueError, match=r"slices='nested'"):
            TensorDictReplayBuffer(CAPACITY, sampler=fbuf.Uniform(window=3), view=view)
    with pytest.raises(ValueError, match=r"slices must be 'flat', 'padded' or 'nested'"):
        ours(slices="stacked")


# Priorities.


def prioritised(**options):
    rb = ours(fbuf.Prioritized(window=LENGTH, **EXACT), **options)
    rb.extend(trajectories())
    rb.update_priority(torch.arange(COUNT), torch.arange(1.0, COUNT + 1))
    return rb


@pytest.mark.sweep
def test_all_rows_of_a_slice_have_its_weight():
    rb = prioritised()
    batch = rb.sample()
    weight = batch["_weight"].reshape(SLICES, LENGTH)
    assert torch.equal(weight, weight[:, :1].expand(-1, LENGTH))
    start = batch["t"].reshape(SLICES, LENGTH)[:, 0].float()
    torch.testing.assert_close(weight[:, 0], (start.min() + 1) / (start + 1))
    try:
        peer = theirs(PrioritizedSliceSampler(CAPACITY, 1.0, 1.0, slice_len=LENGTH))
    except RuntimeError:  # its extension does not load
        return
    peer.extend(trajectories())
    assert form(batch) == form(peer.sample())


def priorities(rb):
    return [abs(x) for x in buffers.priorities(rb.buffer.state)[:COUNT]]


@pytest.mark.sweep
def test_each_row_of_a_slice_gets_its_own_priority():
    rb = prioritised()
    batch = rb.sample()
    batch["td_error"] = batch["t"].unsqueeze(-1) + 100.0
    rb.update_tensordict_priority(batch)
    drawn = set(batch["t"].tolist())
    assert priorities(rb) == [t + (100 if t in drawn else 1) for t in range(COUNT)]


def test_the_first_row_of_a_reshaped_slice_gets_the_largest():
    rb = prioritised(transform=lambda batch: batch.reshape(SLICES, LENGTH))
    batch = rb.sample()
    assert batch["index"].shape == batch["_weight"].shape == (SLICES, LENGTH)
    assert batch["next", "truncated"].shape == (SLICES, LENGTH, 1)
    batch["td_error"] = batch["t"] + 100.0
    rb.update_tensordict_priority(batch)
    drawn = set(batch["t"][:, 0].tolist())
    assert priorities(rb) == [t + (102 if t in drawn else 1) for t in range(COUNT)]


@pytest.mark.sweep
def test_rows_that_only_pad_change_no_priority():
    sampler = fbuf.Prioritized(window=LENGTH, strict=False, **EXACT)
    rb = ours(sampler, boundary="pad", slices="padded")
    rb.extend(trajectories())
    batch = rb.sample()
    mask = batch["collector", "mask"]
    batch["td_error"] = torch.where(mask, batch["t"] + 100.0, 9999.0)
    rb.update_tensordict_priority(batch)
    drawn = set(batch["t"].tolist())
    assert not mask.all()
    assert priorities(rb) == [t + 100 if t in drawn else 1 for t in range(COUNT)]


def test_rows_of_slices_that_were_replaced_are_left_alone():
    rb = ours(fbuf.Prioritized(window=LENGTH, **EXACT))
    rb.extend(trajectories())
    batch = rb.sample()
    rb.extend(trajectories(start=COUNT))
    batch["td_error"] = torch.full((ROWS,), 7.0)
    rb.update_tensordict_priority(batch)
    drawn = set(batch["t"].tolist()) & set(range(2 * COUNT - CAPACITY, COUNT))
    found = [abs(x) for x in buffers.priorities(rb.buffer.state)]
    assert found == [7 if slot in drawn else 1 for slot in range(CAPACITY)]


# Transforms.


@pytest.mark.sweep
def test_a_transform_that_changes_the_number_of_rows_says_so():
    rb = ours(transform=lambda batch: batch[:5])
    rb.extend(trajectories())
    with pytest.raises(RuntimeError, match=r"made 5 rows of 96.*sample\(\) returns instead"):
        rb.sample()
