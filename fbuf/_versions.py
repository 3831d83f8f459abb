"""The version of fbuf, and one warning at import, where JAX is a version that fbuf leaves out.

`pip` does not install such a version beside fbuf. It is there all the same where someone installed
it afterwards, or with `--no-deps`.
"""

from __future__ import annotations

import importlib.util
import warnings

import jaxlib.version

VERSION = "0.4.0"

_LEFT_OUT = {
    # https://github.com/jax-ml/jax/issues/39103 and the next one
    "0.10.2": "computes wrong values on CPU, and is slow at scatters on GPU",
    # https://github.com/openxla/xla/issues/46225
    "0.11.0": "is slow at scatters on GPU",
    # https://github.com/jax-ml/jax/issues/40101
    "0.11.1": "copies the whole buffer at every step on CPU",
}


def warn_if_left_out() -> None:
    """Warn, with what happens and what to install. Call it once, from `fbuf/__init__.py`.

    It asks jaxlib, which holds the compiler, and which JAX has loaded anyway.
    """
    installed = jaxlib.version.__version__
    consequence = _LEFT_OUT.get(installed)
    if consequence is None:
        return
    # The plugin for the GPU has to be of the same version, so pip has to replace it too.
    cuda = [extra for extra in ("cuda12", "cuda13") if _is_installed(f"jax_{extra}_plugin")]
    jax = f"jax[{cuda[0]}]" if cuda else "jax"
    bounds = ",".join(f"!={version}" for version in _LEFT_OUT)
    warnings.warn(
        f"fbuf: jaxlib {installed} {consequence}; install another version: "
        f'pip install "{jax}{bounds}"',
        RuntimeWarning,
        stacklevel=3,  # the line that imports fbuf
    )


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None
