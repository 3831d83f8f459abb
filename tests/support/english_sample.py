"""Draw texts to read once: `cd tests; python -m support.english_sample SEED`.

A pattern finds no sentence whose noun is missing; a reader does. `tests/README.md` has the seeds
that were read, and how many of the sixty texts had to be read twice.
"""

from __future__ import annotations

import ast
import random
import sys
from collections import defaultdict
from collections.abc import Iterator

from support import english

FOLDERS = ("fbuf", "adapters")
SIZES = {"docstring": 30, "comment": 15, "error": 15}


def texts_of(source: str) -> Iterator[tuple[str, int, str]]:
    """Yield the kind, the line and the text of each docstring, comment and error of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and (said := english.said_by(node.value)):
            yield "docstring", node.lineno, said
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            said = [english.said_by(argument) or "FIELD" for argument in node.exc.args]
            if english.words(" ".join(said)) >= english.TEXT:
                yield "error", node.lineno, " ".join(said)
    for line, comment in english.comments(source):
        yield "comment", line, comment


def population() -> dict[str, list[tuple[str, str]]]:
    """Return all texts by kind, each with its place."""
    texts: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for file in english.files([str(english.ROOT / folder) for folder in FOLDERS]):
        if file.suffix == ".py":
            for kind, line, text in texts_of(file.read_text()):
                texts[kind].append((f"{file.relative_to(english.ROOT)}:{line}", text))
    return texts


def sample(seed: int) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, the place and the words of the texts drawn with this seed."""
    texts = population()
    draw = random.Random(seed)
    for kind, size in SIZES.items():
        for place, text in draw.sample(texts[kind], size):
            yield kind, place, text


if __name__ == "__main__":
    for kind, place, text in sample(int(sys.argv[1])):
        print(f"--- {kind} {place}\n{text}\n")
