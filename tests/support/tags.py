"""One tag for the buffers of most tests, so that ids can be told beforehand."""

import contextlib

from fbuf.storage import tags

TAG = 2**31 - 3
"""The tag: after two laps generations wrap around."""

_random = tags.new


def fix():
    """Give every buffer of this process the tag."""
    tags.new = lambda: TAG


@contextlib.contextmanager
def as_users_have_them():
    """Give new buffers random tags."""
    fixed, tags.new = tags.new, _random
    try:
        yield
    finally:
        tags.new = fixed


def generation(lap):
    """The generation of rows of a lap, int32 as JAX adds it."""
    return (TAG + lap + 2**31) % 2**32 - 2**31
