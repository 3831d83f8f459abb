"""Links from pages to files of the repository that are no pages."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\]\((?:\.\./)+((?:benchmarks|examples|fbuf|tests)/[^)]*)\)")


def on_page_markdown(markdown: str, *, config: Any, **_: Any) -> str:
    """Let such a link lead to the repository; in a clone and on a forge it leads to the file."""
    return _OUTSIDE.sub(rf"]({config.repo_url}/blob/main/\1)", markdown)
