"""The parts of the benchmarks of a GPU that can be tried without one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("torch")
reason = "comes with a clone"
main = pytest.importorskip("benchmarks.evidence.gpu_parts.__main__", reason=reason)
crossing = pytest.importorskip("benchmarks.evidence.gpu_parts.crossing", reason=reason)

LEAVES = [
    np.arange(24, dtype=np.float32).reshape(8, 3) - 7.5,
    np.arange(8, dtype=np.int32) - 3,
    np.arange(8) % 3 == 0,
    np.arange(40, dtype=np.uint8).reshape(8, 5),
]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("how", crossing.EXPORTS)
@pytest.mark.parametrize("way", crossing.WAYS)
def test_batches_cross_as_they_were(how, way, times):
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in LEAVES]
    packing = crossing.Packing(shapes, times)
    arrays = jax.jit(packing.pack)([jnp.asarray(leaf) for leaf in LEAVES])
    batches = packing.unpack([crossing.exported(array, how) for array in arrays], way)
    assert len(batches) == times
    for number, leaf in enumerate(LEAVES):
        found = np.concatenate([batch[number].numpy() for batch in batches])
        assert found.dtype == leaf.dtype
        np.testing.assert_array_equal(found, leaf)
    storages = {leaf.untyped_storage().data_ptr() for batch in batches for leaf in batch}
    assert len(storages) == (2 if way == crossing.SHARED else len(LEAVES) * times)


@pytest.mark.parametrize("how", crossing.EXPORTS)
def test_tensors_are_imported_as_they_are(how):
    import torch

    tensor = torch.arange(64, dtype=torch.float32)
    array = crossing.imported(tensor, how)
    np.testing.assert_array_equal(np.asarray(array), tensor.numpy())


def test_leaves_of_other_widths_are_refused():
    with pytest.raises(ValueError, match=r"\[2\] bytes"):
        crossing.Packing([jax.ShapeDtypeStruct((4,), np.float16)])


def test_cases_are_named_by_their_number():
    assert main.wanted([]) == list(main.CASES)
    assert main.wanted(["M1"]) == ["M1"]
    assert main.wanted(["M9", "M6"])[-1] == "M9"
    assert len(main.wanted(["M6"])) == 4
    assert main.wanted(["M11"]) == []


def test_a_case_keeps_its_records_however_it_ends(monkeypatch, tmp_path):
    fake = tmp_path / "python"
    fake.write_text('#!/bin/sh\necho \'{"what": "one"}\'\nprintf \'{"what": "tw\'\n$FAKE_END\n')
    fake.chmod(0o755)
    monkeypatch.setattr(main.sys, "executable", str(fake))
    for end, status in (("exit 3", "ended with 3"), ("exec sleep 9", "stopped after 1 s")):
        monkeypatch.setenv("FAKE_END", end)
        found = main.run_case("M10", 1.0, cpu=True)
        assert (found.status, found.records) == (status, [{"what": "one"}])
        assert "| one" in main.section(found)[-1]
    monkeypatch.setenv("FAKE_END", "exit 0")
    assert main.run_case("M10", 5.0, cpu=True).status == "done"
