"""Buffers of TorchRL's made into ours, and the programs they come from with one line more."""

import itertools

import pytest

import fbuf

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")
pytest.importorskip("torchrl")

from fbuf_adapters.pytorch import InteropError  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch._spec import drawn_seed  # noqa: E402 (after the skip)
from fbuf_adapters.tensordict import TensorDictReplayBuffer, from_torchrl  # noqa: E402 (after the skip)
from support import buffers  # noqa: E402 (after the skip)
from tensordict import TensorDict  # noqa: E402 (after the skip)
from torchrl.data import (  # noqa: E402 (after the skip)
    LazyMemmapStorage,
    LazyTensorStorage,
    ListStorage,
    PrioritizedSampler,
    PrioritizedSliceSampler,
    ReplayBuffer,
    SliceSampler,
    SliceSamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
)
from torchrl.data import TensorDictReplayBuffer as Theirs  # noqa: E402 (after the skip)
from torchrl.data.replay_buffers.samplers import (  # noqa: E402 (after the skip)
    RandomSampler,
    SamplerWithoutReplacement,
)

try:
    PrioritizedSampler(4, 1.0, 1.0)
    BUILT = True
except RuntimeError:
    BUILT = False
needs_trees = pytest.mark.skipif(not BUILT, reason="TorchRL's extension does not load")

CAPACITY = 10


def rows(count, start=0, **more):
    t = torch.arange(start, start + count)
    return TensorDict({"t": t, **more}, batch_size=[count])


def theirs(kind=Theirs, storage=LazyTensorStorage, **options):
    return kind(storage=storage(CAPACITY), **options)


SAMPLERS = {
    "random": (RandomSampler, fbuf.Uniform()),
    "without replacement": (lambda: SamplerWithoutReplacement(True), fbuf.Shuffled()),
    "slices without replacement": (
        lambda: SliceSamplerWithoutReplacement(slice_len=2, strict_length=False),
        fbuf.Shuffled(window=2, by="episode", strict=False),
    ),
    "short slices": (
        lambda: SliceSampler(slice_len=2, strict_length=False, pad_output=True),
        fbuf.Uniform(window=2, by="episode", strict=False),
    ),
    "slices": (
        lambda: SliceSampler(num_slices=4),
        fbuf.Uniform(window=2, by="episode"),
    ),
    "of a length": (
        lambda: SliceSampler(slice_len=4, traj_key="run", cache_values=True),
        fbuf.Uniform(window=4, by="episode"),
    ),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers(name):
    make, expected = SAMPLERS[name]
    new = from_torchrl(theirs(sampler=make(), batch_size=8))
    assert new._spec.sampler == expected
    assert new.batch_size == 8
    assert new.capacity == CAPACITY


@needs_trees
def test_prioritised_samplers():
    sampler = PrioritizedSampler(CAPACITY, 0.7, 0.9, max_priority_within_buffer=True)
    rb = theirs(sampler=sampler)
    expected = fbuf.Prioritized(0.7, beta=0.9, eps=1e-8, normalize="buffer", new_priority="largest")
    assert from_torchrl(rb)._sampler == expected
    sampler = PrioritizedSliceSampler(CAPACITY, 0.7, 0.9, slice_len=2)
    found = from_torchrl(theirs(sampler=sampler, batch_size=8))._sampler
    assert found == fbuf.Prioritized(
        0.7, beta=0.9, eps=1e-8, normalize="buffer", new_priority="largest_ever", window=2
    )


@pytest.mark.sweep
def test_options():
    def twice(batch):
        return batch.set("twice", batch["t"] * 2)

    rb = theirs(
        batch_size=8,
        priority_key=("next", "error"),
        prefetch=2,
        transform=twice,
        generator=torch.Generator().manual_seed(7),
    )
    new = from_torchrl(rb)
    assert new._writer._priority_key == ("next", "error")
    new.extend(rows(8))
    batch = new.sample()
    assert torch.equal(batch["twice"], batch["t"] * 2)
    seed = drawn_seed(torch.Generator().manual_seed(7))
    other = TensorDictReplayBuffer(CAPACITY, batch_size=8, seed=seed)
    other.extend(rows(8))
    assert torch.equal(batch["t"], other.sample()["t"])
    new.close()
    assert from_torchrl(rb).buffer.seed != seed  # the next one of its generator
    torch.manual_seed(7)
    assert from_torchrl(theirs()).buffer.seed == seed
    assert from_torchrl(theirs()).buffer.seed != seed
    assert from_torchrl(theirs(), seed=11).buffer.seed == 11


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "count", "storage"),
    [
        (ReplayBuffer, 13, ListStorage),
        *(
            pytest.param(*case, marks=pytest.mark.sweep)
            for case in itertools.product(
                (ReplayBuffer, Theirs),
                (6, 10, 13),
                (LazyTensorStorage, ListStorage, LazyMemmapStorage),
            )
        ),
    ],
)
def test_rows_keep_their_places(kind, count, storage):
    rb = theirs(kind, storage)
    for row in rows(count, wide=torch.arange(count).double() / 3):
        rb.add(row)
    new = from_torchrl(rb)
    assert len(new) == min(count, CAPACITY)
    assert new.write_count == count
    there = rb[:] if storage is not ListStorage else torch.stack(list(rb[:]))
    assert torch.equal(new[:]["t"], there["t"])
    assert torch.equal(new[:]["wide"], there["wide"])
    more = rows(3, 50, wide=torch.zeros(3, dtype=torch.float64))
    for row in more:
        assert new.add(row) == rb.add(row)
    assert sorted(t for e in new.episodes() for t in e["t"].tolist()) == sorted(
        new[:]["t"].tolist()
    )


@pytest.mark.sweep
def test_episodes_are_not_joined_across_the_seam():
    """Ids are the same on both sides of it, and it lies in the middle of the storage."""
    rb = theirs(sampler=SliceSampler(slice_len=2), batch_size=2 * 64)
    for start in range(0, 15, 3):
        rb.extend(rows(3, start, episode=torch.full((3,), start % 2)))
    new = from_torchrl(rb)
    assert new[:]["t"].tolist() == rb[:]["t"].tolist() == [10, 11, 12, 13, 14, 5, 6, 7, 8, 9]
    pairs = new.sample()["t"].reshape(-1, 2)
    assert set(pairs[:, 0].tolist()) == {6, 7, 9, 10, 12, 13}
    assert torch.equal(pairs[:, 1], pairs[:, 0] + 1)
    new.extend(rows(3, 15, episode=torch.zeros(3, dtype=torch.int64)))
    assert [e["t"].tolist() for e in new.episodes()] == [
        [8],
        [9, 10, 11],
        [12, 13, 14, 15, 16, 17],
    ]


@pytest.mark.sweep
def test_environments():
    rb = Theirs(
        storage=LazyTensorStorage(12, ndim=2), sampler=SliceSampler(slice_len=2), batch_size=64
    )
    with pytest.raises(ValueError, match=r"ndim=2 and is empty.*give num_envs"):
        from_torchrl(rb)
    assert from_torchrl(rb, num_envs=5).capacity == 15
    for start in (0, 4):
        t = torch.arange(start, start + 4).expand(2, 4) + torch.tensor([[0], [100]])
        done = torch.zeros(2, 4, 1, dtype=torch.bool)
        rb.extend(TensorDict({"t": t, "next": {"done": done}}, batch_size=[2, 4]))
    new = from_torchrl(rb)
    assert new.capacity == 12
    assert new[:]["t"].tolist() == rb[:]["t"].tolist()
    pairs = new.sample()["t"].reshape(-1, 2)
    assert torch.equal(pairs[:, 1], pairs[:, 0] + 1)
    assert 7 not in pairs[:, 0]
    with pytest.raises(ValueError, match="holds 2 environments"):
        from_torchrl(rb, num_envs=3)


@needs_trees
@pytest.mark.parametrize("count", [6, 13])
def test_priorities_are_kept(count):
    rb = theirs(TensorDictPrioritizedReplayBuffer, alpha=0.7, beta=0.9, batch_size=16)
    rb.extend(rows(count))
    size = min(count, CAPACITY)
    rb.update_priority(torch.arange(size), torch.arange(1.0, size + 1))
    rb.update_priority(torch.tensor([0]), torch.tensor([20.0]))
    rb.update_priority(torch.tensor([0]), torch.tensor([1.0]))
    new = from_torchrl(rb)
    stored = rb.sampler._sum_tree[torch.arange(size)]
    assert buffers.priorities(new.buffer.state)[:size] == pytest.approx(stored.tolist(), rel=1e-5)
    batch = new.sample()
    wanted = (torch.as_tensor(stored)[batch["index"]] / stored.min()) ** -0.9
    torch.testing.assert_close(batch["_weight"], wanted.float(), rtol=1e-4, atol=1e-5)
    new.extend(rows(1, 50))
    slot = count % CAPACITY
    assert buffers.priorities(new.buffer.state)[slot] == pytest.approx(20**0.7, rel=1e-5)


REFUSED = {
    "an object": (lambda: [], "rb is a list"),
    "a subclass": (lambda: theirs(type("Mine", (Theirs,), {})), "rb is a Mine"),
    "a writer": (lambda: theirs(writer=TensorDictMaxValueWriter()), "TensorDictMaxValueWriter"),
    "span": (lambda: theirs(sampler=SliceSampler(slice_len=2, span=True)), "span"),
    "order": (lambda: theirs(sampler=SamplerWithoutReplacement(shuffle=False)), "shuffle=False"),
    "collate_fn": (lambda: theirs(collate_fn=lambda rows: rows), "collate_fn"),
    "num_slices": (lambda: theirs(sampler=SliceSampler(num_slices=2)), "no batch_size"),
    "static": (
        lambda: theirs(
            sampler=SliceSampler(slice_len=2, ends=torch.ones(4).bool(), cache_values=True)
        ),
        "ends or trajectories",
    ),
    "no TensorDicts": (lambda: _tensors(), "no TensorDicts"),
    "endless": (lambda: Theirs(storage=ListStorage()), "max_size"),
}


def _tensors():
    rb = theirs(ReplayBuffer)
    rb.extend(torch.arange(4))
    return rb


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_carried_over_is_named(name):
    make, match = REFUSED[name]
    with pytest.raises(InteropError, match=f"from_torchrl: .*{match}.*cannot be carried over; "):
        from_torchrl(make())


# Programs of TorchRL's, with one line more.


@pytest.mark.sweep
def test_the_trajectories_of_the_tutorial():
    rb = Theirs(
        storage=LazyTensorStorage(10_000),
        sampler=SliceSampler(traj_key="episode", num_slices=4),
        batch_size=8,
    )
    rb = from_torchrl(rb)
    episode = torch.zeros(10, dtype=torch.int)
    episode[:3] = 1
    episode[3:5] = 2
    episode[5:7] = 3
    episode[7:] = 4
    steps = torch.cat([torch.arange(3), torch.arange(2), torch.arange(2), torch.arange(3)])
    data = TensorDict(
        {
            "episode": episode,
            "obs": torch.randn((3, 4, 5)).expand(10, 3, 4, 5),
            "act": torch.randn((20,)).expand(10, 20),
            "other": torch.randn((20, 50)).expand(10, 20, 50),
            "steps": steps,
        },
        [10],
    )
    rb.extend(data)
    seen = set()
    for _ in range(8):
        sample = rb.sample()
        assert sample.batch_size == (8,)
        assert torch.equal(sample["obs"], data["obs"][sample["index"]])
        numbers, steps = sample["episode"].reshape(4, 2), sample["steps"].reshape(4, 2)
        assert torch.equal(numbers[:, 0], numbers[:, 1])
        assert torch.equal(steps[:, 0] + 1, steps[:, 1])
        seen |= set(numbers[:, 0].tolist())
    assert seen == {1, 2, 3, 4}


@pytest.mark.sweep
def test_episodes_as_a_world_model_takes_them():
    """As TD-MPC2: whole episodes with an id and no flags, 256 slices of 4 steps, time first."""
    horizon, batch_size = 3, 256
    rb = ReplayBuffer(
        storage=LazyTensorStorage(2_000),
        sampler=SliceSampler(
            num_slices=batch_size,
            end_key=None,
            traj_key="episode",
            truncated_key=None,
            strict_length=True,
            cache_values=False,
        ),
        batch_size=batch_size * (horizon + 1),
    )
    rb = from_torchrl(rb)
    for number in range(30):
        td = TensorDict(
            {
                "obs": number * 1000.0 + torch.arange(101).unsqueeze(-1),
                "action": torch.rand(101, 6),
                "reward": torch.rand(101),
            },
            batch_size=[101],
        )
        td["episode"] = torch.full_like(td["reward"], number, dtype=torch.int64)
        rb.extend(td)
        batch = rb.sample().view(-1, horizon + 1).permute(1, 0)
        obs = batch["obs"]
        assert obs.shape == (horizon + 1, batch_size, 1)
        assert torch.equal(obs[1:], obs[:-1] + 1)
        assert int(obs.max()) // 1000 <= number
    assert len(set((obs[0, :, 0] // 1000).tolist())) > 15
