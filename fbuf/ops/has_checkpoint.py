"""Asking whether a directory has a checkpoint."""

from __future__ import annotations

import os

from fbuf.checkpoint import background, manifest, paths, sharded_manifest


def has_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Tell whether a directory has a checkpoint, from which a run can continue.

    A save that was stopped in the middle leaves files, and no checkpoint. A damaged checkpoint
    counts: `fbuf.load` reports the damage, and no new run replaces it silently.

    Args:
        path: The directory, as for `fbuf.save`, or `save` of a `HostStore` or of an object for
            PyTorch. It need not exist.

    Returns:
        True if a save to the directory was ever completed. The call waits for a background save of
        this process.

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
