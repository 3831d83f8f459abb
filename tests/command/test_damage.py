"""Every command with every kind of damage: its exit code, and its message of one line."""

from __future__ import annotations

import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf
from fbuf.command.main import main

RNG = np.random.default_rng(0)


def steps(count, first):
    """Steps of a walk, and the observation behind the last one."""
    walk = np.concatenate([first[None], RNG.normal(size=(count, 3)).astype(np.float32)])
    rows = {
        "observation": walk[:-1],
        "reward": RNG.normal(size=count).astype(np.float32),
        "image": RNG.integers(0, 255, (count, 40, 40)).astype(np.uint8),
    }
    return rows, walk[1:]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Two checkpoints of one buffer, with a file of each kind: rows, ends, changed rows, index."""
    path = tmp_path_factory.mktemp("whole")
    item = {"observation": jnp.zeros(3), "reward": 0.0, "image": jnp.zeros((40, 40), jnp.uint8)}
    state = fbuf.init(item, 100, next_of="observation")
    rows, following = steps(60, np.zeros(3, np.float32))
    ends = np.arange(60) % 10 == 9
    given = np.where(ends[:, None], following + 1, following)
    state = fbuf.save(path, fbuf.add(state, rows, truncated=ends, next_observation=given))
    rows, following = steps(5, following[-1])
    state = fbuf.add(state, rows, next_observation=following)
    changed = {"reward": jnp.arange(3.0)}
    state = fbuf.write(state, fbuf.ids_at(state, jnp.arange(3)), changed)
    fbuf.save(path, state)
    return path


def flipped(at):
    """A change of one bit, at a part of the file."""

    def change(path):
        content = bytearray(path.read_bytes())
        content[min(int(at * len(content)), len(content) - 1)] ^= 8
        path.write_bytes(content)

    return change


KINDS = {
    "a flipped bit at the beginning": flipped(0.0),
    "a flipped bit in the middle": flipped(0.5),
    "a flipped bit at the end": flipped(1.0),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-5]),
    "empty": lambda path: path.write_bytes(b""),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "gone": pathlib.Path.unlink,
    "a directory": lambda path: (path.unlink(), path.mkdir()),
}
ROWS = ("rows-00000001.npy", "rows-00000002.npy", "ends-00000001.npy", "written-00000002.npy")


def told(capsys, command, path):
    """The exit code, and the lines without those of checkpoints that are whole."""
    code = main([command, str(path)])
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    assert code == 0 or command == "verify" or not said.out  # no figures of damaged rows
    lines = (said.out if command == "verify" else said.err).splitlines()
    return code, [line for line in lines if not line.endswith(": whole")]


@pytest.mark.first(16)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", [*ROWS, "index-00000002.npy", "MANIFEST-00000002"])
def test_damage_of_the_newest_checkpoint(whole, tmp_path, capsys, file, kind):
    """Inspect alone does not read all rows, and says so on its page."""
    path = tmp_path / "saved"
    shutil.copytree(whole, path)
    name = file if file.startswith("MANIFEST") else f"shard-00000/{file}"
    KINDS[kind](path / name)
    none = file.startswith("MANIFEST") and kind == "gone"  # the one before is then the newest
    unread = file in ROWS and "flipped" in kind
    expected = {
        "doctor": 0 if none else 2,
        "inspect": 0 if none or unread else 1,
        "verify": 0 if none else 1,
    }
    for command, code in expected.items():
        found, lines = told(capsys, command, path)
        assert found == code, command
        assert bool(lines) == bool(code)
        assert all(f"{path}/{name} " in line for line in lines)


@pytest.mark.parametrize("file", ["MANIFEST-00000001", "shard-00000/index-00000001.npy"])
def test_damage_of_an_older_checkpoint_is_for_verify(whole, tmp_path, capsys, file):
    path = tmp_path / "saved"
    shutil.copytree(whole, path)
    KINDS["a flipped bit at the end"](path / file)
    assert [told(capsys, command, path)[0] for command in ("doctor", "inspect", "verify")] == [
        0,
        0,
        1,
    ]


@pytest.mark.parametrize("file", ["SHARDS-00000001", "of-shard-00001/shard-00000/rows-*"])
def test_damage_over_a_mesh(tmp_path, capsys, file):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "data")
    state = fbuf.sharded.init({"reward": 0.0}, 40, mesh=mesh, shards=2)
    state = fbuf.sharded.add(state, {"reward": RNG.normal(size=20).astype(np.float32)})
    fbuf.sharded.save(tmp_path, state)
    assert told(capsys, "doctor", tmp_path) == (0, [])
    (path,) = tmp_path.glob(file)
    KINDS["a flipped bit at the end"](path)
    code, (line,) = told(capsys, "doctor", tmp_path)
    assert code == 2
    assert str(path) in line
    assert told(capsys, "verify", tmp_path)[0] == 1


def test_damage_is_damage_whatever_else_is_asked(whole, tmp_path, capsys):
    path = tmp_path / "saved"
    shutil.copytree(whole, path)
    flipped(0.5)(path / "shard-00000" / ROWS[0])
    for more in (["--json"], ["--reward", "reward"], ["--reward", "nothing"]):
        assert main(["doctor", str(path), *more]) == 2
        said = capsys.readouterr()
        assert not said.out
        assert said.err.startswith(f"fbuf: {path}/shard-00000/{ROWS[0]} is damaged: ")
