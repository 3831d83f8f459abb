"""Compile a step in every form that people write, and look for copies of a buffer's arrays.

    python -m benchmarks.evidence.forms

It needs fbuf alone, and takes ten minutes. `forms_gpu` does the same for a GPU.

Nothing runs. A cell names the parts of the buffer that a step writes whole, and how often. A dash:
no array is. The buffer has 2^21 rows of 9 numbers. A step adds 4 rows, draws 32, and updates or
writes them. Under `vmap` there are two seeds.
"""

from __future__ import annotations

import argparse
import collections
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

import fbuf
from benchmarks import harness, report
from fbuf.xla.program import Array, Program, array_of
from fbuf.xla.whole import written_whole

CAPACITY = 2**21
LARGE = 2**13
"""Bytes of an array from which on a copy counts."""

ITEM = {
    "observation": jnp.zeros(6),
    "reward": jnp.float32(0),
    "group": jnp.int32(0),
    "version": jnp.int32(0),
}
_WINDOW = fbuf.Prioritized(window=3)
SAMPLERS: dict[str, Any] = {
    "Uniform": fbuf.Uniform(),
    "Uniform(window=3)": fbuf.Uniform(window=3),
    "Prioritized": fbuf.Prioritized(),
    "Prioritized(window=3)": _WINDOW,
    "Mixture": fbuf.Mixture(0.4, prioritized=0.3, recent=0.3, priorities=_WINDOW),
    "FreshFirst": fbuf.FreshFirst(fbuf.Prioritized()),
    "Limited": fbuf.Limited(_WINDOW, max_uses=3, version="version"),
    "Grouped": fbuf.Grouped("group", 2, window=2),
    "Reservoir": fbuf.Reservoir(),
    "EvictLowest": fbuf.EvictLowest(),
}

Step = Callable[[Any, Any], tuple[Any, Any]]


def _rows() -> Any:
    return jax.tree.map(lambda leaf: jnp.ones((4, *jnp.shape(leaf)), leaf.dtype), ITEM)


def _drawn(state: Any, key: Any) -> tuple[Any, Any, Any]:
    if state.sampler.notes_draws:
        state, batch = fbuf.draw(state, key, 32)
    else:
        batch = fbuf.sample(state, key, 32)
    return state, batch, batch.weight @ batch.data["observation"].sum(axis=-1)


def add(state: Any, key: Any) -> tuple[Any, Any]:
    return fbuf.add(state, _rows(), truncated=jax.random.bernoulli(key, 0.1, (4,))), 0.0


def learn(state: Any, key: Any) -> tuple[Any, Any]:
    state, batch, loss = _drawn(state, key)
    if state.sampler.keeps_priorities:
        return fbuf.update_priority(state, batch.ids, jnp.abs(batch.data["reward"])), loss
    return fbuf.write(state, batch.ids, {"reward": batch.weight}), loss


def both(state: Any, key: Any) -> tuple[Any, Any]:
    return learn(add(state, key)[0], key)


def rest(state: Any, key: Any) -> tuple[Any, Any]:
    return state, 0.0


def _due(key: Any) -> Any:
    return jax.random.bernoulli(key)


def _branch(first: Step, other: Step = rest) -> Step:
    return lambda state, key: lax.cond(_due(key), first, other, state, key)


def _scan(step: Step, unroll: int = 1) -> Step:
    return lambda state, key: lax.scan(step, state, jax.random.split(key, 4), unroll=unroll)


def _fori(step: Step) -> Step:
    def run(state: Any, key: Any) -> tuple[Any, Any]:
        body = lambda n, carry: step(carry[0], jax.random.fold_in(key, n))
        return lax.fori_loop(0, 4, body, (state, jnp.float32(0)))

    return run


def _while(step: Step) -> Step:
    def run(state: Any, key: Any) -> tuple[Any, Any]:
        def body(carry: Any) -> Any:
            number, state, _ = carry
            return number + 1, *step(state, jax.random.fold_in(key, number))

        return lax.while_loop(lambda carry: carry[0] < 4, body, (0, state, jnp.float32(0)))[1:]

    return run


def _behind(change: Step, ahead: Step = add) -> Step:
    return lambda state, key: change(ahead(state, key)[0], key)


def _by_seed(state: Any, key: Any) -> tuple[Any, Any]:
    """A step whose condition differs from seed to seed, with masks in place of a branch."""
    due = _due(key)
    state = fbuf.add(state, _rows(), mask=jnp.broadcast_to(due, (4,)))
    state, batch, loss = _drawn(state, key)
    if state.sampler.keeps_priorities:
        return fbuf.update_priority(state, batch.ids, batch.weight, mask=due), loss
    return fbuf.write(state, batch.ids, {"reward": batch.weight}, mask=due), loss


def _seeds_with_one_condition(state: Any, key: Any) -> tuple[Any, Any]:
    """Seeds in a scan, all of which learn at the same turns."""

    def turn(state: Any, key: Any) -> tuple[Any, Any]:
        one = lambda state, key, due: lax.cond(due, learn, rest, add(state, key)[0], key)
        return jax.vmap(one, (0, 0, None))(state, jax.random.split(key, 2), _due(key))

    return lax.scan(turn, state, jax.random.split(key, 4))


def _vmapped(step: Step) -> Step:
    return lambda state, key: jax.vmap(step)(state, jax.random.split(key, 2))


def _nested_jit(step: Step) -> Step:
    return lambda state, key: jax.jit(step)(state, key)


FORMS: dict[str, tuple[Step, bool]] = {
    "plain": (_scan(both), False),
    "cond learn": (_scan(_behind(_branch(learn))), False),
    "cond add": (_scan(_behind(learn, _branch(add))), False),
    "cond all": (_scan(_branch(both)), False),
    "cond both": (_scan(_branch(both, add)), False),
    "unroll": (_scan(both, unroll=2), False),
    "nested jit": (_scan(_nested_jit(both)), False),
    "checkpoint": (_scan(lambda state, key: jax.checkpoint(both)(state, key)), False),
    "while": (_while(both), False),
    "fori": (_fori(both), False),
    "vmap": (_vmapped(_scan(both)), True),
    "vmap, one condition": (_seeds_with_one_condition, True),
    "vmap, masks": (_vmapped(_scan(_by_seed)), True),
}
"""Steps, and whether they take two buffers by `vmap`."""


def buffer(sampler: Any, seeds: bool) -> Any:
    """Return the shapes of a buffer, or of two."""
    make = lambda _=None: fbuf.init(ITEM, CAPACITY, sampler=sampler)
    return jax.eval_shape(jax.vmap(make), jnp.arange(2)) if seeds else jax.eval_shape(make)


def parts(state: Any) -> dict[Array, str]:
    """Return the names of the large arrays of a buffer; those of one shape share a name."""
    named: dict[Array, str] = {}
    for path, leaf in jax.tree.leaves_with_path(state):
        if leaf.size * leaf.dtype.itemsize >= LARGE:
            name = jax.tree_util.keystr(path).lstrip(".")
            named.setdefault(array_of(leaf.shape, leaf.dtype), name)
    return named


def copied(text: str, state: Any) -> dict[str, int]:
    """Count how often a compiled program writes each part of a buffer whole."""
    named = parts(state)
    found = written_whole(Program(text), named)
    return dict(collections.Counter(named[each.array] for each in found))


def compiled(step: Step, state: Any, key: Any) -> str:
    """Return the text of a step that is compiled for the CPU."""
    return jax.jit(step, donate_argnums=0).lower(state, key).compile().as_text()


def script(
    module: str,
    title: str,
    how: str,
    compiled: Callable[[Step, Any, Any], str],
    packages: Sequence[str],
    about: dict[str, str],
) -> None:
    """Compile all steps, and write the report."""
    parser = argparse.ArgumentParser(description=how.splitlines()[0])
    report.add_options(parser)
    options = parser.parse_args()
    key = jax.eval_shape(lambda: jax.random.key(0))
    records: list[dict[str, Any]] = []
    for name, sampler in SAMPLERS.items():
        for form, (step, seeds) in FORMS.items():
            state = buffer(sampler, seeds)
            found = copied(compiled(step, state, key), state)
            records.append({"sampler": name, "form": form, "copied": found})
            print(name, form, found or "-", flush=True)
    cells = {(r["sampler"], r["form"]): r["copied"] for r in records}
    lines = [[form, *(_cell(cells[name, form]) for name in SAMPLERS)] for form in FORMS]
    table = report.table(["form", *SAMPLERS], lines)
    folder = report.results_of(options)
    report.write(module, title, folder, harness.about(*packages) | about, records, table, how)


def _cell(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}x" for name, count in found.items()) or "-"


if __name__ == "__main__":
    script(
        "benchmarks.evidence.forms",
        "Forms of a step",
        __doc__ or "",
        compiled,
        ("fbuf", "jax", "jaxlib"),
        {"device": "CPU"},
    )
