"""Asking whether a directory has a checkpoint."""

from __future__ import annotations

import os

from fbuf.checkpoint import background, manifest, paths, sharded_manifest


def has_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Tell whether there is a checkpoint in a directory: whether a run can go on.

    A save that was stopped in the middle leaves files, and no checkpoint. A damaged checkpoint is
    one: `fbuf.load` says what is wrong with it, and a new run does not take its place silently.

    Args:
        path: The directory, as for `fbuf.save`, or `save` of a `HostStore` or of an object for
            PyTorch. It need not exist.

    Returns:
        True if a save to the directory was ever completed. A save of this process that is under way
        in the background is waited for.

    Raises:
        ValueError: If `path` is empty or a URL.
        Exception: The error of a save to the directory in the background.

    Cost: a list of the names in the directory; no file is read.

    Examples:
        >>> import fbuf, jax.numpy as jnp, tempfile
        >>> path = tempfile.mkdtemp()
        >>> fbuf.has_checkpoint(path)
        False
        >>> state = fbuf.save(path, fbuf.init(jnp.zeros(()), capacity=4))
        >>> fbuf.has_checkpoint(path)
        True
    """
    folder = paths.local("fbuf.has_checkpoint", path)
    background.wait(folder)
    return bool(manifest.numbers(folder) or sharded_manifest.numbers(folder))
