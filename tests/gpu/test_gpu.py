"""Ask a GPU: one test a check, each in a process of its own.

    pytest -m gpu

on a machine with a GPU that JAX and PyTorch both find; without one they are skipped. `checks.py`
asks the same, and writes a report.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import checks  # noqa: E402 (after the skip)
import stage  # noqa: E402 (after the skip)
from stage import CHECKS, DANGER, FAILS, HOLDS, LEFT, PROMISE, Check, Stage  # noqa: E402 (after the skip)

SECONDS = 120


@functools.cache
def there_is_a_gpu() -> bool:
    """Asked in another process, or this one would take its memory."""
    if not torch.cuda.is_available():
        return False
    environment = checks.Device("cuda", False, SECONDS).environment()
    found, _, _ = checks.work_apart({"check": "machine"}, SECONDS, environment)
    return bool(found and found["cuda"])


@pytest.mark.gpu
@pytest.mark.parametrize("name", CHECKS)
def test_on_a_gpu(name):
    if not there_is_a_gpu():
        pytest.skip("needs a GPU that JAX and PyTorch both find")
    check = CHECKS[name]
    found = checks.ask(check, checks.Device("cuda", False, SECONDS))
    if found["verdict"] == LEFT:
        pytest.skip(found["text"])  # what this machine lacks, in words
    if found["verdict"] == FAILS and check.kind != PROMISE:
        pytest.xfail(f"this {check.kind} does not show here: {found['text']}")
    assert found["verdict"] == HOLDS, found["text"]


@pytest.mark.sweep
@pytest.mark.skipif(not stage.BENCHMARKS.exists(), reason="needs the benchmarks, for the report")
def test_every_check_runs_without_a_gpu(tmp_path):
    command = [sys.executable, checks.__file__, "--device", "cpu", "--quick", "--parts", "checks"]
    environment = checks.Device("cpu", True, SECONDS).environment()
    subprocess.run([*command, "--results", str(tmp_path)], check=True, env=environment)
    records = json.loads((tmp_path / "gpu_checks.json").read_text())["records"]
    assert {record["name"] for record in records} == set(CHECKS)
    assert (tmp_path / "gpu_checks.md").read_text().startswith("# JAX and PyTorch on one GPU")


# Without a GPU: what is made of the answers.


def asked(monkeypatch, answer, kind=PROMISE, **options):
    monkeypatch.setattr(checks, "work_apart", lambda *_: answer)
    check = Check("x", kind, "a claim", lambda _: {}, **options)
    return checks.ask(check, checks.Device("cpu", True, SECONDS))["verdict"]


def test_a_process_that_ends_without_an_answer_breaks_a_promise(monkeypatch):
    held = {"verdict": HOLDS, "text": ""}
    assert asked(monkeypatch, (held, 0, "")) == HOLDS
    assert asked(monkeypatch, (None, -6, "F0000 abort")) == FAILS
    assert asked(monkeypatch, (held, 1, "at exit")) == FAILS
    assert asked(monkeypatch, (None, None, "")) == LEFT
    assert asked(monkeypatch, (None, -6, "abort"), DANGER, may_abort=True) == HOLDS
    assert asked(monkeypatch, (None, 1, "error"), DANGER, may_abort=True) == FAILS


def test_on_a_cpu_what_only_a_gpu_can_tell_is_left():
    cpu = Stage("cpu", True)
    assert stage.on_gpu(cpu, True, "some figures") == {
        "verdict": LEFT,
        "text": "needs a GPU; here: some figures",
    }
    assert stage.on_gpu(cpu, True, "", right=False)["verdict"] == FAILS


def test_why_a_process_ended():
    assert checks.last_words("one\nF0522 09:00 check failed\nmore\n") == "F0522 09:00 check failed"
    assert checks.last_words("one\ntwo\n\n") == "two"
    assert checks.last_words("") == "no message"
