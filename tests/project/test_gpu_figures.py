"""Figures of a GPU: the tables of a run, and those that are published of older and newer ones."""

from __future__ import annotations

import json

import pytest

reason = "comes with a clone"
names = pytest.importorskip("benchmarks.evidence.gpu_speed_tables", reason=reason)
publish = pytest.importorskip("benchmarks.publish", reason=reason)

KIND = {"item": "row", "n": 100, "prioritized": False, "batch": 256}
OF_CALLS = {"what": "sample", "mode": names.OWN, "jax": "0.11.2"}
OF_STEPS = {"what": names.STEP, "jax": "0.11.2"}
NEWER = [
    KIND | OF_STEPS | {"peer": names.FBUF, "mode": "LHS", "us": 20.0},
    KIND | OF_STEPS | {"peer": names.FBUF, "mode": "CONCURRENT", "us": 10.0},
    KIND | OF_STEPS | {"peer": names.FLASHBAX, "mode": "LHS", "us": 15.0},
    KIND | OF_CALLS | {"peer": names.FBUF, "us": 90.0, "returned_us": 60.0, "fields": 11},
    KIND | OF_CALLS | {"peer": names.TORCHRL, "us": 180.0, "returned_us": 150.0, "fields": 4},
    KIND | OF_CALLS | {"peer": names.SAME, "us": 270.0, "returned_us": 240.0, "fields": 11},
]
OLDER = [
    KIND | {"what": names.STEP, "peer": names.FBUF, "us": 30.0},
    KIND | {"what": publish.HANDED, "peer": names.FBUF, "us": 600.0},
    KIND | {"what": publish.HANDED, "peer": names.TORCHRL, "us": 150.0},
]


def published(folder, records):
    frame = {"item": "frame", "n": 5, "what": "rows"}
    about = {"device": "a GPU", "jax": "0.11.2", "torch": "2.11.0"}
    text = json.dumps({"about": about, "records": [*records, frame]})
    (folder / "gpu_speed.json").write_text(text)
    return publish.gpu_figures(folder)


def test_newer_figures_have_modes_and_calls(tmp_path):
    found = published(tmp_path, NEWER)
    assert found["uniform step, inside `lax.scan`"] == [20.0, 15.0, None]
    assert found["the uniform one, in mode CONCURRENT"] == [10.0, None, None]
    assert found["a uniform batch as tensors"] == [90.0, None, 180.0]


def test_older_figures_are_published_as_they_were(tmp_path):
    found = published(tmp_path, OLDER)
    assert found["uniform step, inside `lax.scan`"] == [30.0, None, None]
    assert found["a uniform batch as tensors"] == [600.0, None, 150.0]
    assert not any("CONCURRENT" in text for text in found)


def test_a_table_has_each_mode_and_each_number_of_fields():
    lines = names.tables(NEWER)
    (step,) = [line for line in lines if line.startswith("| rows of 97")]
    cells = [cell.strip() for cell in step.strip("|").split("|")]
    assert cells[-4:] == ["20.0", "15.0 (0.75x)", "10.0", "-"]
    (call,) = [line for line in lines if line.startswith("| sample")]
    cells = [cell.strip() for cell in call.strip("|").split("|")]
    assert cells[-9:-6] == ["11", "4", "11"]
    assert cells[-6:] == [
        "60.0",
        "150 (2.50x)",
        "240 (4.00x)",
        "90.0",
        "180 (2.00x)",
        "270 (3.00x)",
    ]
    assert lines[-1] == "- all of these with jax 0.11.2"
