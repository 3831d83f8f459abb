"""Operations that are compiled once for the whole session: compiling is what a test costs."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf import sharded
from fbuf.dispatch.flat_state import held
from fbuf.views.row_reader import RowReader
from fbuf.xla.program import Program, array_of
from fbuf.xla.whole import written_whole

WRITES = ("add", "update_priority", "remove", "clear")
STATIC = {"add": ("time_major",), "sample": ("batch_size", "view"), "neighbours": ("steps",)}


@functools.cache
def compiled(name, donate=False, module=fbuf):
    """An operation of fbuf in a jit of its own, one for all tests."""
    return jax.jit(
        getattr(module, name),
        static_argnames=STATIC.get(name, ()),
        donate_argnums=(0,) if donate else (),
    )


add, remove, clear = compiled("add"), compiled("remove"), compiled("clear")
update_priority, end_episode = compiled("update_priority"), compiled("end_episode")
sample = compiled("sample")


def count_for(state, name):
    """Count the compiled programs of an operation for states like this one."""
    made = held(state)[1].programs.items()
    return sum(program._cache_size() for (of, _), program in made if of.__name__ == name)


def emitters(on):
    """The option of XLA that makes kernels of fusions; from JAX 0.11 on it always does."""
    return {"xla_cpu_use_fusion_emitters": on} if jax.__version_info__ < (0, 11) else {}


def built(jitted, *args):
    """The program that users have. Flags for fast compiling make other kernels."""
    return jitted.lower(*args).compile(compiler_options=emitters(True))


def copies(step, state, *args, **options):
    """Arrays that a step of a donated buffer writes whole, as users compile it."""
    program = Program(built(jax.jit(step, donate_argnums=0, **options), state, *args).as_text())
    leaves = [leaf for leaf in jax.tree.leaves(state) if leaf.size * leaf.dtype.itemsize > 2**13]
    arrays = [array_of(leaf.shape, leaf.dtype) for leaf in leaves]
    return written_whole(program, arrays) + program.not_in_place(arrays)


@functools.partial(jax.jit, static_argnames=("batch_size", "view"))
def look(state, key, step=None, beta=0.7, *, batch_size, view=fbuf.Item()):
    """A batch, and all that can be asked of a state, in one program."""
    batch = fbuf.sample(state, key, batch_size, view=view, beta=beta, step=step)
    slots = jnp.arange(state.capacity, dtype=jnp.int32)
    likely = fbuf.probability(state, fbuf.ids_at(state, slots))
    asked = fbuf.size(state), fbuf.can_sample(state), fbuf.stats(state)
    return batch, *asked, likely, fbuf.rows(state)


def _look_over_shards(state, key, step=None, beta=0.7, *, batch_size):
    """The same over a mesh, as far as it can be asked of all shards at once."""
    batch = sharded.sample(state, key, batch_size, beta=beta, step=step)
    return batch, sharded.size(state), sharded.can_sample(state), sharded.stats(state)


over_shards = SimpleNamespace(
    look=jax.jit(_look_over_shards, static_argnames="batch_size"),
    **{name: compiled(name, module=sharded) for name in (*WRITES, "end_episode")},
)


@functools.partial(jax.jit, static_argnums=0)
def reading(view, state, slots, key):
    """Return the result of a view of slots."""
    request, source = view.request(fbuf.views.Reader("view", state), slots, key), RowReader(state)
    rows = {name: wanted.read(source) for name, wanted in request.rows.items()}
    return view.build(state.storage.layout, rows, request.seen)


def read(view, state, slots, key=None):
    """Return the view of some slots, padded so that all tests of a shape share a program."""
    key = jax.random.key(0) if key is None else key
    padded = np.resize(np.asarray(slots, np.int32), max(state.capacity, len(slots)))
    made = reading(view, state, padded, key)
    return jax.tree.map(lambda x: np.asarray(x)[: len(slots)], made)


def every_way(draw, state, keys):
    """Return the eager result of `draw(state, key)`; all ways of calling must give the same."""
    eager = jax.tree.map(lambda *x: np.stack(x), *[draw(state, key) for key in keys])
    many = jax.tree.map(lambda x: np.stack([x] * len(keys)), state)
    scan = lambda s, ks: jax.lax.scan(lambda s, k: (s, draw(s, k)), s, ks)[1]
    for way in (jax.jit(scan)(state, keys), jax.jit(jax.vmap(draw))(many, keys)):
        for a, b in zip(jax.tree.leaves(eager), jax.tree.leaves(way), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    return eager


READS = ("sample", "size", "can_sample", "stats")
WAYS = ["eager", "eager_keep", "jit", "jit_donate"]


def operations(way):
    """The functions of fbuf, called in one of four ways."""
    if way == "eager":
        found = {name: getattr(fbuf, name) for name in WRITES}
    elif way == "eager_keep":
        found = {name: functools.partial(getattr(fbuf, name), donate=False) for name in WRITES}
    else:
        found = {name: compiled(name, way == "jit_donate") for name in WRITES}
    reads = {
        name: getattr(fbuf, name) if way.startswith("eager") else compiled(name) for name in READS
    }
    return SimpleNamespace(way=way, **found, **reads)
