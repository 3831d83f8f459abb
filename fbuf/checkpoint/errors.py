"""The errors of checkpoints."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or holds something else; the message has the details.

    Examples:
        >>> import fbuf, tempfile
        >>> try:
        ...     fbuf.load(tempfile.mkdtemp())
        ... except fbuf.CheckpointError as error:
        ...     print("no checkpoint" in str(error))
        True
    """


class Mismatch(CheckpointError):
    """The checkpoint is not damaged, but does not fit the caller's arguments or version."""
