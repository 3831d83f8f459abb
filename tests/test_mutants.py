"""The list of wrong lines keeps up with the package."""

from __future__ import annotations

import pathlib

import pytest
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


def test_every_kind_of_bug_has_some():
    kinds = [mutant.kind for mutant in MUTANTS]
    assert all(kinds.count(kind) >= 3 for kind in kinds)
