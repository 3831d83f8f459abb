"""Buffers of tensors whose rows lie on the host: bit for bit those whose rows lie on the device."""

from __future__ import annotations

import gc
import pickle
import signal
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import InteropError, ReplayBuffer  # noqa: E402 (after the skip)

import fbuf  # noqa: E402 (after the skip)
from fbuf.host import HostStore, programs  # noqa: E402 (after the skip)


def same(one, two):
    ours, theirs = jax.tree.leaves(one), jax.tree.leaves(two)
    assert jax.tree.structure(one) == jax.tree.structure(two)
    for a, b in zip(ours, theirs, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(a, b)


def random_rows(random, *lead):
    return {
        "observation": torch.rand(*lead, 3, generator=random),
        "reward": torch.rand(*lead, generator=random),
        "image": torch.randint(0, 255, (*lead, 16, 16), generator=random).to(torch.uint8),
    }


VIEWS = [
    fbuf.Item(),
    fbuf.NStep(2, gamma=0.9),
    fbuf.Sequence(3, boundary="pad"),
    fbuf.ReturnToGo(gamma=0.9),
]


@pytest.mark.sweep
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: type(view).__name__)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_it_draws_what_a_buffer_on_the_device_draws(view, prefetch, tmp_path):
    """Batches of several sizes, drawn ahead or not, through all that changes and saves rows."""
    random = torch.Generator().manual_seed(0)
    options = {"sampler": fbuf.Prioritized(), "view": view, "batch_size": 8, "num_envs": 2}
    options |= {"prefetch": prefetch, "int64": True, "next_of": "observation", "seed": 0}
    options |= {"max_ends": 40}  # rows on the host get no more room
    one = ReplayBuffer(40, **options)
    two = ReplayBuffer(40, **options, host=tmp_path / "rows" if prefetch else True)
    both, saved = (one, two), []
    for turn in range(24):
        steps = 1 + turn % 4
        rows, following = random_rows(random, 2, steps), torch.rand(2, steps, 3, generator=random)
        ends = torch.rand(2, steps, generator=random) < 0.2
        for buffer in both:
            buffer.extend(rows, terminated=ends, next_observation=following)
        batch, other = (buffer.sample([None, 3, 5][turn % 3]) for buffer in both)
        same(batch, other)
        priority = torch.rand(len(batch.mask), generator=random)
        for buffer in both:
            buffer.update_priority(batch.ids, priority)
            if turn % 5 == 4:
                buffer.write(batch.ids, {"reward": priority})
                buffer.remove(batch.ids)
            if turn % 7 == 6:
                buffer.end_episode()
        if turn < 4:
            same(*(buffer[:, -3:] for buffer in both))
        if turn == 10:
            saved = [buffer.state_dict() for buffer in both]
        if turn == 14:  # what the one has saved, the other goes on from
            one.load_state_dict(saved[1], episodes="keep")
            two.load_state_dict(saved[0], episodes="keep")
        if turn == 18:
            for buffer in both:
                buffer.save(tmp_path / repr(buffer is one), extra={"turn": turn})
        if turn == 20:
            first = one.load(tmp_path / "False", episodes="keep")
            assert first == two.load(tmp_path / "True", episodes="keep") == {"turn": 18}
    same(list(one.episodes()), list(two.episodes()))
    ours, theirs = one.stats(detailed=True), two.stats(detailed=True)
    assert theirs.pop("host_bytes") > 40 * 272
    assert theirs.pop("bytes") < ours.pop("bytes") - 40 * 272
    assert ours == theirs
    for buffer in both:
        buffer.empty()
    assert not two.can_sample()
    with pytest.raises(RuntimeError, match="the buffer is empty"):
        two.sample()


@pytest.mark.sweep
@pytest.mark.parametrize("drop_last", [pytest.param(False, marks=pytest.mark.sweep), True])
def test_epochs_are_those_of_a_buffer_on_the_device(drop_last):
    options = {
        "sampler": fbuf.Shuffled(),
        "batch_size": 8,
        "drop_last": drop_last,
        "prefetch": 2,
        "seed": 0,
    }
    one, two = ReplayBuffer(64, **options), ReplayBuffer(64, **options, host=True)
    for buffer in (one, two):
        buffer.extend({"n": torch.arange(44)})
    for _ in range(2):
        same(list(one), list(two))


@pytest.mark.sweep
def test_rows_that_were_drawn_are_not_written_over(monkeypatch):
    """Ten batches ahead, and all rows replaced before the thread gets to them."""
    options = {"batch_size": 8, "prefetch": 9, "host": True, "seed": 0}
    buffer = ReplayBuffer(16, **options)
    buffer.extend({"n": torch.arange(16)})
    free, take = threading.Event(), programs.take

    def late(*args):
        if threading.current_thread().name == "fbuf-prefetch":
            free.wait(10)
        return take(*args)

    monkeypatch.setattr(programs, "take", late)
    threading.Timer(0.3, free.set).start()
    with ReplayBuffer(16, batch_size=8, prefetch=9, seed=0) as plain:
        plain.extend({"n": torch.arange(16)})
        expected = [plain.sample().data["n"].tolist()]
        plain.extend({"n": torch.arange(100, 116)})
        expected += [plain.sample().data["n"].tolist() for _ in range(11)]
    found = []
    sampler = threading.Thread(target=lambda: found.append(buffer.sample().data["n"].tolist()))
    sampler.start()  # the batches are drawn, and none is taken
    while len(buffer.contents.stream._ahead) < 9:
        pass
    buffer.extend({"n": torch.arange(100, 116)})
    sampler.join()
    found += [buffer.sample().data["n"].tolist() for _ in range(11)]
    assert found == expected


@pytest.mark.sweep
def test_an_exception_in_the_thread_comes_out(monkeypatch):
    buffer = ReplayBuffer(16, batch_size=8, prefetch=2, host=True)
    buffer.extend({"n": torch.arange(16)})
    buffer.sample()

    def broken(*args):
        raise OSError("the disk is gone")

    monkeypatch.setattr(programs, "take", broken)
    draw_all = lambda: [buffer.sample() for _ in range(4)]  # some were ready
    with pytest.raises(OSError, match="the disk is gone"):
        draw_all()
    monkeypatch.undo()
    buffer.extend({"n": torch.arange(16)})
    buffer.drop_ahead()
    assert len(buffer.sample().data["n"]) == 8
    buffer.close()
    with pytest.raises(RuntimeError, match="is closed"):
        buffer.sample()


@pytest.mark.sweep
def test_a_data_set_is_opened_for_tensors(tmp_path):
    state = fbuf.init({"n": jnp.int32(0)}, 64, sampler=fbuf.Shuffled())
    fbuf.save(tmp_path, fbuf.add(state, {"n": np.arange(50, dtype=np.int32)}))
    store, _ = HostStore.open(tmp_path)
    options = {"sampler": fbuf.Shuffled(), "batch_size": 10, "prefetch": 1}
    with ReplayBuffer(64, **options, host=store) as buffer:
        assert len(buffer) == 50
        seen = torch.cat([batch.data["n"] for batch in buffer])
        assert sorted(seen.tolist()) == list(range(50))
        buffer.extend({"n": torch.arange(50, 60)})
        buffer.save(tmp_path)
    assert fbuf.load(tmp_path).state.ring.count() == 60
    with pytest.raises(ValueError, match="made with other arguments"):
        ReplayBuffer(64, host=store)


def test_what_has_no_state_says_so():
    buffer = ReplayBuffer(16, item={"n": torch.tensor(0)}, host=True)
    for call in (lambda: buffer.state, lambda: setattr(buffer, "state", None)):
        with pytest.raises(RuntimeError, match="lie on the host"):
            call()


def test_an_interrupt_waits_for_the_rows(interrupted):
    """Index and rows change together: what was added is there, or is not."""
    buffer = ReplayBuffer(1024, host=True)
    buffer.extend({"n": torch.arange(8)})
    for turn in range(40):
        before = len(buffer)
        first = 8 * (turn + 1)
        rows = {"n": torch.arange(first, first + 8)}
        interrupted(lambda given=rows: buffer.extend(given), turn * 2e-5)
        assert len(buffer) in (before, before + 8)
        backend = buffer.contents.stored.backend
        newest = backend.read(fbuf.newest_ids(backend.state, 8)).data["n"].tolist()
        assert newest == [*range(newest[0], newest[0] + 8)]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.sweep
@pytest.mark.parametrize("window", [pytest.param(1, marks=pytest.mark.sweep), 4])
def test_tensordicts_with_rows_on_the_host(window, tmp_path):
    tensordict = pytest.importorskip("tensordict")
    from fbuf_adapters.tensordict import TensorDictReplayBuffer

    options = {"sampler": fbuf.Prioritized(window=window), "batch_size": 16, "prefetch": 2}
    options["seed"] = 0
    options["view"] = fbuf.Item() if window == 1 else fbuf.Sequence(window)
    one = TensorDictReplayBuffer(64, **options)
    two = TensorDictReplayBuffer(64, **options, host=tmp_path / "rows")
    random = torch.Generator().manual_seed(1)
    for turn in range(10):
        rows = {
            "observation": torch.rand(10, 3, generator=random),
            "action": torch.randint(0, 9, (10,), generator=random),
            "wide": torch.rand(10, generator=random, dtype=torch.float64),
            "next": {"done": torch.rand(10, generator=random) < 0.1},
        }
        data = tensordict.TensorDict(rows, [10])
        assert torch.equal(one.extend(data), two.extend(data))
        batch, other = one.sample(), two.sample()
        assert (batch == other).all()
        batch["td_error"] = other["td_error"] = torch.rand(16, generator=random)
        for buffer, drawn in ((one, batch), (two, other)):
            buffer.update_tensordict_priority(drawn)
            buffer.update_priority([1, 2], [0.5, turn])
    assert (one[:] == two[:]).all()
    copied = pickle.loads(pickle.dumps(two))
    two.dumps(tmp_path / "saved")
    assert (copied.sample() == two.sample()).all()
    one.loads(tmp_path / "saved")
    assert (one[:] == two[:]).all()


@pytest.mark.sweep
def test_tensordicts_of_a_store():
    pytest.importorskip("tensordict")
    from fbuf_adapters.tensordict import TensorDictReplayBuffer

    store = HostStore({"n": jnp.int32(0), "next": {"done": jnp.bool_(False)}}, 32)
    done = np.arange(20) % 5 == 4
    store.add({"n": np.arange(20, dtype=np.int32), "next": {"done": done}}, terminated=done)
    buffer = TensorDictReplayBuffer(32, batch_size=8, host=store)
    batch = buffer.sample()
    assert torch.equal(batch["next", "done"], batch["n"] % 5 == 4)
    assert buffer[3]["n"] == 3
    with pytest.raises(InteropError, match="dicts of dicts"):
        TensorDictReplayBuffer(8, host=HostStore(jnp.int32(0), 8))


def test_a_buffer_that_is_refused_leaves_the_store_free():
    pytest.importorskip("tensordict")
    from fbuf_adapters.tensordict import TensorDictReplayBuffer

    store = HostStore({"n": jnp.int32(0)}, 32, autoreset="next_step")
    options = {"autoreset": "next_step", "host": store}
    with pytest.raises(ValueError, match="leave traj_key out"):
        TensorDictReplayBuffer(32, **options, traj_key="episode")
    with pytest.raises(TypeError, match="sampler must be a Sampler"):
        TensorDictReplayBuffer(32, **options, sampler="uniform")
    assert len(TensorDictReplayBuffer(32, **options)) == 0


@pytest.mark.sweep
def test_a_store_in_files_is_loaded_into_files(tmp_path):
    store = HostStore({"n": jnp.int32(0)}, 16, files=tmp_path / "rows")
    buffer = ReplayBuffer(16, host=store)
    buffer.extend({"n": torch.arange(10)})
    buffer.save(tmp_path / "saved")
    buffer.load(tmp_path / "saved")
    for _ in range(2):
        loaded = buffer.contents.stored.backend._store
        assert loaded is not store
        assert loaded.contents.rows.maps
        assert loaded.files == tmp_path / "rows"
        buffer.load_state_dict(buffer.state_dict())
    assert len(buffer) == 10


@pytest.mark.sweep
def test_an_opened_buffer_goes_on_with_its_draws(tmp_path):
    options = {"sampler": fbuf.Prioritized(), "batch_size": 8, "prefetch": 2}
    run = ReplayBuffer(64, **options, host=True)
    run.extend({"n": torch.arange(40)})
    run.sample()
    run.save(tmp_path)
    store, _ = HostStore.open(tmp_path)
    again = ReplayBuffer(64, **options, host=store)
    with pytest.raises(ValueError, match="which another buffer has"):
        ReplayBuffer(64, **options, host=store)
    again.load(tmp_path, episodes="keep")
    for _ in range(4):
        same(run.sample(), again.sample())
    again.extend({"n": torch.arange(20)})
    again.save(tmp_path)
    assert len(HostStore.open(tmp_path)[0].rows().data["n"]) == 64
    store, _ = HostStore.open(tmp_path)
    used = ReplayBuffer(64, **options, host=store)
    store.add({"n": np.int32(1)})
    with pytest.raises(RuntimeError, match="changed by its own methods"):
        used.sample()


def test_a_buffer_that_is_closed_holds_no_store():
    store = HostStore({"n": jnp.int32(0)}, 16)
    buffer = ReplayBuffer(16, host=store)
    rows = weakref.ref(store.contents)
    del store
    buffer.close()
    gc.collect()
    assert rows() is None
