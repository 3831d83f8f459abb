"""Batches of other shapes than those of `init`, with the front and with flashbax itself.

The table is that of `tests/adapters/flashbax_front/test_broadcast.py`, which skips flashbax's part
where flashbax is not installed.
"""

import shutil
from pathlib import Path

KNOWN: dict[str, str] = {}

_TABLE = Path(__file__).parents[1] / "adapters" / "flashbax_front" / "test_broadcast.py"


def tests(folder: Path) -> list[Path]:
    """Return the file of tests."""
    # Beside our own tests pytest would take their configuration.
    return [shutil.copy(_TABLE, folder)]


def replace() -> None:
    """Do nothing: the tests compare both."""
