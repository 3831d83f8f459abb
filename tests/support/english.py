"""Find prose that has to be read twice: `python -m tests.support.english [PATH...]`.

A docstring opens with a verb or the noun returned. No sentence of prose opens with a word of
`OPENINGS`, and no sentence has more than `WORDS` words. Prose is docstrings, comments, texts and
pages: a text is any string of several words, such as the message of an error.

In the files of `is_strict` no docstring or comment has a phrase of `PHRASES`, which stands for a
noun. There no function keeps a result under a name of `NAMES` for more than `LINES` lines.
"""

from __future__ import annotations

import ast
import inspect
import io
import pathlib
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[2]
FOLDERS = (
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "fbuf", "adapters", "docs", "examples"),
    *("benchmarks", "tests"),
)
OPENINGS = frozenset(("Of", "What", "Who", "That", "Whatever", "Whoever"))
FIRST = OPENINGS | {"How"}
"""A docstring does not open with these."""
WORDS = 25
PHRASES = {
    "none twice": re.compile(r"\bnone twice\b"),
    "so many": re.compile(r"\bso (?:many|much)\b(?! \w+ that\b)"),
    "as X has": re.compile(
        r"\b[Aa]s (?:\w+ ){1,3}(?:has|have|does|do)(?=[.,;:]|$| (?:it|them|so)\b)"
    ),
    "that of those": re.compile(r"\b(?:that|those) of (?:that|those)\b"),
    "ends in a preposition": re.compile(
        r"(?<!\basked )(?<!\blooked )(?<!\bwaited )(?<!\bwritten )"
        r"\b(?:about|at|by|for|from|into|of|to|with)(?=[.,;:]|$)"
    ),
}
"""The phrases, by name. "In", "on" and "over" may be adverbs, so they may end a clause."""
NAMES = frozenset(("found", "given"))
LINES = 10

_SECTION = re.compile(
    r"(Args|Attributes|Returns|Raises|Yields|Faults|Examples?|Notes?|Costs?|References):"
)
_END = re.compile(r"(?<=[.!?])[)\"'*]*\s+(?=[A-Z`*\"'(\[<\d])")
_PART = re.compile(rf"[;:]\s+|{_END.pattern}")
_ENTRY = re.compile(r"\**[\w.]+(?:, \**[\w.]+)*(?: \([^)]*\))?: ")
_ITEM = re.compile(r"[-*•] |\d+\. ")
_MARKUP = ("#", "|", "!!!", "???", "<", ":::", "![")
TEXT = 6
"""A string of as many words is a text."""


class Fault(NamedTuple):
    """A sentence that breaks the rule."""

    path: pathlib.Path
    line: int
    why: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.why}: {self.sentence}"


def paragraphs(text: str, first: int = 1) -> Iterator[tuple[int, str]]:
    """Yield the paragraphs of a docstring, a comment or a page, each with its first line.

    Code, tables, headings, examples and references are left out. An entry of a list or of a
    section such as `Args:` is a paragraph of its own.
    """
    kept: list[str] = []
    start, indent = first, 0
    fence = ""
    section = ""
    example = code = False
    base = 0  # the indentation of prose that a list, a section or an admonition indents
    for number, raw in enumerate(text.splitlines(), first):
        line, was = raw.strip(), indent
        indent = len(raw) - len(raw.lstrip()) if line else indent
        if fence or line.startswith(("```", "~~~")):
            fence = "" if fence and line == fence else fence or line[:3]
            line = ""
        if line and indent == 0:
            section, base = "", 0
        example = bool(line) and (example or line.startswith(">>>"))
        code = indent >= base + 4 and (code or not kept) if line else code
        skipped = example or code or section == "References" or line.startswith(_MARKUP)
        heads = _SECTION.fullmatch(line)
        item, entry = _ITEM.match(line), section and _ENTRY.match(line)
        outdented = section and indent < was
        if kept and (not line or skipped or heads or item or entry or outdented):
            yield start, " ".join(kept)
            kept = []
        if heads:
            section, base = heads[1], indent + 4
        elif line and not skipped:
            start = start if kept else number
            kept.append(line[entry.end() :] if entry else line)
            base = indent + (4 if item or entry else 0) if not kept[1:] else base
        elif line.startswith(("!!!", "???")):
            base = indent + 4
    if kept:
        yield start, " ".join(kept)


def plain(sentence: str) -> str:
    """Return a sentence without links and marks; code is one word."""
    sentence = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", sentence)
    sentence = re.sub(r"`[^`]*`", lambda code: re.sub(r"\s+", "_", code[0]), sentence)
    return re.sub(r"^(?:[-*•] |\d+\. |> )+|\*\*", "", sentence).strip()


def sentences(paragraph: str) -> list[str]:
    """Return the sentences of a paragraph."""
    return _END.split(plain(paragraph))


def parts(paragraph: str) -> list[str]:
    """Return the sentences of a text, in which `fbuf.add: items: ` may lead to the first."""
    return _PART.split(plain(paragraph))


def words(sentence: str) -> int:
    """Count the words of a sentence."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


def faults_of(
    path: pathlib.Path,
    line: int,
    text: str,
    docstring: bool = False,
    split: Callable[[str], list[str]] = sentences,
) -> Iterator[Fault]:
    """Yield the faults of one docstring, comment, text or page."""
    for nth, (start, paragraph) in enumerate(paragraphs(text, line)):
        for number, sentence in enumerate(split(paragraph)):
            opening = re.match(r"[(*\"']*([A-Za-z]+)(?!\w)", sentence)
            banned = FIRST if docstring and nth == number == 0 else OPENINGS
            if opening and opening[1] in banned and not sentence.endswith("?"):
                yield Fault(path, start, f"opens with {opening[1]!r}", sentence)
            if words(sentence) > WORDS:
                yield Fault(path, start, f"{words(sentence)} words", sentence)
            if is_strict(path) and split is sentences:
                for phrase, pattern in PHRASES.items():
                    if pattern.search(sentence):
                        yield Fault(path, start, phrase, sentence)


def is_strict(path: pathlib.Path) -> bool:
    """Return whether a file must be free of `PHRASES` and of long-lived `NAMES`."""
    inside = path.parts[:1] in (("fbuf",), ("adapters",))
    return inside and path.suffix == ".py"


def of_names(path: pathlib.Path, tree: ast.AST) -> Iterator[Fault]:
    """Yield the results that a function keeps under an empty name for too many lines."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        for name in sorted(NAMES):
            lines = [node.lineno for node in names if node.id == name]
            stored = [
                node.lineno for node in names if node.id == name and isinstance(node.ctx, ast.Store)
            ]
            if stored and max(lines) - min(stored) > LINES:
                yield Fault(path, min(stored), f"{name!r} for a result", function.name)


def of_python(path: pathlib.Path, source: str) -> Iterator[Fault]:
    """Yield the faults of a module: docstrings, texts and comments."""
    docstrings: set[ast.expr] = set()
    inside: set[ast.expr] = set()
    tree = ast.parse(source)
    if is_strict(path):
        yield from of_names(path, tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            docstrings.add(node.value)
        said = said_by(node) if isinstance(node, ast.expr) and node not in inside else None
        if said is None:
            continue
        inside.update(child for child in ast.walk(node) if isinstance(child, ast.expr))
        if node in docstrings:
            yield from faults_of(path, node.lineno, inspect.cleandoc(said), docstring=True)
        elif words(said) >= TEXT and not is_code(said):
            text = textwrap.dedent(said)
            yield from faults_of(path, node.lineno, text, split=parts)
    for line, comment in comments(source):
        yield from faults_of(path, line, comment)


def said_by(node: ast.expr) -> str | None:
    """Return the text of a string, an f-string or a sum of some; a field is one word."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(said_by(value) or "" for value in node.values)
    if isinstance(node, ast.FormattedValue):
        return "FIELD"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = said_by(node.left), said_by(node.right)
        return None if left is None and right is None else (left or "FIELD") + (right or "FIELD")
    return None


def is_code(text: str) -> bool:
    """Return whether a string is a program, which is not prose."""
    try:
        ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError):
        return False
    return True


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a module, each with its first line; lines below it belong to it."""
    block: list[str] = []
    first, column = 0, -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            alone = not token.line[: token.start[1]].strip()
            goes_on = alone and token.start == (first + len(block), column)
            if block and not goes_on:
                yield first, "\n".join(block)
            if not (block and goes_on):
                block, first, column = [], token.start[0], token.start[1] if alone else -1
            block.append(re.sub(r"^#[:!]? ?", "", token.string))
    if block:
        yield first, "\n".join(block)


def faults(path: pathlib.Path) -> list[Fault]:
    """Return the faults of a file."""
    text = path.read_text()
    path = path.resolve()
    short = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return list(of_python(short, text) if path.suffix == ".py" else faults_of(short, 1, text))


def files(paths: list[str]) -> list[pathlib.Path]:
    """Return all files of prose under some paths."""
    found: list[pathlib.Path] = []
    for path in map(pathlib.Path, paths):
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        found += [file for file in inside if file.suffix in (".py", ".md")]
    return [file for file in found if "results" not in file.parts]


if __name__ == "__main__":
    given = sys.argv[1:] or [str(ROOT / folder) for folder in FOLDERS]
    found = [fault for file in files(given) for fault in faults(file)]
    print(*found, sep="\n")
    print(f"{len(found)} sentences to mend")
    sys.exit(bool(found))
