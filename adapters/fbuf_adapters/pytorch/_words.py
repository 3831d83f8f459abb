"""Messages of the core, in the words of PyTorch."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

_SAID = (
    (re.compile(r"\.astype\(bool\)"), ".bool()"),
    (re.compile(r"\.astype\('(\w+)'\)"), r".to(torch.\1)"),
    (re.compile(r"jnp\.array\(\.\.\.\)"), "torch.as_tensor(...)"),
    (re.compile(r"and JAX would silently make it (\w+) because its 64-bit types are off"),
     r"and the buffer, whose 64-bit types are off, would make it \1"),
    (re.compile(r"has the sampler (.*), and sampler is (.*); leave sampler out, .*"),
     r"has the sampler \1, and that of this buffer is \2; make the buffer with sampler=\1"),
    (re.compile(r"the (\w+) of the checkpoint has (.*); leave sampler out, .*"),
     r"the \1 of the checkpoint has \2; make the buffer with sampler=\1(...) like it"),
    (re.compile(r"=(\S+), and sampler has"), r"=\1, and that of this buffer has"),
)  # fmt: skip


@contextmanager
def of_torch(where: str) -> Generator[None]:
    """Have errors of `fbuf` name this method, and say what to do with tensors."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if error.args and isinstance(said := error.args[0], str):
            for words, ours in _SAID:
                said = words.sub(ours, said)
            said = re.sub(r"^fbuf\.\w+: ", lambda _: f"fbuf_adapters.pytorch.{where}: ", said)
            error.args = (said, *error.args[1:])
        raise
