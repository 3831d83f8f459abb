"""Batches of any length: a handful of programs, and nothing of the padding is ever stored."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import ReplayBuffer  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.batches import _sizes  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.crossing import _time_major  # noqa: E402 (after the skip)
from support.buffers import EXACT, assert_same, priorities  # noqa: E402 (after the skip)

import fbuf  # noqa: E402 (after the skip)

ENVS = 3


def rows(first: int, *lead: int):
    """Rows that are their own numbers, and what comes after each."""
    n = torch.arange(first, first + int(np.prod(lead)), dtype=torch.int32).reshape(lead)
    return {"n": n, "x": n.float().unsqueeze(-1).expand(*lead, 2)}


def same(one, other):
    """Both buffers hold the same, in every bit."""
    assert_same(fbuf.rows(one.state), fbuf.rows(other.state))


@pytest.mark.parametrize(
    ("size", "step"),
    [(1, 16), (16, 16), (17, 64), (1025, 4096), (4097, 8192), (8193, 16384)],
)
def test_sizes_go_up_to_the_next_step(size, step):
    assert _sizes.next_step(size) == step


LAYOUTS = {
    "flat": ({}, False),
    "one": ({"num_envs": 1}, False),
    "steps": ({"num_envs": ENVS}, False),
    "time_major": ({"num_envs": ENVS}, True),
    "apart": ({"num_envs": ENVS, "lockstep": False}, False),
    "next_of": ({"next_of": "n"}, False),
}


@pytest.mark.sweep
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_added_at_once_is_what_is_added_row_by_row(layout):
    options, time_major = LAYOUTS[layout]
    flat = "num_envs" not in options
    options |= {"sampler": fbuf.Prioritized(window=2), "batch_size": 4, "seed": 0}
    at_once, one_by_one = (ReplayBuffer(30, **options) for _ in range(2))
    rng, first = np.random.default_rng(0), 0
    for count in (3, 1, 5, 12, 2, 20):
        lead = (count,) if flat else (count, options["num_envs"])
        items = rows(first, *lead)
        first += int(np.prod(lead))
        flags = {
            name: torch.from_numpy(rng.random(lead) < 0.2) for name in ("terminated", "truncated")
        }
        flags["priority"] = torch.from_numpy(rng.random(lead).astype(np.float32))
        if options.get("next_of"):
            flags["next_observation"] = items["n"] + 1
        turned = flat or time_major

        def given(leaf, turned=turned):
            return leaf if turned else leaf.transpose(0, 1)

        at_once.extend(
            {name: given(leaf) for name, leaf in items.items()},
            **{name: given(leaf) for name, leaf in flags.items()},
            time_major=time_major,
        )
        for step in range(count):
            one_by_one.add(
                {name: leaf[step] for name, leaf in items.items()},
                **{name: leaf[step] for name, leaf in flags.items()},
            )
        same(at_once, one_by_one)
        draws = [buffer.sample(beta=1.0) for buffer in (at_once, one_by_one)]
        assert_same(draws[0], draws[1])


@pytest.mark.sweep
def test_a_mask_of_the_user_goes_with_the_padding():
    options = {"sampler": fbuf.Uniform(), "batch_size": 4, "seed": 0}
    masked, chosen = ReplayBuffer(12, **options), ReplayBuffer(12, **options)
    masked.extend(rows(0, 2))
    chosen.extend(rows(0, 2))
    mask = torch.tensor([True, False, True, True, False])
    items = rows(2, 5)
    masked.extend(items, mask=mask)
    chosen.extend({name: leaf[mask] for name, leaf in items.items()})
    same(masked, chosen)


@pytest.mark.sweep
def test_ids_of_any_number_change_only_their_rows():
    buffer = ReplayBuffer(64, sampler=EXACT, batch_size=32)
    buffer.extend(rows(0, 40))
    for count in (32, 7, 1, 20):
        batch = buffer.sample()
        slots, at = np.unique(batch.ids.slot.numpy(), return_index=True)
        at = torch.from_numpy(at[:count])
        ids = fbuf.Ids(batch.ids.slot[at], batch.ids.generation[at])
        slots = slots[:count]
        buffer.update_priority(ids, torch.full((len(slots),), float(count)))
        buffer.write(ids, {"x": torch.full((len(slots), 2), -float(count))})
        stored = fbuf.rows(buffer.state)
        changed = np.flatnonzero(np.asarray(stored.data["x"][:, 0]) == -count)
        assert len(changed) == len(slots)
        found = fbuf.probability(buffer.state, fbuf.ids_at(buffer.state, slots.astype(np.int32)))
        total = fbuf.stats(buffer.state)["priority_total"]
        np.testing.assert_allclose(np.asarray(found) * float(total), count, rtol=1e-5)
    before = len(buffer)
    batch = buffer.sample()
    gone = len(set(batch.ids.slot[:3].tolist()))
    buffer.remove(fbuf.Ids(batch.ids.slot[:3], batch.ids.generation[:3]))
    assert len(buffer) == before - gone
    buffer.raise_on_fault()


@pytest.mark.sweep
@pytest.mark.parametrize("normalize", ["batch", "buffer"])
def test_weights_are_those_of_a_batch_of_that_size(normalize):
    sampler = fbuf.Prioritized(alpha=1.0, beta=0.5, eps=0.0, normalize=normalize)
    buffer = ReplayBuffer(20, sampler=sampler, batch_size=4)
    buffer.extend(rows(0, 20), priority=torch.arange(1.0, 21.0))
    for size in (3, 9, 14):
        batch = buffer.sample(size)
        values = batch.data["n"].double() + 1
        least = 1.0 if normalize == "buffer" else values.min()
        np.testing.assert_allclose(batch.weight, (least / values) ** 0.5, rtol=1e-5)
        assert batch.mask.all()
        assert len(batch.weight) == len(batch.ids.slot) == size


@pytest.mark.sweep
def test_a_time_major_batch_is_cut_where_its_rows_are():
    view = fbuf.Sequence(3, time_major=True)
    buffer = ReplayBuffer(20, sampler=fbuf.Uniform(window=3), view=view, batch_size=4)
    buffer.extend(rows(0, 20))
    assert buffer.sample().data.item["x"].shape == (3, 4, 2)
    batch = buffer.sample(7)
    assert batch.data.item["x"].shape == (3, 7, 2)
    assert batch.ids.slot.shape == (7,)
    steps = batch.data.item["n"]
    assert (steps[1:] - steps[:-1] == 1).all()


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("prefetch", "drop_last"),
    [(0, True), (0, False), (2, False)],
)
def test_an_epoch_has_every_row_once_whatever_sizes_are_asked_for(drop_last, prefetch):
    options = {"batch_size": 5, "prefetch": prefetch, "drop_last": drop_last}
    with ReplayBuffer(20, sampler=fbuf.Shuffled(), **options) as buffer:
        buffer.extend(rows(0, 20))
        for sizes in ([5, 3, 7, 5], [3, 3, 5, 5, 4], [8, 12]):
            seen = [n for size in sizes for n in buffer.sample(size).data["n"].tolist()]
            assert sorted(seen) == list(range(20))
        seen = [batch.data["n"][batch.mask].tolist() for batch in map(buffer.sample, [7] * 3)]
        assert [len(part) for part in seen] == ([7, 7, 7] if drop_last else [7, 7, 6])
        assert len({n for part in seen[:2] for n in part}) == 14
        assert sum(len(batch.data["n"]) for batch in buffer) == 20


@pytest.fixture
def compiled(monkeypatch):
    """The names of the programs that are compiled, or read from where they are kept."""
    import jax

    names: list[str] = []
    monkeypatch.setattr(
        jax._src.compiler,
        "compile_or_get_cached",
        lambda *args, f=jax._src.compiler.compile_or_get_cached, **kwargs: (
            names.append(str(args[1].operation.attributes["sym_name"])),
            f(*args, **kwargs),
        )[1],
    )
    return names


@pytest.mark.sweep
def test_any_lengths_take_a_handful_of_programs(compiled):
    """Forty episodes of forty lengths, and as many sizes of draws and updates."""
    rng = np.random.default_rng(0)
    buffer = ReplayBuffer(500, sampler=fbuf.Prioritized(), batch_size=32)
    for length in rng.permutation(np.arange(1, 301))[:40].tolist():
        buffer.extend(rows(0, length), terminated=torch.arange(length) == length - 1)
        if buffer.can_sample():
            batch = buffer.sample(length)
            buffer.update_priority(batch.ids, torch.rand(length))
    of_methods = [name for name in compiled if "changed" in name or "draw" in name]
    # Each of the three: the first length, 16, 64, 256 and 1024; none comes twice in a row.
    assert 0 < len(of_methods) <= 3 * 5


@pytest.mark.sweep
def test_any_number_of_slots_takes_a_handful_of_programs(compiled):
    pytest.importorskip("tensordict")
    from fbuf_adapters.tensordict import TensorDictReplayBuffer
    from tensordict import TensorDict

    rb = TensorDictReplayBuffer(200, sampler=EXACT, batch_size=4)
    rb.extend(TensorDict({"n": torch.arange(200)}, batch_size=[200]))
    compiled.clear()
    for count in range(40, 80):
        rb.update_priority(torch.arange(count), torch.full((count,), float(count)))
    # Two sizes, each with the ids of slots and the change.
    assert 0 < len(compiled) <= 2 * 2, compiled
    assert priorities(rb.buffer.state) == [79.0] * 79 + [1.0] * 121


def test_sizes_that_come_twice_in_a_row_have_programs_of_their_own():
    sizes = _sizes.Sizes()
    asked = [100, 16, 16, 16, 20, 16, 30, 30, 30, 40, 40, 50, 50, 50]
    found = [sizes.fitting("extend", size) for size in asked]
    assert found == [None, 16, None, None, 64, None, 64, None, None, 64, None, 64, 64, 64]
    assert sizes.fitting("sample", 7) is None


@pytest.mark.sweep
@pytest.mark.parametrize("lockstep", [True, False])
def test_large_rows_of_environments_are_stored_as_small_ones_are(lockstep):
    """They are turned to steps before the state is touched."""
    shape, width = (ENVS, 4), 4096
    n = torch.arange(12, dtype=torch.int32).reshape(shape)
    items = {"n": n, "x": n.float().unsqueeze(-1).expand(*shape, width)}
    mask = torch.tensor([True, False, True, True])
    options = {
        "terminated": n % 5 == 0,
        "truncated": np.asarray(n == 7),
        "priority": n.float() + 1,
        "mask": mask if lockstep else mask.expand(shape).clone(),
    }
    of_steps = {name: np.asarray(x).T for name, x in options.items()}
    first, second = (
        ReplayBuffer(30, num_envs=ENVS, lockstep=lockstep, sampler=EXACT) for _ in range(2)
    )
    for _ in range(2):
        first.extend(items, **options)
        second.extend(
            {name: x.transpose(0, 1) for name, x in items.items()}, time_major=True, **of_steps
        )
        same(first, second)
        assert_same(first.state, second.state)
    found = fbuf.rows(first.state)
    assert set(found.data["x"][found.mask][:, 0].tolist()) == {0, 2, 3, 4, 6, 7, 8, 10, 11}
    turned = _time_major.steps_first({"items": items, **options}, ENVS, 0)
    assert turned["items"]["x"].shape == (4, ENVS, width)
    assert turned["items"]["x"].is_contiguous()
    assert _time_major.steps_first({"items": {"n": n}}, ENVS, 0) is None
    for wrong in ({"terminated": torch.zeros(5, dtype=torch.bool)}, {"mask": torch.ones(5) > 0}):
        with pytest.raises(ValueError, match=r"must be") as told:
            first.extend(items, **wrong)
        assert "(3, 4)" in str(told.value) or "(4,)" in str(told.value), told.value
