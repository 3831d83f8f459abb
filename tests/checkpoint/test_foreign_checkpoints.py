"""Checkpoints that somebody else has made: read through the gate, and never written through."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from support import restored
from test_save import files, same
from test_save_damage import changed, paths, rewritten

import fbuf
from fbuf.checkpoint import incremental, lock_file, manifest
from fbuf.command.main import main
from fbuf.host import HostStore

pytestmark = pytest.mark.usefixtures("random_tags")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    state = fbuf.add(fbuf.init({"x": jnp.zeros(2), "task": jnp.int32(0)}, 8), rows(3))
    fbuf.save(folder, state, extra={"step": 3}, keep=1)
    return folder


def rows(count):
    return {"x": np.ones((count, 2), np.float32), "task": np.arange(count, dtype=np.int32) % 2}


@pytest.fixture
def folder(made, tmp_path):
    return pathlib.Path(shutil.copytree(made, tmp_path / "copy"))


NOT_PLAIN = {
    "a pipe": os.mkfifo,
    "a directory": os.mkdir,
    "a link": lambda path: os.symlink("/dev/zero", path),
}
READS = {
    "load": fbuf.load,
    "open": HostStore.open,
    "inspect": lambda folder: main(["inspect", str(folder)]),
    "verify": lambda folder: main(["verify", str(folder)]),
}


@pytest.mark.parametrize("kind", NOT_PLAIN)
@pytest.mark.parametrize("read", READS)
def test_a_manifest_that_is_no_plain_file_is_damage(folder, capsys, kind, read):
    """Nobody waits for a pipe, or reads a device without end; the checkpoint before it is there."""
    NOT_PLAIN[kind](folder / manifest.name_of(2))
    if read in ("load", "open"):
        with pytest.raises(fbuf.CheckpointError, match=f"00000002 is damaged: .*{kind}"):
            READS[read](folder)
    else:
        assert READS[read](folder) == 1
        captured = capsys.readouterr()
        assert kind in captured.out + captured.err
    if read == "load":
        with pytest.warns(UserWarning, match="reading the checkpoint before it"):
            state = restored.load(folder, fallback=True).state
        for _ in range(3):
            state = fbuf.save(folder, state)
        same(restored.load(folder).state, state)


@pytest.mark.parametrize("kind", NOT_PLAIN)
@pytest.mark.parametrize("name", ["shard-00000", "shard-00000/rows-00000001.npy"])
def test_a_file_of_rows_that_is_no_plain_file_is_damage(folder, kind, name):
    path = folder / name
    path.rename(folder / "elsewhere")
    NOT_PLAIN[kind](path)
    with pytest.raises(fbuf.CheckpointError, match=r"is (not read|missing)"):
        fbuf.load(folder)


@pytest.mark.parametrize("name", ["LOCK", "shard-00000/index-00000002.npy.unfinished"])
def test_a_save_writes_through_no_link(folder, tmp_path, name):
    """A link in a directory of somebody else would have another file written over."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    state = restored.load(folder).state
    path = folder / name
    path.unlink(missing_ok=True)
    path.symlink_to(victim)
    if name == "LOCK":
        with pytest.raises(fbuf.CheckpointError, match="is not written to: LOCK is a link"):
            fbuf.save(folder, state)
    else:
        fbuf.save(folder, state)
        path.symlink_to(tmp_path / "new")
        same(fbuf.save(folder, state), restored.load(folder).state)
    assert victim.read_text() == "precious"
    assert not (tmp_path / "new").exists()


def test_a_directory_of_rows_that_is_a_link_is_not_saved_to(folder, tmp_path):
    """A load would refuse it, so the save does, and the checkpoint before it stays."""
    state = restored.load(folder).state
    (folder / "shard-00000").rename(tmp_path / "rows")
    (folder / "shard-00000").symlink_to(tmp_path / "rows")
    with pytest.raises(fbuf.CheckpointError, match="no load could read what was to be saved"):
        fbuf.save(folder, state)
    assert manifest.numbers(folder) == [1]


@pytest.mark.parametrize("damaged", [True, False])
def test_after_the_last_number_nothing_is_saved(folder, monkeypatch, damaged):
    """The name of the next manifest would have nine digits, and no load would find it."""
    state = restored.load(folder).state
    last = folder / manifest.name_of(99_999_999)
    last.write_bytes(b"damaged" if damaged else (folder / manifest.name_of(1)).read_bytes())
    there = files(folder)
    said = "has a damaged checkpoint, number 99999999.*take its manifest away, load with fallback"
    if damaged:
        for background in (False, True):
            with pytest.raises(fbuf.CheckpointError, match=said):
                fbuf.save(folder, state, background=background)
        with pytest.warns(UserWarning, match="reading the checkpoint before it"):
            state = restored.load(folder, fallback=True).state
    else:
        state = restored.load(folder).state
    with pytest.raises(
        fbuf.CheckpointError, match="has MANIFEST-99999999, after which there is no"
    ):
        fbuf.save(folder, state)
    assert files(folder) == there
    last.unlink()
    same(fbuf.save(folder, state), restored.load(folder).state)


def test_the_lock_file_of_somebody_else_is_no_process(tmp_path):
    path = tmp_path / "LOCK-HELD"
    whole = dict(process=1, host="a\x1b[2Jb", place="", started="")
    for wrong in ({**whole, "process": "../1"}, {**whole, "host": 3}, [whole], {}, 3, "x"):
        path.write_text(json.dumps(wrong))
        with (
            pytest.raises(BlockingIOError, match="being written by another process"),
            lock_file.held(tmp_path),
        ):
            pass
    path.write_text(json.dumps(whole))
    said = r"process 1 on a\\x1b\[2Jb"
    with pytest.raises(BlockingIOError, match=said), lock_file.held(tmp_path):
        pass


# --- what could not be read is not written -------------------------------------------------------


GROUPED = {
    "grouped": fbuf.Grouped("task", 2),
    "inside": fbuf.Limited(fbuf.Grouped("task", 2), max_uses=3),
    "version": fbuf.Limited(version="task"),
}


@pytest.mark.parametrize("sampler", GROUPED)
def test_a_field_that_the_sampler_draws_by_is_not_dropped(tmp_path, sampler):
    """Without it, or with another one in its place, the index would be of no row."""
    item = {"x": jnp.zeros(2), "of": {"task": jnp.int32(0), "more": 0.0}, "task": jnp.int32(0)}
    state = fbuf.init(item, 8, sampler=GROUPED[sampler])
    fbuf.save(tmp_path, state)
    for options in ({}, {"fill": {"task": jnp.int32(1)}}, {"capacity": 16}):
        with pytest.raises(ValueError, match=r"fbuf\.load: drop has 'task', .* draws by 'task'"):
            fbuf.load(tmp_path, drop=["task"], **options)
    loaded = fbuf.load(tmp_path, drop=["x", "of.task"]).state
    fbuf.save(tmp_path / "other", loaded)
    assert fbuf.load(tmp_path / "other").state.sampler == loaded.sampler


def test_the_dict_around_a_field_of_the_sampler_is_not_dropped(tmp_path):
    item = {"x": jnp.zeros(2), "of": {"task": jnp.int32(0)}}
    fbuf.save(tmp_path, fbuf.init(item, 8, sampler=fbuf.Grouped("of.task", 2)))
    with pytest.raises(ValueError, match=r"drop has 'of', .* draws by 'of\.task'"):
        fbuf.load(tmp_path, drop=["of"])


def test_a_buffer_that_no_load_could_make_is_not_saved(folder):
    """As one that was put together by hand; the checkpoint that is there stays the newest."""
    state, there = restored.load(folder).state, files(folder)
    by_hand = dataclasses.replace(state, sampler=fbuf.Grouped("group", 2))
    other_index = dataclasses.replace(state, sampler=fbuf.Prioritized())
    for background in (False, True):
        with pytest.raises(fbuf.CheckpointError, match="no load could make such a buffer"):
            fbuf.save(folder, by_hand, background=background)
    with pytest.raises(fbuf.CheckpointError, match="no load could read what was to be saved"):
        fbuf.save(folder, other_index)
    assert files(folder) == there
    same(fbuf.save(folder, state), restored.load(folder).state)


def test_a_manifest_that_could_not_be_read_is_not_written(folder, monkeypatch):
    """Here because of a count below 0; the cause is no matter."""
    state, there = restored.load(folder).state, files(folder)
    with monkeypatch.context() as broken:
        wrong = incremental.Places((-1,), (0,), ((-1,), (-1,)))
        broken.setattr(incremental, "places", lambda *_: {"rows": wrong})
        with pytest.raises(fbuf.CheckpointError, match=r"fbuf\.save: "):
            fbuf.save(folder, state)
        fbuf.save(folder, state, background=True)
        with pytest.raises(fbuf.CheckpointError, match=r"fbuf\.save: "):
            fbuf.wait(folder)
    assert files(folder) == there
    same(fbuf.save(folder, state), restored.load(folder).state)


def test_more_beside_a_buffer_than_is_read_is_not_written(folder):
    state, there = restored.load(folder).state, files(folder)
    with pytest.raises(fbuf.CheckpointError, match=r"not written: .* values"):
        fbuf.save(folder, state, extra="," * (2**24 + 1))
    assert files(folder) == there


# --- words of a checkpoint -----------------------------------------------------------------------

EVIL = "\x1b]0;owned\x07\x1b[2J\nsize  9,999 rows\x9b31m\u202e"


def evil(folder):
    """A checkpoint whose every word has escape sequences."""
    path = folder / manifest.name_of(1)
    data = json.loads(path.read_bytes().split(b"\n", 1)[1])
    item = {"dict": [[EVIL + name, leaf] for name, leaf in data["config"]["item"]["dict"]]}
    data = {**data, "config": {**data["config"], "item": item}}
    data["about"] = {"fbuf": EVIL, "time": EVIL}
    data["extra"] = {"dict": [[EVIL, {"leaf": {"value": EVIL}}]]}
    return path, data


def test_no_command_prints_an_escape_sequence(folder, capsys):
    path, data = evil(folder)
    sampler = {"name": EVIL, "options": {EVIL: EVIL}}
    for given in (data, {**data, "config": {**data["config"], "sampler": sampler}}, {EVIL: 1}):
        rewritten(path, given)
        for arguments in (["inspect"], ["inspect", "--json"], ["doctor"], ["verify"]):
            main([*arguments, str(folder)])
            out, err = capsys.readouterr()
            for line in (out + err).split("\n"):
                assert line.isprintable(), repr(line)
                assert not line.startswith("size  9,999 rows")


def test_no_error_has_an_escape_sequence(folder):
    path, data = evil(folder)
    sampler = {"name": EVIL, "options": {}}
    own = {"other": [EVIL, [{"leaf": {"value": 1}}]]}
    for given in (
        {**data, "config": {**data["config"], "sampler": sampler}},
        {**data, "extra": own},
        {**data, "files": {EVIL: {"length": 1, "crc32": 1}}},
        data,
    ):
        rewritten(path, given)
        with pytest.raises(fbuf.CheckpointError) as told:
            fbuf.load(folder, **({"item": {"x": 0.0}} if given is data else {}))
        assert str(told.value).isprintable(), repr(str(told.value))


# --- anything ------------------------------------------------------------------------------------

ANY = [
    *(None, True, -1, 2**31, 10**30, float("nan"), "", "../../x", EVIL, [], {}, [[[]]]),
    *({"leaf": {}}, {"dict": [[EVIL, {"none": []}]]}, "object", "S0", "V8"),
]


@pytest.mark.parametrize("times", [60, pytest.param(3000, marks=pytest.mark.sweep)])
def test_anything_in_a_manifest_is_read_or_refused(folder, times):
    """One class of error, and nothing written; the whole fuzz is in the sweep."""
    path = folder / manifest.name_of(1)
    data = json.loads(path.read_bytes().split(b"\n", 1)[1])
    places, rng, refused = list(paths(data)), np.random.default_rng(times), 0
    for _ in range(times):
        given = data
        for _ in range(rng.integers(1, 4)):
            at = places[rng.integers(len(places))]
            try:
                given = changed(given, at, ANY[rng.integers(len(ANY))])
            except (LookupError, TypeError):  # what was there before is gone
                continue
        rewritten(path, given)
        try:
            fbuf.load(folder)
        except fbuf.CheckpointError as error:
            assert str(error).startswith("fbuf.load: ")  # noqa: PT017
            refused += 1
    assert refused > 0.6 * times
    assert sorted(p.name for p in folder.iterdir()) == ["LOCK", "MANIFEST-00000001", "shard-00000"]
