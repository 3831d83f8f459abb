"""A save that is stopped: there is the checkpoint before it, or the new one, and nothing else."""

from __future__ import annotations

import inspect
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import jax.numpy as jnp
import numpy as np
import pytest
from support import restored
from support.small_disk import small_disk
from test_save import REWRITES, same, seen

import fbuf
from fbuf.checkpoint import compact, lineage, manifest

ROOT = pathlib.Path(__file__).parents[2]


class Disk:
    """The requests of a save to a disk, in their order."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.calls = folder, []
        fsync, replace, unlink, mkdir = (
            os.fsync,
            os.replace,
            pathlib.Path.unlink,
            pathlib.Path.mkdir,
        )

        def synced(descriptor):
            fsync(descriptor)
            path = pathlib.Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            if path.is_dir():
                self.note("directory", path)
            else:
                self.note("content", path, path.read_bytes())

        def replaced(old, new):
            replace(old, new)
            self.note("name", pathlib.Path(old), pathlib.Path(new))

        def unlinked(path, **options):
            self.note("delete", path)
            unlink(path, **options)

        def made(path, **options):
            mkdir(path, **options)
            self.note("make", path)

        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", replaced)
        monkeypatch.setattr(pathlib.Path, "unlink", unlinked)
        monkeypatch.setattr(pathlib.Path, "mkdir", made)

    def note(self, what, path, *more):
        if path == self.folder or self.folder in path.parents:
            self.calls.append((what, path, *more))

    def after(self, first, calls, lost):
        """The files after some calls of which some were lost, and the machine stopped.

        Args:
            first: The files there were.
            calls: The calls.
            lost: Numbers of calls that changed a directory which was not brought to the disk since.
        """
        files, contents = dict(first), {}
        for number, (what, path, *more) in enumerate(calls):
            if what == "content":
                contents[path] = more[0]
            if number in lost:
                continue
            if what == "name":
                files[more[0]] = contents.get(path, b"")  # what was not brought to the disk is gone
            elif what == "delete":
                files.pop(path, None)
        return files

    def unsure(self, calls):
        """The calls that may be lost: their directory has not been brought to the disk since."""
        found = []
        for number, (what, path, *more) in enumerate(calls):
            folder = (more[0] if what == "name" else path).parent
            later = calls[number + 1 :]
            if what in ("name", "delete") and ("directory", folder) not in later:
                found.append(number)
        return found


def laid(files, to):
    """The files, in an empty directory."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    for path, content in files.items():
        (to / path).parent.mkdir(parents=True, exist_ok=True)
        (to / path).write_bytes(content)


def there(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.filterwarnings(REWRITES)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("new", marks=pytest.mark.sweep),
        pytest.param("whole", marks=pytest.mark.sweep),
        "joined",
    ],
)
def test_every_moment_of_a_crash(tmp_path, monkeypatch, kind):
    """Any part may have come to the disk: the order of calls alone makes a checkpoint safe."""
    folder, copy = tmp_path / "saved", tmp_path / "copy"
    if kind == "joined":
        monkeypatch.setattr(compact, "MOST", 2)
        monkeypatch.setattr(compact, "TOGETHER", 2)
    state = fbuf.init(jnp.int32(0), 8)
    for turn in range(3):
        state = fbuf.add(state, jnp.full(3, turn, jnp.int32))
        state = fbuf.save(folder, state, extra=turn, keep=1)
    if kind == "whole":
        state = lineage.with_id(state, 0)
    first = there(folder)
    state = fbuf.add(state, jnp.full(3, 3, jnp.int32))
    with monkeypatch.context() as patched:
        disk = Disk(folder, patched)
        fbuf.save(folder, state, extra=3, keep=1)
    calls = disk.calls
    assert any("joined" in str(path) for _, path, *_ in calls) == (kind == "joined")
    assert {"content", "directory", "name", "delete"} <= {call[0] for call in calls}
    outcomes = []
    for length in range(len(calls) + 1):
        done = calls[:length]
        unsure = disk.unsure(done)
        for lost in [set(), set(unsure), *({one} for one in unsure), *(
            set(unsure) - {one} for one in unsure
        )]:  # fmt: skip
            files = disk.after(first, done, lost)
            laid({path.relative_to(folder): content for path, content in files.items()}, copy)
            for number in manifest.numbers(copy):
                manifest.read(copy, number)  # what it names is there
            loaded, extra = restored.load(copy)
            assert extra in (2, 3)
            expected = np.repeat(np.arange(extra + 1), 3)[-8:]
            np.testing.assert_array_equal(fbuf.rows(loaded).data, expected)
            outcomes.append(extra)
    assert outcomes[0] == 2
    assert outcomes[-1] == 3
    assert set(outcomes) == {2, 3}


SAVING = textwrap.dedent(
    """
    import sys, tempfile, jax, jax.numpy as jnp, fbuf
    from fbuf.checkpoint import compact
    compact.MOST, compact.TOGETHER = 6, 4
    path, background = sys.argv[1], sys.argv[2] == "background"
    state, turn = None, 0
    if sys.argv[3] == "go on":
        state, turn = fbuf.load(path, episodes="keep")
    copy = jax.tree.map(jnp.copy, state)
    for _ in range(2):  # all is compiled
        copy = fbuf.save(tempfile.mkdtemp(dir=sys.argv[4]), NEXT(copy, turn + 1), extra=0)
    print(turn, flush=True)
    while True:
        turn += 1
        state = NEXT(state, turn)
        state = fbuf.save(path, state, extra=turn, background=background)
        print(turn, flush=True)
    """
)


def after(state, turn):
    """The buffer of a turn: some of everything that a checkpoint has."""
    if state is None:
        state = fbuf.init(
            {"x": jnp.zeros(20), "n": jnp.int32(0)}, 400, num_envs=2, lockstep=False, next_of="n",
            sampler=fbuf.Prioritized(window=2),
        )  # fmt: skip
    rows = {"x": jnp.full((15, 2, 20), turn, jnp.float32), "n": jnp.full((15, 2), turn, jnp.int32)}
    mask = (jnp.arange(30).reshape(15, 2) % 7 > 0) | jnp.array([[False, turn % 9 == 0]])
    state = fbuf.add(
        state, rows, time_major=True, mask=mask & jnp.array([[True, turn % 3 == 0]]),
        next_observation=rows["n"] + 1, terminated=jnp.arange(30).reshape(15, 2) % 11 == turn % 11,
    )  # fmt: skip
    ids = fbuf.ids_at(state, jnp.arange(5) * turn % 400)
    state = fbuf.update_priority(state, ids, jnp.arange(1.0, 6.0) + turn % 4)
    if turn % 4 == 0:
        state = fbuf.write(
            state, fbuf.ids_at(state, jnp.array([turn % 400])), {"n": jnp.array([-turn])}
        )
    return fbuf.remove(state, ids, mask=jnp.arange(5) < turn % 2)


class Killed:
    """Saves that are killed, and what there is afterwards."""

    def __init__(self, folder, background, rng):
        self.folder, self.background, self.rng = folder, background, rng
        self.kills, self.nothing_yet = 0, 0
        self.begin()

    def begin(self):
        """Anew, with the first save of a directory, which writes everything."""
        self.path = self.folder / f"saved-{self.kills}"
        self.turn, self.state = 0, None

    def kill(self):
        """Save until it is killed, at some moment."""
        if self.rng.random() < 0.4:
            self.begin()
        program = "import jax.numpy as jnp, fbuf\n" + inspect.getsource(after)
        program += SAVING.replace("NEXT", "after")
        begin = "go on" if self.turn else "begin"
        given = [str(self.path), self.background, begin, str(self.folder)]
        command = [sys.executable, "-c", program, *given]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline()]
            time.sleep(self.rng.uniform(0, 0.25 if self.turn else 0.05))
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
        assert process.returncode == -signal.SIGKILL
        self.kills += 1
        returned = int(lines[-1])
        # In the background that one may still be written; the one after it may be there.
        self.check({returned - (self.background == "background"), returned, returned + 1})

    def check(self, legal):
        """There is one of the legal states, bit for bit."""
        if 0 in legal and not (self.path.is_dir() and manifest.numbers(self.path)):
            self.nothing_yet += 1
            with pytest.raises(fbuf.CheckpointError, match="no checkpoint"):
                restored.load(self.path)
            return
        state, turn = restored.load(self.path)
        assert turn in legal
        while self.turn < turn:
            self.turn += 1
            self.state = after(self.state, self.turn)
        same(seen(state), seen(self.state))
        same((state.index, state.ring.flags), (self.state.index, self.state.ring.flags))
        assert len([p for p in self.path.rglob("*") if "unfinished" in p.name]) <= 1


@pytest.mark.parametrize(
    ("background", "times"),
    [
        pytest.param("background", 5, marks=pytest.mark.sweep),
        pytest.param("now", 5, marks=pytest.mark.sweep),
        pytest.param("background", 150, marks=pytest.mark.soak),
        pytest.param("now", 150, marks=pytest.mark.soak),
    ],
)
def test_killed_at_any_moment(tmp_path, background, times):
    killed = Killed(tmp_path, background, random.Random(0))
    for _ in range(times):
        killed.kill()
    assert killed.kills == times
    assert times < 50 or 0 < killed.nothing_yet < times  # in the first save of a directory
    print(f"{times} kills, {killed.nothing_yet} of them before the first save was whole")


@pytest.mark.sweep
def test_a_full_disk(tmp_path):
    """The error comes through, the checkpoint before it stays, and the next save tidies up."""
    with small_disk(tmp_path, "300k") as small:
        path = small / "saved"
        state = fbuf.add(fbuf.init(jnp.zeros(100), 1000), jnp.ones((100, 100)))
        state = fbuf.save(path, state, extra=1)
        before = there(path)
        more = fbuf.add(state, jnp.ones((800, 100)), donate=False)
        with pytest.raises(OSError, match="No space left"):
            fbuf.save(path, more, extra=2)
        fbuf.save(path, more, extra=2, background=True)
        with pytest.raises(OSError, match="No space left"):
            fbuf.wait()
        assert {name: there(path)[name] for name in before} == before
        assert restored.load(path).extra == 1
        assert there(path).keys() == before.keys()  # nothing takes the room that is left
        (path / "shard-00000" / "rows-00000009.npy.unfinished").write_bytes(b"of a process killed")
        fbuf.save(path, state, extra=3)
        assert restored.load(path).extra == 3
        assert not any("unfinished" in str(name) for name in there(path))


@pytest.mark.sweep
def test_one_writer_at_a_time(tmp_path):
    command = [sys.executable, "-c", HOLDING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        assert p.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match=f"process {p.pid} on "):
            fbuf.save(tmp_path, fbuf.init(jnp.zeros(()), 3))
        p.communicate("end")
    fbuf.save(tmp_path, fbuf.init(jnp.zeros(()), 3))


@pytest.mark.sweep
def test_a_lock_is_gone_with_its_process(tmp_path):
    """Though it has forked off another one, such as a worker of a data loader."""
    command = [sys.executable, "-c", FORKING + HOLDING, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as p:
        assert p.stdout is not None
        assert p.stdout.readline() == "held\n"
        child = int(p.stdout.readline())
        try:
            p.kill()
            p.wait()
            os.kill(child, 0)  # it is there
            fbuf.save(tmp_path, fbuf.init(jnp.zeros(()), 3))
        finally:
            os.kill(child, signal.SIGKILL)


FORKING = """
import os, time
def input():
    child = os.fork()
    if child == 0:
        time.sleep(600)
    print(child, flush=True)
    time.sleep(600)
"""

HOLDING = """
import pathlib, sys
from fbuf.checkpoint import lock
with lock.held(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    input()
"""


@pytest.mark.sweep
def test_a_failure_is_said_at_the_end_of_python(tmp_path):
    program = """
import sys, jax.numpy as jnp, fbuf
from fbuf.checkpoint import manifest
def full(*_):
    raise OSError("no space left")
manifest.write = full
fbuf.save(sys.argv[1], fbuf.init(jnp.zeros(()), 3), background=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=ROOT,
    )  # fmt: skip
    assert "no space left" in done.stderr
