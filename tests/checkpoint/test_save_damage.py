"""Damaged checkpoints: always an error that says so, never a wrong load, a hang or a stray file."""

from __future__ import annotations

import copy
import json
import shutil
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import restored
from test_save import same, without_id

import fbuf
from fbuf.checkpoint import lineage, manifest

SWEEP = pytest.mark.sweep


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of several files of every kind, and what it holds."""
    folder = tmp_path_factory.mktemp("saved")
    item = {"x": jnp.zeros(3), "n": (jnp.int32(0), jnp.zeros((9, 9), jnp.uint8))}
    state = fbuf.init(
        item, 12, num_envs=2, lockstep=False, sampler=fbuf.Prioritized(window=2), next_of="x"
    )
    extra = {"key": jax.random.key(1), "of": [1, 2.5, np.arange(3)]}
    for turn in range(4):
        # The function is called in the same turn.
        rows = jax.tree.map(lambda leaf: jnp.full((2, *leaf.shape), turn + 1, leaf.dtype), item)  # noqa: B023
        ends = jnp.array([turn == 1, False])
        state = fbuf.add(state, rows, next_observation=rows["x"] + 1, terminated=ends)
        state = fbuf.save(folder, state, extra=extra, keep=1)
    state = fbuf.write(state, fbuf.ids_at(state, jnp.array([0])), {"x": jnp.ones((1, 3))})
    state = fbuf.save(folder, state, extra=extra, keep=1)
    (folder / "LOCK").unlink()
    kinds = {path.name.split("-")[0] for path in folder.rglob("*") if path.is_file()}
    assert kinds == {"MANIFEST", "rows", "ends", "written", "index"}
    return folder, state, extra


def refused_or_right(folder, saved, may_be_another=False):
    """Load it; whether it was refused, as it must be unless it is the buffer that was saved."""
    try:
        state, extra = restored.load(folder)
    except fbuf.CheckpointError as error:
        # To load may also succeed, so `pytest.raises` will not do.
        assert str(error).startswith("fbuf.load: ")  # noqa: PT017
        return True
    if may_be_another:
        jax.block_until_ready(state)
        return False
    # A manifest of an older format has no save id.
    assert lineage.of_state(state) in (lineage.NONE, lineage.of_state(saved[1]))
    same(without_id(state), without_id(saved[1]))
    for a, b in zip(jax.tree.leaves(extra), jax.tree.leaves(saved[2]), strict=True):
        if isinstance(b, jax.Array):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_array_equal(a, b)
    return False


def copied(saved, tmp_path):
    folder = tmp_path / "copy"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved[0], folder)
    return folder


@pytest.mark.sweep
@pytest.mark.parametrize("times", [60, pytest.param(2000, marks=SWEEP)])
def test_a_byte_or_a_length_is_another(saved, tmp_path, times):
    rng = np.random.default_rng(times)
    names = sorted(p.relative_to(saved[0]) for p in saved[0].rglob("*") if p.is_file())
    folder = copied(saved, tmp_path)
    for turn in range(times):
        path = folder / names[turn % len(names)]
        whole = path.read_bytes()
        damaged = bytearray(whole)
        match rng.integers(4):
            case 0:
                del damaged[rng.integers(len(damaged)) :]
            case 1:
                damaged += bytes(rng.integers(1, 9))
            case _:
                damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        assert refused_or_right(folder, saved)
        path.write_bytes(whole)
    assert not refused_or_right(folder, saved)


@SWEEP
def test_files_that_are_missing_or_swapped(saved, tmp_path):
    names = sorted(p.relative_to(saved[0]) for p in saved[0].rglob("*.npy"))
    for name in names:
        folder = copied(saved, tmp_path)
        (folder / name).unlink()
        assert refused_or_right(folder, saved)
        (folder / name).symlink_to(saved[0] / name)
        assert refused_or_right(folder, saved)
        for other in names:
            folder = copied(saved, tmp_path)
            same_bytes = (saved[0] / name).read_bytes() == (saved[0] / other).read_bytes()
            shutil.copy(saved[0] / other, folder / name)
            assert refused_or_right(folder, saved) == (not same_bytes)


@pytest.mark.sweep
def test_a_newer_one_that_is_damaged_is_not_passed_over(saved, tmp_path):
    folder = copied(saved, tmp_path)
    state = restored.load(folder).state
    fbuf.save(folder, fbuf.clear(state), extra="newer")
    newest = folder / manifest.name_of(manifest.numbers(folder)[-1])
    newest.write_bytes(newest.read_bytes()[:-1])
    with pytest.raises(fbuf.CheckpointError, match="damaged"):
        restored.load(folder)
    with pytest.warns(UserWarning, match="reading the checkpoint before it"):
        assert restored.load(folder, fallback=True).extra["of"][0] == 1


def test_a_format_of_the_future(saved, tmp_path):
    folder = copied(saved, tmp_path)
    path = folder / manifest.name_of(manifest.numbers(folder)[-1])
    path.write_bytes(path.read_bytes().replace(b"checkpoint 3,", b"checkpoint 4,", 1))
    with pytest.raises(fbuf.CheckpointError, match="has format 4, and this fbuf reads formats up"):
        restored.load(folder)


WRONG = [
    *(
        None,
        True,
        -1,
        0,
        3,
        2**31,
        2**62,
        10**30,
        float("nan"),
        1e300,
        "",
        "../../x",
        "/etc/passwd",
    ),
    *([], [1], [-1, 2], {}, {"leaf": {}}, {"dict": [["a", {"none": []}]]}, "object", "float32"),
]


def paths(data, path=()):
    """Where the values of a manifest are."""
    yield path
    children = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    for key, child in children:
        yield from paths(child, (*path, key))


def changed(data, path, value):
    if not path:
        return value
    data = copy.deepcopy(data)
    at = data
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return data


def rewritten(path, data, version=manifest.FORMAT):
    """A manifest with right length and checksum, whatever it says."""
    body = json.dumps(data).encode()
    head = f"fbuf checkpoint {version}, {len(body)} bytes, crc32 {zlib.crc32(body):08x}\n"
    path.write_bytes(head.encode() + body)


@SWEEP
@pytest.mark.parametrize("every", [1, 23])
def test_manifests_that_somebody_edited(saved, tmp_path, every):
    """Every value made every other one, with a checksum that is right."""
    folder = copied(saved, tmp_path)
    path = folder / manifest.name_of(manifest.numbers(folder)[-1])
    data = json.loads(path.read_bytes().split(b"\n", 1)[1])
    before = {p for p in tmp_path.parent.rglob("*")}
    edits = [(at, value) for at in paths(data) for value in WRONG][::every]
    refused = 0
    for at, value in edits:
        rewritten(path, changed(data, at, value))
        # The manifest may describe another buffer.
        another = at[:1] in ((), ("config",), ("extra",), ("about",))
        refused += refused_or_right(folder, saved, may_be_another=another)
    assert refused > 0.8 * len(edits)
    assert {p for p in tmp_path.parent.rglob("*")} == before
