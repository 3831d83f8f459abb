"""SBX's own tests, with the buffers of `fbuf_adapters.sb3`, whose batches are JAX arrays."""

import functools
from pathlib import Path

from tests.peers import fetch

FILES = ("buffers", "run", "cnn", "flatten", "spaces")

KNOWN: dict[str, str] = {}


def tests(folder: Path) -> list[Path]:
    """Fetch the source distribution, and return its files of tests."""
    unpacked = fetch.tests_of("sbx-rl", folder)
    return [unpacked / f"test_{name}.py" for name in FILES]


def replace() -> None:
    """Put our classes in the place of Stable-Baselines3's, before SBX imports them."""
    import stable_baselines3
    from fbuf_adapters import sb3
    from stable_baselines3.common import buffers

    class Buffer(sb3.ReplayBuffer):
        __init__ = functools.partialmethod(sb3.ReplayBuffer.__init__, arrays="jax")

    class Her(sb3.HerReplayBuffer):
        __init__ = functools.partialmethod(sb3.HerReplayBuffer.__init__, arrays="jax")

    buffers.ReplayBuffer = buffers.DictReplayBuffer = buffers.NStepReplayBuffer = Buffer
    stable_baselines3.HerReplayBuffer = Her
