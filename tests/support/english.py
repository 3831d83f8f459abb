"""Find prose that has to be read twice: `python -m tests.support.english [PATH...]`.

A docstring opens with a verb or the noun returned. No sentence of prose opens with a word of
`OPENINGS`, and none has more than `WORDS` words. Prose is docstrings, comments, errors and pages.
"""

from __future__ import annotations

import ast
import io
import pathlib
import re
import sys
import tokenize
from collections.abc import Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
OPENINGS = frozenset(("Of", "What", "Who", "That", "Whatever", "Whoever"))
FIRST = OPENINGS | {"How"}
"""A docstring does not open with these."""
WORDS = 25

_END = re.compile(r"(?<=[.!?])[)\"'*]*\s+(?=[A-Z`*\"'(\[<\d])")
_ENTRY = re.compile(r"^\**[\w.]+(?:, \**[\w.]+)*(?: \([^)]*\))?: ")
_ITEM = re.compile(r"^(?:[-*•] |\d+\. |\| )")


class Fault(NamedTuple):
    """A sentence that breaks the rule."""

    path: pathlib.Path
    line: int
    why: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.why}: {self.sentence}"


def paragraphs(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a docstring, a comment or a page, each with its first line.

    Code, tables, headings and examples are left out. An entry of a list or of `Args:` is a
    paragraph of its own.
    """
    kept: list[str] = []
    start, fenced, example = first, False, False
    indent = 0
    for number, raw in enumerate(text.splitlines(), first):
        line = raw.strip()
        if line.startswith(("```", "~~~")):
            fenced = not fenced
            line = ""
        is_code = fenced or line.startswith((">>>", "...", "#", "|", "!!!", "<", ":::", "!["))
        if line.startswith(">>>"):
            example = True
        example = example and bool(line)
        is_code |= example or (raw.startswith("    ") and text.startswith("# "))
        begins = bool(_ITEM.match(line)) or (indent and bool(_ENTRY.match(line)))
        if (not line or is_code or begins or (kept[-1:] and kept[-1].endswith(":"))) and kept:
            yield start, " ".join(kept)
            kept = []
        if line and not is_code:
            start = start if kept else number
            kept.append(_ENTRY.sub("", line) if indent and not _ITEM.match(line) else line)
        indent = len(raw) - len(raw.lstrip()) if line else indent
        if re.fullmatch(
            r"(Args|Attributes|Returns|Raises|Yields|Faults|Examples|Note|Cost):", line
        ):
            kept, indent = [], 1
    if kept:
        yield start, " ".join(kept)


def plain(sentence: str) -> str:
    """Return a sentence without code, links and marks."""
    sentence = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", sentence)
    sentence = re.sub(r"`[^`]*`", "code", sentence)
    return re.sub(r"^(?:[-*•] |\d+\. |> )+|\*\*", "", sentence).strip()


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a paragraph."""
    yield from _END.split(plain(text))


def words(sentence: str) -> int:
    """Count the words of a sentence."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def faults_of(path: pathlib.Path, line: int, text: str, docstring: bool) -> Iterator[Fault]:
    """Yield the faults of one docstring, comment or page."""
    for nth, (start, paragraph) in enumerate(paragraphs(text, line)):
        for number, sentence in enumerate(sentences(paragraph)):
            opening = re.match(r"[A-Za-z]+", sentence)
            banned = FIRST if docstring and nth == number == 0 else OPENINGS
            if opening and opening[0] in banned and not sentence.endswith("?"):
                yield Fault(path, start, f"opens with {opening[0]!r}", sentence)
            if words(sentence) > WORDS:
                yield Fault(path, start, f"{words(sentence)} words", sentence)


def of_python(path: pathlib.Path, text: str) -> Iterator[Fault]:
    """Yield the faults of a module: docstrings, comments and errors."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = getattr(statement, "value", None)
            is_text = isinstance(value, ast.Constant) and isinstance(value.value, str)
            if isinstance(statement, ast.Expr) and is_text:
                yield from faults_of(path, value.lineno, value.value, docstring=True)
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                yield from of_error(path, argument)
    yield from of_comments(path, text)


def of_error(path: pathlib.Path, argument: ast.expr) -> Iterator[Fault]:
    """Yield the faults of a message: a field of an f-string is one word."""
    if isinstance(argument, ast.JoinedStr):
        parts = [p.value if isinstance(p, ast.Constant) else "it" for p in argument.values]
        said = "".join(map(str, parts))
    elif isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        said = argument.value
    else:
        return
    for sentence in re.split(r"[.;:] ", plain(said)):
        if words(sentence) > WORDS:
            yield Fault(path, argument.lineno, f"{words(sentence)} words in an error", sentence)


def of_comments(path: pathlib.Path, text: str) -> Iterator[Fault]:
    """Yield the faults of comments; lines one below the other are one comment."""
    block: list[str] = []
    first, column = 0, -1
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            goes_on = alone and token.start == (first + len(block), column)
            if not (block and goes_on):
                yield from faults_of(path, first, "\n".join(block), docstring=False)
                block, first, column = [], token.start[0], token.start[1] if alone else -1
            block.append(token.string.lstrip("#! ").removeprefix(":"))
    yield from faults_of(path, first, "\n".join(block), docstring=False)


def faults(path: pathlib.Path) -> list[Fault]:
    """Return the faults of a file."""
    text = path.read_text()
    short = path.resolve().relative_to(ROOT)
    if path.suffix == ".py":
        return list(of_python(short, text))
    return list(faults_of(short, 1, text, docstring=False))


FOLDERS = ("fbuf", "adapters", "docs", "examples", "benchmarks")


def files(paths: list[str]) -> list[pathlib.Path]:
    """Return all files of prose under some paths."""
    found: list[pathlib.Path] = []
    for path in map(pathlib.Path, paths):
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [file for file in inside if file.suffix in (".py", ".md")]
    return [file for file in found if "results" not in file.parts]


if __name__ == "__main__":
    given = sys.argv[1:] or [str(ROOT / folder) for folder in FOLDERS] + [str(ROOT / "README.md")]
    all_faults = [fault for file in files(given) for fault in faults(file)]
    print(*all_faults, sep="\n")
    print(f"{len(all_faults)} sentences to mend")
    sys.exit(bool(all_faults))
