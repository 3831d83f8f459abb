"""Tensors and what holds them as what `fbuf.save` writes: arrays, numbers, strings, dicts, lists.

Nothing is pickled, so what is read can be of a few known classes only, and nothing is run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import fbuf
from fbuf_adapters.pytorch.crossing._containers import is_tensordict

CLASSES = {
    kind.__name__: kind
    for kind in (
        *(fbuf.Batch, fbuf.Rollout, fbuf.Sample, fbuf.Ids, fbuf.MixedSample),
        *(fbuf.TransitionStep, fbuf.NStepTransition, fbuf.SequenceSteps),
        *(fbuf.HindsightStep, fbuf.ReturnToGoStep, fbuf.WindowStep),
    )
}
"""The classes of batches and their parts."""


def encode(where: str, value: Any) -> Any:
    """A tree of tensors and plain values as what `fbuf.save` takes as `extra`; it is a copy.

    Args:
        where: The caller, for the message.
        value: Tensors, arrays, numbers, bools, strings, bytes, dtypes and None, in dicts, lists,
            tuples, TensorDicts and batches of fbuf.

    Raises:
        TypeError: If there is something else in it.
    """
    each = lambda values: [encode(where, one) for one in values]
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return {"numpy": value}
    if isinstance(value, torch.Tensor):
        tensor = value.detach().cpu().resolve_conj().resolve_neg().reshape(-1)
        bits = tensor.view(torch.uint8).numpy().copy()
        return {"tensor": _name(value.dtype), "shape": list(value.shape), "bits": bits}
    if isinstance(value, torch.dtype):
        return {"dtype": _name(value)}
    if is_tensordict(value):
        content = {key: value.get(key) for key in value.keys()}  # noqa: SIM118 (not a dict)
        size, names = list(value.batch_size), list(value.names or ())
        made = {"tensordict": encode(where, content), "size": size}
        return made | {"names": names} if any(names) and len(names) == len(size) else made
    if isinstance(value, Mapping):
        return {"dict": [each(pair) for pair in value.items()]}
    if type(value) in (list, tuple, torch.Size):
        return {"list" if type(value) is list else "tuple": each(value)}
    if CLASSES.get(type(value).__name__) is type(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {
            "class": type(value).__name__,
            "of": {name: encode(where, getattr(value, name)) for name in names},
        }
    raise TypeError(
        f"{where} cannot write a {type(value).__module__}.{type(value).__qualname__}; it writes "
        "tensors, arrays, numbers, strings and bytes, in dicts, lists and tuples; make bytes of "
        "something else with pickle.dumps"
    )


def decode(value: Any, device: torch.device) -> Any:
    """Return the value given to `encode`: tensors of TensorDicts on a device, others on CPU.

    Raises:
        KeyError: If it is none of that.
    """
    each = lambda values: [decode(one, device) for one in values]
    if not isinstance(value, dict):
        return value
    match value:
        case {"numpy": array}:
            return array
        case {"tensor": dtype, "shape": shape, "bits": bits}:
            tensor = torch.from_numpy(np.array(bits))
            return tensor.view(_dtype(dtype)).reshape(shape)
        case {"dtype": dtype}:
            return _dtype(dtype)
        case {"tensordict": content, "size": size}:
            from tensordict import TensorDict  # whoever saved one has it

            inside = decode(content, device)
            named = {key: node.names for key, node in inside.items() if is_tensordict(node)}
            made: Any = TensorDict(inside, batch_size=size, device=device, names=value.get("names"))
            for key, names in named.items():  # which they lose in another TensorDict
                if any(names):
                    made[key].names = names
            return made
        case {"dict": pairs}:
            return {decode(key, device): decode(one, device) for key, one in pairs}
        case {"list": values}:
            return each(values)
        case {"tuple": values}:
            return tuple(each(values))
        case {"class": name, "of": of}:
            return CLASSES[name](**{field: decode(one, device) for field, one in of.items()})
        case _:
            raise KeyError(f"nothing is saved as {sorted(value)}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise KeyError(f"there is no dtype {name!r}")
    return found
