"""The errors of checkpoints."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint cannot be read, or is of something else; the message says what was found.

    Examples:
        >>> import fbuf, tempfile
        >>> try:
        ...     fbuf.load(tempfile.mkdtemp())
        ... except fbuf.CheckpointError as error:
        ...     print("no checkpoint" in str(error))
        True
    """


class Mismatch(CheckpointError):
    """The checkpoint is whole, and not what the caller says or can read."""
