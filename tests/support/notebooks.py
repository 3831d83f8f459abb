"""Execute the notebooks and compare their texts: `python -m tests.support.notebooks [--write]`.

A notebook fails if a cell raises, warns, or prints another text than the one that is kept. Numbers
may differ by a hundredth of themselves, because they are rounded in another way on other machines.
Pictures are made anew, and not compared. With `--write` the new outputs replace the old ones.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import re
import sys
from collections.abc import Iterator
from typing import Any

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "notebooks"
NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?")
SECONDS = 300
"""The longest time for one cell."""


def executed(path: pathlib.Path) -> Any:
    """Return a notebook with new outputs; raises if a cell does."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=SECONDS,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    return notebook


def texts(notebook: Any) -> Iterator[tuple[int, str, str]]:
    """Yield the number, the stream and the text of each cell's output that is a text."""
    for number, cell in enumerate(notebook["cells"]):
        for output in cell.get("outputs", ()):
            if output["output_type"] == "stream":
                yield number, output["name"], "".join(output["text"])
            elif "image/png" not in output.get("data", {}):
                yield number, "result", "".join(output.get("data", {}).get("text/plain", ""))


def same(one: str, other: str) -> bool:
    """Return whether two texts are the same, up to the rounding of their numbers."""
    if NUMBER.sub("0", " ".join(one.split())) != NUMBER.sub("0", " ".join(other.split())):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(a == b or _close(a, b) for a, b in pairs)


def _close(one: str, other: str) -> bool:
    try:
        of = float(one.replace(",", "")), float(other.replace(",", ""))
    except ValueError:  # a version, such as 0.10.1
        return False
    return math.isclose(*of, rel_tol=0.01, abs_tol=1e-6)


def faults(kept: Any, new: Any) -> list[str]:
    """Return the differences of the texts of two executions, and the warnings of the second."""
    before, after = list(texts(kept)), list(texts(new))
    found = [f"cell {n} warns: {text}" for n, name, text in after if name == "stderr"]
    if [entry[:2] for entry in before] != [entry[:2] for entry in after]:
        found.append("other cells have outputs than before")
        return found
    for (number, _, old), (_, _, text) in zip(before, after, strict=True):
        if not same(old, text):
            found.append(f"cell {number} printed {text!r}, and {old!r} is kept")
    return found


def main() -> int:
    """Execute every notebook; returns 1 if one differs."""
    parser = argparse.ArgumentParser(description="Execute the notebooks, and compare their texts.")
    parser.add_argument("--write", action="store_true", help="keep the new outputs")
    write = parser.parse_args().write
    paths = sorted(FOLDER.glob("*.ipynb"))
    failed = not paths
    for path in paths:
        import nbformat

        kept, new = nbformat.read(path, as_version=4), executed(path)
        found = [fault for fault in faults(kept, new) if not write or "warns" in fault]
        print(f"{path.name}: {'; '.join(found) or 'as it is kept'}", flush=True)
        failed |= bool(found)
        if write:
            path.write_text(nbformat.writes(new, indent=1, ensure_ascii=False) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
