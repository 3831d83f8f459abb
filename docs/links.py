"""Links from pages to files of the repository; the reports of benchmarks are pages, too.

A report lies in `benchmarks/results/`, once. Pages link to it there, and so does a forge. The site
has a page of it.
"""

from __future__ import annotations

import pathlib
import posixpath
import re
from typing import Any

from mkdocs.structure.files import File

_RESULTS = pathlib.Path(__file__).parent.parent / "benchmarks" / "results"
_FOLDER = "know/benchmarks"
"""The folder of the reports in the site."""
_REPORT = re.compile(r"\]\((?:\.\./)+benchmarks/results/([\w.]+\.(?:md|png))")
_OUTSIDE = re.compile(r"\]\((?:\.\./)+((?:benchmarks|examples|fbuf|tests)/[^)]*)\)")


def on_files(files: Any, *, config: Any, **_: Any) -> Any:
    """Add the reports of benchmarks, and their pictures."""
    for path in sorted(_RESULTS.iterdir()):
        if path.suffix in (".md", ".png"):
            name = f"{_FOLDER}/{path.name}"
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Let links lead to the page of a report, or to the repository."""
    here = posixpath.dirname(page.file.src_uri)
    reports = posixpath.relpath(_FOLDER, here or ".")
    if here == _FOLDER:
        title, _, rest = markdown.partition("\n")
        markdown = f"{title}\n\nA report of [Benchmarks](../benchmarks.md).\n{rest}"
    markdown = _REPORT.sub(rf"]({reports}/\1", markdown)
    return _OUTSIDE.sub(rf"]({config.repo_url}/blob/main/\1)", markdown)
