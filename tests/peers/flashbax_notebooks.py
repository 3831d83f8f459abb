"""flashbax's example notebooks, with the import of flashbax changed and nothing else.

`FLASHBAX=FOLDER python -m tests.peers flashbax_notebooks` takes them from a clone of flashbax, for
no package holds them. Runs are short: `SHORT` has the numbers of steps. pip fetches what the
notebooks need besides.
"""

import json
import os
import re
import shutil
from pathlib import Path

from tests.peers import fetch

NEEDS = (
    *("dm-haiku==0.0.17", "jmp==0.0.4", "tabulate==0.10.0", "rlax==0.1.9", "distrax==0.1.9"),
    *("tfp-nightly==0.26.0.dev20261027", "dm-env==1.6", "dm-tree==0.1.10", "decorator==5.3.1"),
    *("wrapt==2.5.2", "jumanji==1.1.0", "huggingface_hub==0.25.2", "requests==2.34.2"),
    *("urllib3==2.8.0", "idna==3.20", "charset_normalizer==3.5.3"),
    *("certifi==2026.10.19.post1", "setuptools==75.8.0", "gymnasium==0.29.1"),
)

OWN_NEEDS = {
    # From 0.0.5 on matrax has a discount for each agent, which flashbax's buffer refuses, too.
    "matrax_iql_example": (
        *("matrax==0.0.4", "jumanji==0.3.1", "gym==0.26.2", "gym_notices==0.1.0"),
    ),
}
"""Packages of one notebook alone, in the versions of its time."""

KNOWN: dict[str, str] = {}

SHORT = {
    "TRAINING_EVAL_ITERS": 1,
    "TRAINING_ITERS": 2,
    "ROLLOUT_LEN": 64,
    "SGD_STEPS_PER_ROLLOUT": 2,
    "SGD_EPOCHS": 2,
    "NUM_EVAL_EPISODES": 2,
    "total_timesteps": 1500,
    "NUM_TIMESTEPS": 201,
    "EVALUATION_EPISODES": 2,
}
"""The numbers of steps of a run, by the names that the notebooks give them."""

_IMPORT = re.compile(r"^( *)import flashbax as fbx$", re.MULTILINE)

_SHELL = re.compile(r"^( *)[!%].*$", re.MULTILINE)


def tests(folder: Path) -> list[Path]:
    """Write each notebook as a script, and return the file of tests that run them."""
    clone = os.environ.get("FLASHBAX")
    if clone is None:
        raise SystemExit("FLASHBAX must name a clone of flashbax, which has the notebooks")
    fetch.install(NEEDS, folder / "needs")
    for name, packages in OWN_NEEDS.items():
        fetch.install(packages, folder / "needs_of" / name)
    scripts = folder / "scripts"
    scripts.mkdir()
    for notebook in sorted(Path(clone).resolve().glob("examples/*.ipynb")):
        text, count = _IMPORT.subn(r"\1from fbuf_adapters import flashbax as fbx", _code(notebook))
        if not count:
            raise SystemExit(f"{notebook.name} does not import flashbax in one line")
        for name, number in SHORT.items():
            text = re.sub(rf"^{name} = [\d_]+", f"{name} = {number}", text, flags=re.MULTILINE)
        (scripts / f"{notebook.stem}.py").write_text(text)
    # Beside our own tests pytest would take their configuration.
    return [shutil.copy(Path(__file__).with_name("flashbax_notebooks_cells.py"), folder)]


def _code(notebook: Path) -> str:
    """Return the code cells of a notebook, without commands of the shell and of IPython."""
    cells = json.loads(notebook.read_text())["cells"]
    code = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return "\n\n".join(_SHELL.sub(r"\1pass", cell) for cell in code)


def replace() -> None:
    """Do nothing: the scripts that were written import the front."""
