"""The helpers of the tests: the wrong lines keep up with the package, the cache is bounded."""

from __future__ import annotations

import os
import pathlib
import re

import pytest
from support import cache
from support.mutants import MUTANTS

import fbuf

PACKAGE = pathlib.Path(fbuf.__file__).parent


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in MUTANTS}))
def test_every_wrong_line_is_of_a_text_that_is_there_once(file):
    text = (PACKAGE / file).read_text()
    for mutant in MUTANTS:
        if mutant.file == file:
            assert text.count(mutant.old) == 1, mutant.old
            assert mutant.new != mutant.old
            compile(text.replace(mutant.old, mutant.new), file, "exec")


def test_every_trick_taken_out_is_of_a_text_that_is_there():
    order = pytest.importorskip("benchmarks.evidence.order", reason="comes with a clone")
    for name, trick in order.TRICKS.items():
        for edit in trick.edits:
            assert re.search(edit.old, (PACKAGE / edit.file).read_text(), re.MULTILINE), name


def test_every_kind_of_bug_has_some():
    kinds = [mutant.kind for mutant in MUTANTS]
    assert all(kinds.count(kind) >= 3 for kind in kinds)


def test_the_oldest_programs_make_way(tmp_path):
    for number in range(5):
        (tmp_path / str(number)).write_bytes(bytes(100))
        os.utime(tmp_path / str(number), (number, number))
    cache.bound(tmp_path, 250)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["3", "4"]
    cache.bound(tmp_path / "none", 250)


LIST = r"((?:`[\w/.]+`(?:, )?)+)"
WHERE = re.compile(rf"^\| {LIST} \| {LIST} \|$", re.MULTILINE)


def test_the_map_of_tests_has_every_public_name_and_files_that_are_there():
    tests = pathlib.Path(__file__).parents[1]
    before, _, returned = (tests / "README.md").read_text().partition("Classes that are returned")
    quoted = lambda text: re.findall(r"`([^`]+)`", text)
    named: list[str] = []
    for names, files in WHERE.findall(before):
        named += quoted(names)
        texts = [(tests / file).read_text() for file in quoted(files)]
        for name in quoted(names):
            assert any(re.search(rf"\b{name}\b", text) for text in texts), name
    classes: list[str] = []
    for names, by in WHERE.findall(returned):
        classes += quoted(names)
        assert set(quoted(by)) <= set(named)
    public = {*fbuf.__all__, "sharded", "targets", "host", "testing"}
    assert len({*named, *classes}) == len([*named, *classes])
    assert {*named, *classes} <= public
    # One file for a sampler or a view, and a test of its name: that needs no line of the map.
    own = {
        name
        for name in public - {*named, *classes}
        for folder in ("samplers", "views")
        for path in (tests / folder).glob("test_*.py")
        if path.stem == f"test_{getattr(fbuf, name).__module__.rpartition('.')[2]}"
    }
    assert public - {*named, *classes} == own
