"""Compile a step in every form for an NVIDIA H200, and look for copies of a buffer's arrays.

    python -m benchmarks.evidence.forms_gpu

It has the needs of `gpu_build`, and takes half an hour. Where the plugin is not installed it says
so in one line, and exits with 0.

No GPU is needed, and nothing runs. The steps are those of `python -m benchmarks.evidence.forms`. A
cell names the parts of the buffer that a step writes whole, and how often. A dash: no array is.
"""

from __future__ import annotations

import sys

from benchmarks.evidence import gpu_build  # before jax, which it prepares

if __name__ == "__main__" and (message := gpu_build.missing()):
    print(message)
    sys.exit(0)

from typing import Any

from benchmarks.evidence import forms


def compiled(step: forms.Step, state: Any, key: Any) -> str:
    """Return the text of a step that is compiled for a GPU."""
    return gpu_build.compiled_for_gpu(step, (state, key), (0,)).as_text()


if __name__ == "__main__":
    forms.script(
        "benchmarks.evidence.forms_gpu",
        "Forms of a step, in the GPU build",
        __doc__ or "",
        compiled,
        ("fbuf", "jax", "jax-cuda12-plugin"),
        {"device": "NVIDIA H200, compiled for without one"},
    )
