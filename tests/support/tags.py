"""The tag of the buffers in tests: 0, so that ids can be written down; or what users have."""

import contextlib
import functools

from fbuf.storage import tags

LARGE = 2**31 - 3
"""A tag with which generations wrap around after two laps."""

random = tags.new


@contextlib.contextmanager
def as_users_have_them():
    """Give new buffers random tags."""
    fixed, tags.new = tags.new, random
    try:
        yield
    finally:
        tags.new = fixed


@contextlib.contextmanager
def all_of(tag):
    """Give new buffers this tag."""
    fixed, tags.new = tags.new, functools.partial(int, tag)
    try:
        yield
    finally:
        tags.new = fixed


def new_tag():
    """The tag that a new buffer gets."""
    return tags.new()


def generation(lap):
    """The generation of rows of a lap, int32 as JAX adds it."""
    return (new_tag() + lap + 2**31) % 2**32 - 2**31


tags.new = functools.partial(int, 0)
