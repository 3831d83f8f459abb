"""A process whose memory runs out in the midst of a call; says "whole" for each call that is done.

python tests/support/out_of_memory.py
"""

import ctypes
import gc
import resource
from collections.abc import Callable

import psutil
import torch
from fbuf_adapters.pytorch import ReplayBuffer

import fbuf

ENVS, STEPS, WIDTH = 4, 200, 25_000
"""80 MB of rows."""


def rows(value: float, *lead: int) -> dict[str, torch.Tensor]:
    """Rows that are large, so that memory for a copy of them can be missing."""
    number = torch.arange(torch.Size(lead).numel()).reshape(lead)
    return {"number": number, "x": torch.full((*lead, WIDTH), value)}


def fails(call: Callable[[], object]) -> None:
    """Make a call that needs more memory than there is."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what was used and is free
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**22, resource.RLIM_INFINITY))
    try:
        call()
    except (MemoryError, RuntimeError) as error:
        said = f"{type(error).__name__}: {error}".lower()  # NumPy says it in the name alone
    else:
        said = "there was memory enough"
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    if "memory" not in said or "enough" in said:
        raise AssertionError(said)


def newest(buffer: ReplayBuffer) -> float:
    """Return the values of the newest row."""
    return float(fbuf.read(buffer.state, fbuf.newest_ids(buffer.state, 1)).data["x"].ravel()[0])


def main() -> None:
    """Every call that may need much memory, before and after it has failed."""
    # In the order in which environments are given, which is not that in which they are stored.
    buffer = ReplayBuffer(2 * ENVS * STEPS, num_envs=ENVS, batch_size=8)
    for value in (1.0, 2.0):
        buffer.extend(rows(value, ENVS, STEPS))
    given = rows(3.0, ENVS, STEPS)
    fails(lambda: buffer.extend(given))
    assert (len(buffer), newest(buffer)) == (1600, 2.0)
    buffer.extend(given)
    assert newest(buffer) == 3.0
    print("whole: extend", flush=True)

    drawn = ReplayBuffer(800)
    drawn.extend(rows(1.0, 800))
    sizes = (700, 800)
    for size in (*sizes, 8) * 2:  # all that is compiled
        drawn.sample(size)
    for size in sizes:
        fails(lambda size=size: drawn.sample(size))
        assert float(drawn.sample(8).data["x"].mean()) == 1.0
        assert len(drawn.sample(size).data["number"]) == size
    print("whole: sample", flush=True)


if __name__ == "__main__":
    main()
