"""CleanRL's scripts, with the import of `ReplayBuffer` changed and nothing else.

`CLEANRL=FOLDER python -m tests.peers cleanrl` takes them from a clone of CleanRL. Without it they
are those of the newest release on PyPI. Scripts that need the old Gym are left out. pip fetches
what the others need besides, such as CleanRL's version of Gymnasium.
"""

import os
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

from tests.peers import fetch

NEEDS = ("gymnasium==0.29.1", "tyro", "docstring-parser", "typeguard", "tensorboard")

RELEASE = "cleanrl==1.2.0"

KNOWN: dict[str, str] = {}

_CARTPOLE = ["--total-timesteps", "600", "--learning-starts", "200"]
_PENDULUM = [
    *("--env-id", "Pendulum-v1", "--total-timesteps", "450", "--learning-starts", "250"),
    *("--buffer-size", "300", "--batch-size", "32"),
]

SCRIPTS = {
    "dqn": _CARTPOLE,
    "dqn_jax": _CARTPOLE,
    "c51": _CARTPOLE,
    "ddpg_continuous_action": _PENDULUM,
    "ddpg_continuous_action_jax": _PENDULUM,
    "sac_continuous_action": _PENDULUM,
    "td3_continuous_action": _PENDULUM,
    "td3_continuous_action_jax": _PENDULUM,
}
"""The arguments of each script: short runs, in which episodes terminate or are cut off.

`c51_jax` is left out. It names arguments of `jnp.clip` that JAX has renamed.
"""

_IMPORT = re.compile(r"^from \S+\.buffers import ReplayBuffer$", re.MULTILINE)


def tests(folder: Path) -> list[Path]:
    """Write the scripts, and return the file of tests that run them."""
    fetch.install(NEEDS, folder / "needs")
    clone = os.environ.get("CLEANRL")
    source = Path(clone).resolve() if clone else _release(folder)
    scripts = folder / "scripts"
    scripts.mkdir()
    for name in SCRIPTS:
        text = (source / "cleanrl" / f"{name}.py").read_text()
        changed, count = _IMPORT.subn("from fbuf_adapters.sb3 import ReplayBuffer", text)
        if count != 1:
            raise SystemExit(f"cleanrl/{name}.py does not import ReplayBuffer in one line")
        if "import gymnasium as gym" in text:
            (scripts / f"{name}.py").write_text(changed)
    # Beside our own tests pytest would take their configuration.
    return [shutil.copy(Path(__file__).with_name("cleanrl_scripts.py"), folder)]


def _release(folder: Path) -> Path:
    """Fetch the release, which asks for a Python that is older than ours."""
    options = ["--no-deps", "--ignore-requires-python", "--dest", str(folder)]
    subprocess.run([*fetch.PIP, "download", "--quiet", *options, RELEASE], check=True)
    (wheel,) = folder.glob("cleanrl-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "release")
    return folder / "release"


def replace() -> None:
    """Do nothing: the scripts that were written import our class."""
