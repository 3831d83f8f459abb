"""brax's tests of replay buffers, with the classes of `fbuf_adapters.brax` in place of its own.

They are made for one device and for two: `JAX_NUM_CPU_DEVICES=2 python -m tests.peers brax`.
"""

import importlib.util
from pathlib import Path

KNOWN: dict[str, str] = {}


def tests(folder: Path) -> list[Path]:
    """Return the test file, which lies in the installed package."""
    del folder
    package = importlib.util.find_spec("brax")
    if package is None or package.origin is None:
        raise SystemExit("brax is not installed: pip install brax")
    return [Path(package.origin).parent / "training" / "replay_buffers_test.py"]


def replace() -> None:
    """Put fbuf's classes in the place of brax's; its wrappers stay, and get them to wrap."""
    from brax.training import replay_buffers
    from fbuf_adapters import brax

    for name in ("Queue", "UniformSamplingQueue", "ReplayBufferState"):
        setattr(replay_buffers, name, getattr(brax, name))
    # One test breaks a state on purpose. brax's rows are `data`, which here is `buffer`.
    plain = brax.ReplayBufferState.replace
    brax.ReplayBufferState.replace = lambda state, **changes: plain(
        state, **{{"data": "buffer"}.get(name, name): value for name, value in changes.items()}
    )
