"""Disks that lack what others have: locks, files brought to them on demand, room; and no disks."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import restored
from support.small_disk import small_disk

import fbuf
from fbuf.checkpoint import files, lock_file


def numbers(count=3, capacity=8):
    return fbuf.add(fbuf.init(jnp.int32(0), capacity), jnp.arange(count, dtype=jnp.int32))


# --- no disk of this machine ---------------------------------------------------------------------

URLS = ["gs://bucket/run", "s3://bucket/run", "hdfs:/run", pathlib.Path("gs://bucket/run")]
CALLS = {
    "save": lambda path: fbuf.save(path, numbers()),
    "load": fbuf.load,
    "wait": fbuf.wait,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("url", URLS, ids=str)
def test_a_url_is_no_directory(call, url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=rf"fbuf\.{call}: .* is a URL.*copy_to_a_bucket\.md"):
        CALLS[call](url)
    assert not list(tmp_path.iterdir())


def test_what_only_looks_like_a_url_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("run:1", "a b:/x", "C:/run"):
        fbuf.save(path, numbers())
        assert int(fbuf.size(restored.load(path).state)) == 3


@pytest.mark.parametrize("path", [b"run", 3, None])
def test_what_is_no_path(path):
    with pytest.raises(TypeError, match=r"fbuf\.save: path must be a str or a path"):
        fbuf.save(path, numbers())


# --- no locks ------------------------------------------------------------------------------------


def number_of(name):
    """524 is what some disks of clusters answer; Python has no name for it."""
    return int(name) if name.isdigit() else getattr(errno, name)


@pytest.fixture(params=["ENOSYS", "ENOLCK", "ENOTSUP", "524"])
def no_locks(request, monkeypatch):
    def flock(descriptor, how):
        raise OSError(number_of(request.param), os.strerror(number_of(request.param)))

    monkeypatch.setattr(fcntl, "flock", flock)


def test_without_locks_a_file_is_one(no_locks, tmp_path):
    held = tmp_path / lock_file.NAME
    state = fbuf.save(tmp_path, numbers())
    state = fbuf.save(tmp_path, fbuf.add(state, jnp.int32(7)), background=True)
    fbuf.wait()
    assert not held.exists()
    assert int(fbuf.size(fbuf.load(tmp_path).state)) == 4
    with lock_file.held(tmp_path):
        assert f'"process": {os.getpid()}' in held.read_text()
        with pytest.raises(BlockingIOError, match=rf"process {os.getpid()} on .*delete {held}"):
            fbuf.save(tmp_path, state)
    fbuf.save(tmp_path, state)


HOLDING = """
import pathlib, sys
from fbuf.checkpoint import lock_file
with lock_file.held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another_process(folder):
    command = [sys.executable, "-c", HOLDING, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("waited_for", [False, True])
@pytest.mark.parametrize("no_locks", ["ENOSYS"], indirect=True)
def test_a_file_of_a_process_that_was_killed_is_taken_over(no_locks, waited_for, tmp_path):
    with another_process(tmp_path) as process:
        with pytest.raises(BlockingIOError, match=f"process {process.pid} on "):
            fbuf.save(tmp_path, numbers())
        process.kill()
        if waited_for:
            process.wait()
        else:  # it is a zombie, which has its number still
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert (tmp_path / lock_file.NAME).exists()
        fbuf.save(tmp_path, numbers())
    assert [path.name for path in tmp_path.glob("LOCK-*")] == []


@pytest.mark.parametrize("no_locks", ["ENOSYS"], indirect=True)
@pytest.mark.parametrize(
    ("other", "gone"),
    [
        ({"started": "1"}, True),  # its number is that of another process now
        ({"host": "elsewhere"}, False),
        ({"place": "since another start, or in another container"}, False),
        ({"host": "elsewhere", "process": 2**22 + 1}, False),
        ({"process": 2**22 + 1}, True),
    ],
)
def test_of_a_process_elsewhere_nothing_is_known(other, gone, no_locks, tmp_path, monkeypatch):
    own = lock_file._own()
    fields = {**vars(own), **other}
    lock_file._made(tmp_path / lock_file.NAME, lock_file.Holder(**fields))
    if gone:
        fbuf.save(tmp_path, numbers())
        return
    with pytest.raises(BlockingIOError, match=f"on {fields['host']}; .* If it has ended, delete "):
        fbuf.save(tmp_path, numbers())
    (tmp_path / lock_file.NAME).unlink()
    fbuf.save(tmp_path, numbers())


@pytest.mark.parametrize("no_locks", ["ENOSYS"], indirect=True)
def test_who_may_not_see_a_process_does_not_take_its_file(no_locks, tmp_path, monkeypatch):
    """As where /proc shows each user only what is theirs."""
    with another_process(tmp_path):
        started = lock_file._started
        monkeypatch.setattr(lock_file, "_started", lambda n: started(n) if n == os.getpid() else "")
        with pytest.raises(BlockingIOError):
            fbuf.save(tmp_path, numbers())


@pytest.mark.parametrize("no_locks", ["ENOSYS"], indirect=True)
def test_a_full_disk_leaves_no_file_of_nobody(no_locks, tmp_path, monkeypatch):
    def full(file, data):
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="full"):
            fbuf.save(tmp_path, numbers())
    assert not list(tmp_path.glob("LOCK-*"))
    fbuf.save(tmp_path, numbers())


@pytest.mark.parametrize("no_locks", ["ENOSYS"], indirect=True)
def test_a_file_that_is_not_written_yet_is_held(no_locks, tmp_path):
    (tmp_path / lock_file.NAME).touch()
    with pytest.raises(BlockingIOError, match="another process"):
        fbuf.save(tmp_path, numbers())
    assert (tmp_path / lock_file.NAME).exists()


@pytest.mark.filterwarnings("ignore:.*fork:RuntimeWarning")  # the child only ends
@pytest.mark.parametrize("no_locks", ["ENOSYS"], indirect=True)
def test_a_fork_does_not_let_go(no_locks, tmp_path):
    with lock_file.held(tmp_path):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert (tmp_path / lock_file.NAME).exists()
    if not child:  # behind the block
        os._exit(0)


def test_other_failures_of_a_lock_come_through(tmp_path, monkeypatch):
    def flock(descriptor, how):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="broken"):
        fbuf.save(tmp_path, numbers())


# --- files that are not brought to the disk on demand --------------------------------------------


def failing_fsync(monkeypatch, number, directories_only=True):
    fsync = os.fsync

    def failing(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}") or not directories_only:
            raise OSError(number, os.strerror(number))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    monkeypatch.setattr(files, "_warned", set())


@pytest.mark.parametrize("directories_only", [True, False])
@pytest.mark.parametrize("name", ["EINVAL", "ENOTSUP", "ENOSYS", "524"])
def test_a_disk_without_fsync_is_warned_of_once(name, directories_only, tmp_path, monkeypatch):
    failing_fsync(monkeypatch, number_of(name), directories_only)
    with pytest.warns(UserWarning, match="cannot bring files to the disk on demand"):
        state = fbuf.save(tmp_path, numbers())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        fbuf.save(tmp_path, fbuf.add(state, jnp.int32(7)))
    assert int(fbuf.size(fbuf.load(tmp_path).state)) == 4


def test_a_disk_that_is_broken_is_an_error(tmp_path, monkeypatch):
    failing_fsync(monkeypatch, errno.EIO)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wanted = f"{os.strerror(errno.EIO)}: fbuf.save: '{tmp_path}'"
        with pytest.raises(OSError, match=wanted) as told:
            fbuf.save(tmp_path, numbers())
        assert told.value.errno == errno.EIO
        with pytest.raises(OSError, match=wanted):
            fbuf.wait(fbuf.save(tmp_path, numbers(), background=True) and tmp_path)


def test_a_lock_that_fails_names_its_file(tmp_path, monkeypatch):
    def flock(descriptor, how):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(PermissionError, match=str(tmp_path / "LOCK")):
        fbuf.save(tmp_path, numbers())


# --- a full disk ---------------------------------------------------------------------------------


def test_a_full_disk_says_what_was_wanted_and_what_is_free(tmp_path):
    with small_disk(tmp_path, "300k") as small:
        state = fbuf.add(fbuf.init(jnp.zeros(100), 1000), jnp.ones((900, 100)))
        wanted = rf"No space left.*fbuf\.save needs at least 35.*, and 2\d\d.* are free.*{small}"
        with pytest.raises(OSError, match=wanted) as raised:
            fbuf.save(small / "saved", state)
        assert raised.value.errno == errno.ENOSPC
        fbuf.save(small / "saved", state, background=True)
        with pytest.raises(OSError, match=wanted):
            fbuf.wait()
        assert shutil.disk_usage(small).used < 50_000


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_so_does_a_quota(number, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"fbuf\.save needs at least \d") as raised:
        fbuf.save(tmp_path, numbers())
    assert raised.value.errno == number


# --- another item --------------------------------------------------------------------------------

OBS = {"obs": {"low": jnp.zeros(3), "image": jnp.zeros((20, 20), jnp.uint8)}, "reward": 0.0}


def walked(**options):
    state = fbuf.init(OBS, 12, next_of="obs", **options)
    lanes = options.get("num_envs") or 1
    for turn in range(5):
        n = np.arange(lanes, dtype=np.float32) + 10 * turn
        image = np.broadcast_to(n.astype(np.uint8)[:, None, None], (lanes, 20, 20))
        obs = {"low": np.broadcast_to(n[:, None], (lanes, 3)), "image": image}
        led_to = {"low": obs["low"] + 10, "image": image + 10}
        ends = np.full(lanes, turn == 2)
        state = fbuf.add(state, {"obs": obs, "reward": n}, next_observation=led_to, truncated=ends)
    return state


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, marks=pytest.mark.sweep),
        {"num_envs": 2, "lockstep": False, "sampler": fbuf.Prioritized(window=2)},
        pytest.param(
            {"num_envs": 3, "sampler": fbuf.Uniform(window=2, by="episode")},
            marks=pytest.mark.sweep,
        ),
    ],
    ids=["one", "two", "three"],
)
def test_fields_are_added_and_left_out(options, tmp_path):
    state = fbuf.save(tmp_path, walked(**options))
    new = {"depth": jnp.full((2, 2), 7, jnp.bfloat16), "step": {"at": jnp.int32(-1)}}
    loaded, _ = fbuf.load(
        tmp_path,
        fill={"obs.depth": new["depth"], "step": new["step"], "value": 0.5},
        drop=["obs.image"],
        episodes="keep",
    )
    before, after = fbuf.rows(state), fbuf.rows(loaded)
    assert after.data.keys() == {"obs", "reward", "step", "value"}
    assert after.data["obs"].keys() == {"low", "depth"}
    for one, other in zip(
        jax.tree.leaves((before.ids, before.mask, before.truncated)),
        jax.tree.leaves((after.ids, after.mask, after.truncated)),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    mask = np.asarray(before.mask)
    np.testing.assert_array_equal(before.data["obs"]["low"][mask], after.data["obs"]["low"][mask])
    np.testing.assert_array_equal(before.data["reward"][mask], after.data["reward"][mask])
    assert (np.asarray(after.data["obs"]["depth"], np.float32)[mask] == 7).all()
    assert (np.asarray(after.data["step"]["at"])[mask] == -1).all()
    assert (np.asarray(after.data["value"])[mask] == 0.5).all()
    led = lambda state: fbuf.read(state, after.ids, view=fbuf.Transition())
    old, now = led(state), led(loaded)
    np.testing.assert_array_equal(old.mask, now.mask)
    there = np.asarray(now.mask)
    np.testing.assert_array_equal(
        old.data.next_observation["low"][there], now.data.next_observation["low"][there]
    )
    assert (np.asarray(now.data.next_observation["depth"], np.float32)[there] == 7).all()
    if state.sampler.keeps_priorities:
        np.testing.assert_array_equal(
            fbuf.probability(state, before.ids), fbuf.probability(loaded, after.ids)
        )


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.int64(5_000_000_000), r"fill\['b'\] is int64, and JAX would silently make it int32"),
        (5_000_000_000, r"fill\['b'\] is 5000000000, which no 32-bit integer can hold"),
        (1e300, r"fill\['b'\] is 1e\+300, which float32 cannot hold"),
        ({"c": np.zeros(2)}, r"fill\['b'\]\['c'\] is float64"),
        ("x", r"fill\['b'\] must be an array"),
    ],
    ids=str,
)
def test_no_field_is_filled_with_what_is_cut(value, message, tmp_path):
    fbuf.save(tmp_path, fbuf.init({"a": jnp.zeros(2)}, 4))
    with pytest.raises((TypeError, ValueError), match=message):
        fbuf.load(tmp_path, fill={"b": value})


def test_many_rows_are_moved_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["fbuf.ops.fields"], "_CHUNK", 100)
    state = fbuf.init({"a": jnp.zeros(5), "b": jnp.int32(0)}, 17)
    rows = {"a": jnp.arange(85.0).reshape(17, 5), "b": jnp.arange(17, dtype=jnp.int32)}
    fbuf.save(tmp_path, fbuf.add(state, rows))
    found = fbuf.rows(fbuf.load(tmp_path, fill={"c": jnp.float32(2)}, drop=["b"]).state).data
    np.testing.assert_array_equal(found["a"], rows["a"])
    assert found.keys() == {"a", "c"}
    assert (found["c"] == 2).all()


def test_a_dict_goes_with_its_last_field(tmp_path):
    item = {"a": 0.0, "deep": {"er": {"b": 0.0, "c": 0.0}}, "none": {}}
    fbuf.save(tmp_path, fbuf.init(item, 4))
    state, _ = fbuf.load(tmp_path, drop=["deep.er.b", "deep.er.c"])
    assert state.storage.item.keys() == {"a", "none"}


@pytest.mark.sweep
def test_such_a_buffer_is_saved_elsewhere_and_goes_on(tmp_path):
    fbuf.save(tmp_path / "old", walked())
    state, _ = fbuf.load(tmp_path / "old", fill={"value": 0.0})
    with pytest.raises(fbuf.CheckpointError, match="save to another directory"):
        fbuf.save(tmp_path / "old", state)
    row = {"obs": OBS["obs"], "reward": 1.0, "value": 3.0}
    state = fbuf.add(state, row, next_observation=OBS["obs"])
    state = fbuf.save(tmp_path / "new", state)
    rows = fbuf.rows(restored.load(tmp_path / "new").state)
    assert rows.data["value"][rows.mask].tolist() == [0, 0, 0, 0, 0, 3]


@pytest.mark.sweep
def test_no_save_takes_its_rows_for_those_that_were_saved(tmp_path):
    """Both directories know the buffer by its save id; fields of the same names are others."""
    item = {"o": jnp.float32(0), "bonus": jnp.float32(0)}
    rows = {"o": jnp.arange(3.0), "bonus": jnp.ones(3)}
    state = fbuf.save(tmp_path / "a", fbuf.add(fbuf.init(item, 4), rows))
    fbuf.save(tmp_path / "b", state)
    changed, _ = fbuf.load(tmp_path / "b", drop=["bonus"], fill={"bonus": jnp.float32(7)})
    with pytest.warns(UserWarning, match="all rows are written"):
        fbuf.save(tmp_path / "a", changed)
    batch = fbuf.rows(restored.load(tmp_path / "a").state)
    assert batch.data["bonus"][batch.mask].tolist() == [7, 7, 7]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"drop": ["nothing"]}, ValueError, "drop has 'nothing'.*they have obs, reward"),
        ({"drop": ["obs.nothing"]}, ValueError, "they have image, low"),
        ({"drop": ["obs"]}, ValueError, "drop has all of 'obs', of which the buffer keeps next"),
        ({"drop": ["obs.image", "obs.low"]}, ValueError, "drop has all of 'obs', of which"),
        ({"drop": "reward"}, TypeError, "drop must be a list of names"),
        (
            {"fill": {"reward": 0.0}},
            ValueError,
            "fill has 'reward', and the items have that field$",
        ),
        ({"fill": {"obs": 0.0}}, ValueError, "have that field; obs.x names a field within it"),
        ({"fill": {("obs", "x"): 0.0}}, TypeError, "fill must have names such as .*'obs', 'x'"),
        ({"drop": [0]}, TypeError, "drop must have names such as .* got 0"),
        ({"fill": {"reward.more": 0.0}}, ValueError, "in dicts only"),
        ({"fill": {"none.more": 0.0}}, ValueError, "the items have no dict 'none'"),
        ({"fill": {"obs.none.more": 0.0}}, ValueError, "the items have no dict 'obs.none'"),
    ],
)
def test_fields_that_cannot_be_changed(options, error, message, tmp_path):
    fbuf.save(tmp_path, walked())
    with pytest.raises(error, match=f"fbuf.load: .*{message}"):
        fbuf.load(tmp_path, **options)


@pytest.mark.sweep
def test_a_pace_is_loaded_without_an_example(tmp_path):
    pace = fbuf.Pace(0.25, warmup=2)
    _, counter = pace.due(pace.init(), 7)
    fbuf.save(tmp_path, numbers(), extra={"pace": counter, "step": 3})
    _, extra = fbuf.load(tmp_path)
    assert extra["pace"] == counter
    assert type(extra["pace"]) is fbuf.PaceCounter
    assert extra["step"] == 3
