"""Random numbers from random bits, without the bias or the cost of JAX's own functions."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf.xla.loop import blank, entry, zero_after
from fbuf.xla.platform import by_platform
from fbuf.xla.tie import tie

_THREEFRY = "threefry2x32"
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA

_IN_ONE_THREAD = 1024
"""The most numbers of which XLA on CPU does not share out the work among threads."""

_IN_TURNS = 4 * _IN_ONE_THREAD
"""The most numbers that are made part by part: with more, a second thread pays."""


def bits(key: jax.Array, shape: tuple[int, ...], after: jax.Array | None = None) -> jax.Array:
    """Return the uint32 bits of `jax.random.bits`, on CPU in a quarter of the time.

    There `jax.random.bits` runs the rounds of Threefry in a loop, and each turn is a dozen tasks
    for XLA to hand out. Here all rounds are one kernel. The bits are those that JAX
    gives with its default `jax_threefry_partitionable`. A key of another generator goes to
    `jax.random.bits`.

    Args:
        key: A random key; it is consumed.
        shape: The shape of the result, of at least one number.
        after: The bits are made only after this is known. Otherwise too much would be ready at
            once on CPU (`fbuf.xla.loop`).

    References:
        Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011 (Threefry).
    """
    if jax.random.key_impl(key) != _THREEFRY:
        return jax.random.bits(tie(key, after), shape, jnp.uint32)
    rows = shape[0] if len(shape) > 1 else 1
    made = by_platform(
        jax.random.key_data(key),
        after,
        cpu=lambda words, after: _in_a_loop(words, after, math.prod(shape)),
        default=lambda words, after: tie(
            jnp.concatenate(_by_rows(words, None, rows, math.prod(shape) // rows)), after
        ),
    )
    return made.reshape(shape)


def bits_of_rows(
    key: jax.Array, rows: int, size: int, after: jax.Array | None = None
) -> list[jax.Array]:
    """Return the rows of `bits(key, (rows, size), after)`; on a GPU each is computed at its use."""
    if jax.random.key_impl(key) != _THREEFRY:
        return list(bits(key, (rows, size), after))
    return by_platform(
        jax.random.key_data(key),
        after,
        cpu=lambda words, after: list(_in_a_loop(words, after, rows * size).reshape(rows, size)),
        default=lambda words, after: _by_rows(words, after, rows, size),
    )


def fold_in(key: jax.Array, *numbers: jax.Array | int) -> jax.Array:
    """Fold numbers into a key, one after the other: the key of `jax.random.fold_in`; see `bits`.

    Args:
        key: A random key.
        numbers: Scalars, uint32 or int32.
    """
    if not _is_threefry(key):
        return functools.reduce(jax.random.fold_in, numbers, key)

    def folded(words: jax.Array, *numbers: jax.Array) -> jax.Array:
        for number in numbers:
            words = jnp.stack(_block(words, jnp.uint32(0), number))
        return words

    arrays = [n if isinstance(n, jax.Array) else jnp.uint32(n) for n in numbers]
    counts = [array.astype(jnp.uint32) for array in arrays]
    return _key_like(key, _as_one(folded, jax.random.key_data(key), *counts))


def split(key: jax.Array, count: int) -> jax.Array:
    """Split a key into `count` keys, those of `jax.random.split`; see `bits`."""
    # JAX makes the names of its options at run time.
    config: Any = jax.config
    if not (_is_threefry(key) and config.jax_threefry_partitionable):
        return jax.random.split(key, count)

    def parts(words: jax.Array) -> jax.Array:
        return jnp.stack(_block(words, jnp.uint32(0), lax.iota(jnp.uint32, count)), axis=1)

    return _key_like(key, _as_one(parts, jax.random.key_data(key)))


def _is_threefry(key: jax.Array) -> bool:
    """Tell whether `key` is a single key of JAX's default generator."""
    is_single = jax.random.key_data(key).ndim == 1
    return is_single and jax.random.key_impl(key) == _THREEFRY


def _key_like(key: jax.Array, words: jax.Array) -> jax.Array:
    """Return words as a key like `key`: typed, or a plain array of words."""
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return jax.random.wrap_key_data(words, impl=_THREEFRY) if typed else words


def uniforms(key: jax.Array, shape: tuple[int, ...], after: jax.Array | None = None) -> jax.Array:
    """Return float32 multiples of 2**-24 in `[0, 1)`, all equally likely; see `bits`."""
    return as_uniforms(bits(key, shape, after))


def uniforms_of_rows(
    key: jax.Array, rows: int, size: int, after: jax.Array | None = None
) -> list[jax.Array]:
    """Return rows of uniform numbers, `[size]` each; see `bits_of_rows`."""
    return [as_uniforms(row) for row in bits_of_rows(key, rows, size, after)]


def as_uniforms(bits: jax.Array) -> jax.Array:
    """Return float32 multiples of 2**-24 in `[0, 1)`, of uint32 random bits."""
    return (bits >> 8).astype(jnp.float32) * jnp.float32(2.0**-24)


def below(words: jax.Array, total: jax.Array) -> jax.Array:
    """Return integers in `[0, total)`, from 64 random bits each; 0 if `total` is 0.

    They are the high words of 64 by 32 bit products. Their probabilities differ from 1 / total by
    less than 2**-64. There is no division, which makes `jax.random.randint` slow on CPU.

    Args:
        words: uint32 `[2, B]`; random.
        total: int32, at least 0; a scalar, or one for each, `[B]`.

    Returns:
        int32 `[B]`.
    """
    high, low = words
    n = total.astype(jnp.uint32)
    middle = high_word(low, n)
    whole = high * n + middle
    carry = (whole < middle).astype(jnp.uint32)
    return (high_word(high, n) + carry).astype(jnp.int32)


def high_word(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return the upper 32 bits of the product of two uint32."""
    a_low, a_high = a & 0xFFFF, a >> 16
    b_low, b_high = b & 0xFFFF, b >> 16
    low, cross, other = a_low * b_low, a_low * b_high, a_high * b_low
    middle = (low >> 16) + (cross & 0xFFFF) + (other & 0xFFFF)
    return a_high * b_high + (cross >> 16) + (other >> 16) + (middle >> 16)


def _in_a_loop(words: jax.Array, after: jax.Array | None, count: int) -> jax.Array:
    """Return `count` random words, by a loop: XLA does not compute them again at every use."""

    @jax.custom_batching.custom_vmap
    def loop(words: jax.Array) -> jax.Array:
        keys, zero = words.reshape(-1, 2), zero_after(words)
        turn, turns = _turns(keys, count)
        made = lax.fori_loop(zero, turns, turn, blank(zero, (len(keys), count), jnp.uint32))
        return made.reshape(*words.shape[:-1], count)

    # JAX's own rule would always make the bits of all keys in one turn.
    loop.def_vmap(lambda size, batched, words: (loop(words), True))
    return loop(tie(words, after))


def _turns(keys: jax.Array, count: int) -> tuple[Callable[..., jax.Array], int]:
    """Return what a turn of a loop does to make bits `[keys, count]`, and how many turns it has."""
    if len(keys) * count > _IN_TURNS:
        every = jax.vmap(lambda key: _threefry(key, jnp.uint32(0), count))
        return lambda *_: every(keys), 1
    part = min(count, _IN_ONE_THREAD)
    parts = -(-count // max(part, 1))

    def turn(i: jax.Array, made: jax.Array) -> jax.Array:
        key = lax.div(i, jnp.int32(parts)) if len(keys) > 1 else jnp.int32(0)
        first = lax.min((i - key * parts) * part, np.int32(count - part))  # the last may overlap
        start = first if parts > 1 else np.int32(0)
        bits = _threefry(entry(keys, key), lax.convert_element_type(start, np.uint32), part)
        return lax.dynamic_update_slice(made, bits[None], (key, start))

    return turn, len(keys) * parts


def _by_rows(words: jax.Array, after: jax.Array | None, rows: int, size: int) -> list[jax.Array]:
    """Return the words of `_in_a_loop` row by row, `[size]` each."""
    made = [_threefry(words, jnp.uint32(row * size), size) for row in range(rows)]
    return [tie(row, after) for row in made]  # for `shard_map`: both forms vary alike


# Traced once for all rows.
@functools.partial(jax.jit, inline=True, static_argnames="count")
def _threefry(key: jax.Array, start: jax.Array, count: int) -> jax.Array:
    """Return Threefry-2x32 of 20 rounds for `count` numbers: the XOR of both words, `[count]`."""
    first, second = _block(key, jnp.uint32(0), lax.iota(jnp.uint32, count) + start)
    return first ^ second


def _block(key: jax.Array, first: jax.Array, second: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return both words of Threefry-2x32 of 20 rounds, of the two words of a count."""
    keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY)
    first, second = jnp.broadcast_to(first + keys[0], second.shape), second + keys[1]
    for turn in range(5):
        for rotation in _ROTATIONS[turn % 2]:
            first += second
            second = first ^ (second << rotation | second >> (32 - rotation))
        first += keys[(turn + 1) % 3]
        second += keys[(turn + 2) % 3] + jnp.uint32(turn + 1)
    return first, second


def _as_one(make: Callable[..., jax.Array], *words: jax.Array) -> jax.Array:
    """Return `make(*words)`; on CPU one kernel computes it, and no use computes it again."""

    def loop(*words: jax.Array) -> jax.Array:
        zero = zero_after(tie(words[0], words[1:]))  # in `shard_map` it varies like the words
        made = jax.eval_shape(make, *words)
        body = lambda *_: make(*words)
        return lax.fori_loop(zero, 1, body, blank(zero, made.shape, made.dtype))

    return by_platform(*words, cpu=loop, default=make)
