"""The programs of a `ReplayBuffer` on a GPU read frames by words where they return them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

pytest.importorskip("torch")

from fbuf_adapters.pytorch.batches import _drawer

import fbuf

FRAME = {"frame": jnp.zeros((84, 84, 4), jnp.uint8), "at": jnp.int32(0)}
WORDS = jax.ShapeDtypeStruct((2,), jnp.uint32)


def by_words(view: Any = fbuf.Item(), batch_size: int = 32, batches: int = 1) -> bool:
    """Tell whether the program for a GPU gathers words of frames."""
    leaves, form = jax.tree.flatten(jax.eval_shape(lambda: fbuf.init(FRAME, 64)))
    recipe = _drawer.Recipe(False, False, view, str(jax.random.key_impl(jax.random.key(0))))
    program, _ = _drawer.compiled(form, recipe)
    given = (WORDS, WORDS, None, None, tuple(leaves))
    traced = program.trace(*given, batch_size=batch_size, batches=batches)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "ui8>" in text
    return f"tensor<{batch_size}x7056xui32>" in text


def test_a_batch_that_crosses_as_it_is_is_read_by_words() -> None:
    assert by_words()
    assert by_words(fbuf.Item(("frame",)))


def test_frames_that_are_packed_or_computed_with_are_read_as_they_lie() -> None:
    assert by_words(batch_size=5)  # 141,120 bytes, the least batch that is not packed
    assert not by_words(batch_size=4)
    assert not by_words(batches=2)
    assert not by_words(fbuf.FrameStack(1, field="frame"))
