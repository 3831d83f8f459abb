"""Save and load a buffer of TensorDicts: its rows, its figures and its transforms."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import Any

import torch

import fbuf
from fbuf.adapter_api import Episodes
from fbuf_adapters.pytorch import ReplayBuffer
from fbuf_adapters.pytorch.buffer import _snapshot
from fbuf_adapters.pytorch.crossing import _containers
from fbuf_adapters.tensordict import _pending
from fbuf_adapters.tensordict._codec import NAME, Codec
from fbuf_adapters.tensordict._leaves import Form


def state_dict(buffer: ReplayBuffer, codec: Codec) -> dict[str, Any]:
    """Return the rows, the figures and the states of the transforms."""
    with buffer.lock:
        saved = buffer.state_dict()
        # By default torch.load reads dicts, but no TensorDicts.
        saved["ahead"] = [_containers.described(batch) for batch in saved["ahead"]]
        return {"buffer": saved, **_figures(codec)}


def load_state_dict(
    buffer: ReplayBuffer, codec: Codec, saved: dict[str, Any], episodes: Episodes
) -> None:
    """Load the result of `state_dict`."""
    with buffer.lock, contextlib.ExitStack() as stack:
        _check_transforms("load_state_dict", codec, saved)
        rows = dict(saved["buffer"])
        device = buffer.contents.spec.device
        rows["ahead"] = [_containers.restored(batch, device) for batch in rows["ahead"]]
        resume = lambda: stack.enter_context(_resumed(codec, saved, episodes))
        _snapshot.load_state_dict(buffer.contents, rows, episodes, resume)


def save(buffer: ReplayBuffer, codec: Codec, path: str | os.PathLike[str], extra: Any) -> None:
    """Save the buffer to a directory, and what the user saves with it."""
    with buffer.lock:
        buffer.save(path, extra={"tensordict": _figures(codec), "extra": extra})


def load(
    buffer: ReplayBuffer, codec: Codec, path: str | os.PathLike[str], episodes: Episodes
) -> Any:
    """Load a directory that `save` wrote, and return the extra; None if there is none."""
    with buffer.lock, contextlib.ExitStack() as stack:

        def check(extra: Any) -> None:
            if not isinstance(extra, dict) or "tensordict" not in extra:
                raise fbuf.CheckpointError(
                    f"{NAME}.loads: {os.fspath(path)!r} was saved by another kind of buffer"
                )
            _check_transforms("loads", codec, extra["tensordict"])
            stack.enter_context(_resumed(codec, extra["tensordict"], episodes))

        _check_not_torchrls(path)
        return _snapshot.load(buffer.contents, path, False, episodes, check).get("extra")


def _check_not_torchrls(path: str | os.PathLike[str]) -> None:
    """Refuse a directory that a buffer of TorchRL has written."""
    if os.path.exists(os.path.join(path, "storage", "storage_metadata.json")):
        raise fbuf.CheckpointError(
            f"{NAME}.loads: {os.fspath(path)!r} was written by a buffer of TorchRL; load it into "
            "one, and make this buffer from that: from_torchrl(rb)"
        )


def _figures(codec: Codec) -> dict[str, Any]:
    """Return the figures to be saved beside the rows, and the states of the transforms."""
    run = codec.run
    return {
        "dtypes": dict(run.form.dtypes) if run.form else {},
        "item_dims": list(run.form.dims) if run.form else [],
        "nodes": _containers.said(run.form.nodes) if run.form and run.form.nodes else None,
        "alpha": run.alpha,
        "beta": run.beta,
        "write_count": run.write_count,
        "transforms": codec.transforms.state_dicts(),
        "pending": _pending.saved(codec.transforms.all),
    }


def _check_transforms(function: str, codec: Codec, saved: dict[str, Any]) -> None:
    """Raise if figures are missing, or if the buffer has another number of transforms."""
    needed = {"dtypes", "item_dims", "alpha", "beta", "write_count", "transforms"}
    if missing := sorted(needed - saved.keys()):
        raise ValueError(
            f"{NAME}.{function}: state_dict is incomplete: it lacks {missing}; give what "
            "state_dict() of such a buffer returned"
        )
    count, own = len(saved["transforms"]), len(codec.transforms.all)
    if count != own:
        raise ValueError(
            f"{NAME}.{function}: state_dict has {count} transforms, but this "
            f"buffer has {own}; append the same transforms first"
        )
    held, own = saved.get("pending"), len(_pending.saved(codec.transforms.all))
    if held is not None and len(held) != own:
        raise ValueError(
            f"{NAME}.{function}: state_dict has the pending rows of {len(held)} "
            f"MultiStepTransforms, but this buffer has {own} of them; append the same transforms "
            "first"
        )


@contextlib.contextmanager
def _resumed(codec: Codec, saved: dict[str, Any], episodes: Episodes) -> Generator[None]:
    """Load saved transforms, and saved figures once the block has loaded the rows."""
    transforms = codec.transforms
    before, held = transforms.state_dicts(), _pending.saved(transforms.all)
    none = [None] * len(held)  # of older figures
    try:
        transforms.load(saved["transforms"])
        _pending.load(transforms.all, saved.get("pending", none), episodes)
        yield
    except BaseException:
        transforms.load(before)
        _pending.load(transforms.all, held, "keep")
        raise
    dtypes, nodes = dict(saved["dtypes"]), saved.get("nodes")  # older figures lack the nodes
    axes = None if nodes is None else _containers.heard(nodes)
    codec.run.__dict__.update(  # one instruction, which no exception can cut in two
        form=Form(dtypes, torch.Size(saved["item_dims"]), axes) if dtypes else None,
        alpha=saved["alpha"],
        beta=saved["beta"],
        write_count=saved["write_count"],
        ready=False,
        seen=None,  # so the next `extend` looks up the cursor and the episodes
    )
