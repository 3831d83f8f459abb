"""The arguments of an object that takes over a state or a store made elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fbuf
from fbuf.adapter_api import Asked, made_with, owner_of
from fbuf_adapters.pytorch._spec import where
from fbuf_adapters.pytorch.buffer._contents import Contents
from fbuf_adapters.pytorch.crossing._error import InteropError
from fbuf_adapters.pytorch.crossing._item import learn


def arguments_of(begins: str, state: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an object with these options, for a state or a store.

    Raises:
        InteropError: If it is neither.
        ValueError: If an option differs from that of the state.
    """
    asked = Asked(begins.rstrip(":"), "a fbuf.State or a HostStore", error=InteropError)
    owner = owner_of(state, asked)
    owner.require("from_state")
    if owner.over_mesh:
        raise InteropError(
            f"{begins} state lies over a mesh; use the functions of fbuf, and to_torch for its "
            "batches"
        )
    index, store = owner.index, state if owner.in_place else None
    if index.ring.cursor.ndim != 2:
        raise InteropError(
            f"{begins} state is a batch of {index.ring.cursor.shape[:-2]} buffers; take one of "
            "them with jax.tree.map(lambda leaf: leaf[0], state)"
        )
    if "item" in options:
        raise ValueError(f"{begins} item is what the state says itself; leave it out")
    arguments = made_with(index)
    differ = [name for name in arguments if name in options and options[name] != arguments[name]]
    if differ:
        said = ", ".join(f"{n}={options[n]!r}, but the state has {arguments[n]!r}" for n in differ)
        raise ValueError(f"{begins} {said}; leave out what the state says itself")
    if not options.get("host", store) and "max_ends" not in options:
        del arguments["max_ends"]  # so that the room may grow
    arguments |= options
    if store is not None:
        if options.get("host", store) is not store:
            raise ValueError(
                f"{begins} host={options['host']!r}, but the rows of this store stay where they "
                "are; leave host out"
            )
        return arguments | {"host": store}
    if "device" not in arguments:
        (device,) = index.fault.devices()
        gpu = f"cuda:{device.local_hardware_id}"
        arguments["device"] = "cpu" if device.platform == "cpu" else gpu
    return arguments


def take_over(contents: Contents, state: fbuf.State[Any]) -> None:
    """Have empty contents go on with a state, which is theirs from then on."""
    learned = learn(where("from_state"), state.storage.item)
    with contents.lock:
        written = bool(int(state.ring.count()))
        contents.stored = contents.calls.apart(lambda: contents.make(learned, state, written))
