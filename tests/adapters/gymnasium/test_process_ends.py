"""Programs with processes, as users run them: however they end, nothing is left."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from support.leftovers import orphans

pytest.importorskip("gymnasium")

TESTS = pathlib.Path(__file__).parents[2]
ROOT = TESTS.parent

# The learner needs no buffer for any of this, and starts sooner without.
PROGRAM = """
import functools, sys, time
import fbuf
from fbuf_adapters.gymnasium import ProcessCollector
from support.in_processes import Counting, Policy

def main():
    make_env = functools.partial(Counting, {fails!r}, 5)
    collector = ProcessCollector(make_env, Policy(), processes=2, envs_per_process=2, chunk=4)
    if {fails!r}:
        state = fbuf.init(collector.item, 800, **collector.options)
        state = collector.drain(state)
    print("ready", flush=True)
    {then}
"""
GUARDED = '\nif __name__ == "__main__":\n    main()\n'


pytestmark = pytest.mark.sweep  # each program takes seconds to start
BOTH = [None, "hangs"]
PATHS = [str(TESTS), str(ROOT), str(ROOT / "adapters"), *filter(None, sys.path)]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}


class Run:
    """A program in a session of its own, so that all its processes can be found."""

    def __init__(self, folder, text):
        (folder / "program.py").write_text(text)
        self.memory = orphans()
        self.process = subprocess.Popen(
            [sys.executable, str(folder / "program.py")],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=folder,
        )

    def ready(self):
        assert self.process.stdout.readline() == "ready\n", self.process.stderr.read()
        time.sleep(0.3)  # into the middle of a chunk, or of a hang

    def end(self, seconds=60):
        """The exit code and what was printed, once all its processes have ended."""
        try:
            output, errors = self.process.communicate(timeout=seconds)
            until = time.monotonic() + 10
            while (left := self.left()) and time.monotonic() < until:
                time.sleep(0.05)
            assert not left, f"still there: {left}"
            assert orphans() <= self.memory
        finally:
            if self.left():
                os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.returncode, output, errors

    def left(self):
        """The commands of the processes of its session that are not done."""
        found = []
        for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = status.read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    found.append((status.parent / "cmdline").read_text().replace("\0", " "))
            except OSError:
                pass
        return found


def program(fails=None, then="pass", guard=GUARDED):
    return PROGRAM.format(fails=fails, then=then) + guard


@pytest.mark.parametrize("fails", BOTH)
def test_ctrl_c_ends_all(tmp_path, fails):
    run = Run(tmp_path, program(fails, "time.sleep(100)"))
    run.ready()
    os.killpg(run.process.pid, signal.SIGINT)  # as a terminal does: to all of them
    code, _, errors = run.end(15)
    assert code == -signal.SIGINT
    assert errors.count("Traceback") == 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("fails", BOTH)
def test_processes_end_with_a_parent_that_is_killed(tmp_path, fails):
    run = Run(tmp_path, program(fails, "time.sleep(100)"))
    run.ready()
    os.kill(run.process.pid, signal.SIGKILL)
    code, _, errors = run.end(15)
    assert code == -signal.SIGKILL
    assert errors == ""


def test_a_program_that_closes_nothing_ends(tmp_path):
    code, output, errors = Run(tmp_path, program()).end()
    assert (code, output, errors) == (0, "ready\n", "")


def test_a_program_without_a_guard_is_told(tmp_path):
    began = time.monotonic()
    code, output, errors = Run(tmp_path, program(guard="\nmain()\n")).end()
    assert time.monotonic() - began < 40
    assert code == 1
    assert output == ""
    assert errors.count("Traceback") == 1, errors
    assert re.search(r"CollectorError: .* put all that the script does under", errors)
    assert 'if __name__ == "__main__":' in errors


def test_a_program_that_reads_for_long_is_told(tmp_path):
    """Each process imports it, and reads all of it again."""
    read = 'if __name__ != "__main__":\n    import time\n    time.sleep(60)\n'
    short = "from fbuf_adapters.gymnasium import _worker_pool\n_worker_pool._START = 1.0\n"
    text = program().replace("processes=2", "timeout=1.0, processes=2")
    code, _, errors = Run(tmp_path, short + read + text).end(40)
    assert code == 1
    assert re.search(r"has been importing your script for \d+ s \(timeout=1\), as each", errors)
    assert 'if __name__ == "__main__":' in errors
    assert "hangs" not in errors


def test_a_program_that_fails_where_it_is_imported_is_told(tmp_path):
    fails = 'if __name__ != "__main__":\n    raise SystemExit(3)\n'
    code, _, errors = Run(tmp_path, fails + program()).end(40)
    assert code == 1
    assert "ended with exit code 3 while it imported your script" in errors


def test_a_program_from_standard_input_is_told():
    """Its processes could not import it."""
    done = subprocess.run(
        [sys.executable],
        input=program(),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert re.search(r"CollectorError: .* there is no file <stdin>; save", done.stderr)


def test_workers_import_nothing_that_they_need_not():
    code = """
        import sys
        import fbuf_adapters.gymnasium._worker_main
        assert not {"jax", "torch", "fbuf", "tqdm"} & set(sys.modules), "imported too early"
    """
    paths = os.pathsep.join([str(ROOT), str(ROOT / "adapters"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    subprocess.run(command, check=True, env=environment, timeout=60)
