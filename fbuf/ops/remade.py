"""The empty buffer that a load would make from a checkpoint."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax

from fbuf.checkpoint import config, tree_json
from fbuf.checkpoint.errors import CheckpointError
from fbuf.ops.init import init
from fbuf.samplers.protocol.sampler import Sampler
from fbuf.state import State


def like(function: str, state: State[Any]) -> State[Any]:
    """Return the shapes and dtypes of the buffer that a load would make for this one.

    Args:
        function: The called function, for errors.
        state: The buffer to save.

    Raises:
        CheckpointError: If `fbuf.init` refuses such a buffer: its checkpoint could not be loaded.
    """
    described = json.dumps(config.described(state), sort_keys=True)
    layout = state.storage.layout
    try:
        return _made(described, state.sampler, layout.tree)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise CheckpointError(
            f"fbuf.{function}: no load could make such a buffer again, so nothing was written: "
            f"{error}; make the buffer with fbuf.init, and change it by functions of fbuf alone"
        ) from error


@functools.lru_cache(maxsize=64)
def _made(described: str, sampler: Sampler, tree: Any) -> State[Any]:
    """Trace `init` once for each kind of buffer: a trace takes some milliseconds."""
    data = json.loads(described)
    # A load needs 64-bit types for such items, and says so.
    with jax.enable_x64(True):
        specs = [tree_json.spec(leaf) for leaf in tree_json.leaves(data["item"])]
        given = config.arguments(data, jax.tree.unflatten(tree, specs), sampler)
        return jax.eval_shape(lambda: init(**given))
