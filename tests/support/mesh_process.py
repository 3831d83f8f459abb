"""One of several processes that share a mesh: `python mesh_process.py PORT COUNT NUMBER WHAT ...`.

It has as many simulated devices as `FBUF_DEVICES` says, and prints one line of JSON at the end.
"""

import json
import os
import pathlib
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import jax
import numpy as np

PORT, COUNT, NUMBER = map(int, sys.argv[1:4])
jax.config.update("jax_num_cpu_devices", int(os.environ["FBUF_DEVICES"]))
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(
    f"localhost:{PORT}",
    COUNT,
    NUMBER,
    initialization_timeout=60,
    heartbeat_timeout_seconds=int(os.environ.get("FBUF_HEARTBEAT", "30")),
)

# Only now, as the lines above say how many devices JAX has.
import fbuf  # noqa: E402
from fbuf import sharded  # noqa: E402
from fbuf.storage import tags  # noqa: E402
from support import meshes, restored  # noqa: E402


def mesh():
    return jax.sharding.Mesh(np.array(jax.devices()), ("data",))


def parts(tree):
    """Return, for every device of this process, a digest of its part of a tree."""
    found = {}
    for leaf in jax.tree.leaves(tree):
        for part in leaf.addressable_shards:
            found.setdefault(part.device.id, []).append(np.asarray(part.data))
    order = {device.id: place for place, device in enumerate(jax.devices())}
    return {str(order[name]): meshes.digest(arrays) for name, arrays in found.items()}


def histories(names, turns):
    """A history by each sampler, as in one process."""
    found = {}
    for name in names:
        sampler = meshes.SAMPLERS[name]
        state = meshes.empty(sharded, sampler, mesh=mesh(), shards=meshes.SHARDS)
        state, (batches, _) = meshes.quick_history(
            sharded, sampler, meshes.views_of(name), turns, state, meshes.inputs(0, turns)
        )
        cursor = np.asarray(state.blocks.ring.cursor.addressable_shards[0].data)
        tag = int(cursor[tags.ROW, 0])
        found[name] = {"state": parts(state.blocks), "batches": parts(batches), "tag": tag}
    return found


def filled(rows=None):
    """A buffer to which each process has added rows of its own environments."""
    item = {"x": np.int32(0)}
    state = sharded.init(item, 640, mesh=mesh(), num_envs=meshes.ENVS, sampler=fbuf.Prioritized())
    for turn in range(3):
        state = sharded.add(state, own_rows(turn))
    return state


def own_rows(turn):
    """Two steps of this process's environments, as one array of all processes."""
    mine = meshes.ENVS // COUNT
    number = np.arange(NUMBER * mine, (NUMBER + 1) * mine, dtype=np.int32)
    rows = number[:, None] * 1000 + turn * 2 + np.arange(2, dtype=np.int32)
    sharding = jax.NamedSharding(mesh(), jax.P("data"))
    return {"x": jax.make_array_from_process_local_data(sharding, rows)}


def other_keys():
    """Each process draws with a key of its own."""
    state = filled()
    same = sharded.sample(state, jax.random.key(0), 16)
    other = sharded.sample(state, jax.random.key(NUMBER), 16)
    here = [bool(part.data.any()) for part in other.mask.addressable_shards]
    try:
        sharded.raise_on_fault(other)
        message = ""
    except RuntimeError as error:
        message = str(error)
    sharded.raise_on_fault(same)
    beta = sharded.sample(state, jax.random.key(0), 16, beta=0.1 + 0.5 * NUMBER)
    here += [bool(part.data.any()) for part in beta.mask.addressable_shards]
    return {"drawn": any(here), "message": message, "size": int(sharded.size(state))}


def alone(path):
    """Arrays of one process alone are refused; so is a path that the other does not have."""
    state = filled()
    batch = sharded.sample(state, jax.random.key(0), 16)
    own = [part.data for part in batch.ids.slot.addressable_shards]
    ids = sharded.ShardedIds(*[np.concatenate(own)] * 3)
    calls = {
        "rows": lambda: sharded.add(state, {"x": np.zeros(meshes.ENVS, np.int32)}),
        "flags": lambda: sharded.add(
            state, {"x": own_rows(5)["x"][:, 0]}, terminated=np.zeros(meshes.ENVS, bool)
        ),
        "ids": lambda: sharded.update_priority(state, ids, np.ones(8, np.float32)),
        "load": lambda: restored.sharded_load(path if NUMBER else path + "-elsewhere", mesh=mesh()),
        "save": lambda: sharded.save(f"{path}-of-{NUMBER}", state),
    }
    sharded.save(path, state)
    found = {}
    for name, call in calls.items():
        try:
            call()
            found[name] = ""
        except (ValueError, RuntimeError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    # Arguments that are the same in all processes may come as they are.
    state = sharded.add(state, own_rows(6), mask=np.array([True, False]))
    sharded.sample(state, np.array([0, 7], np.uint32), 16, beta=np.float32(0.5))
    size = int(sharded.size(state))
    rows = own_rows(7)
    for _ in range(100):  # JAX would hang if nobody waited
        state = sharded.add(state, rows)
    return {**found, "size": size}


def apart(path):
    """Meshes on which processes do not share the buffer: a copy in each, and one for each."""
    devices = np.array(jax.devices()).reshape(COUNT, -1)
    both = jax.sharding.Mesh(devices, ("model", "data"))
    item = {"x": np.int32(0)}
    state = sharded.init(item, 64, mesh=both, axis="data", sampler=fbuf.Prioritized())
    rows = jax.device_put({"x": np.arange(16, dtype=np.int32)}, jax.NamedSharding(both, jax.P()))
    state = sharded.add(state, rows)
    drawn = {}
    for name, key in (("same", 5), ("other", NUMBER)):
        batch = sharded.sample(state, jax.random.key(key), 16)
        here = [bool(part.data.any()) for part in batch.mask.addressable_shards]
        drawn[name] = all(here) if name == "same" else any(here)
    own = jax.sharding.Mesh(np.array(jax.local_devices()), ("data",))
    mine = sharded.init(item, 64, mesh=own)
    mine = sharded.add(mine, {"x": np.arange(8 + 2 * NUMBER, dtype=np.int32)})
    for turn in range(2):
        mine = sharded.save(f"{path}-of-{NUMBER}", mine, extra=turn)
    again, extra = restored.sharded_load(f"{path}-of-{NUMBER}", mesh=own)
    return {**drawn, "size": int(sharded.size(again)), "extra": extra}


def saved(path, times):
    """Save, and say what a batch drawn then is; each time with two more rows."""
    state = filled()
    for turn in range(int(times)):
        state = sharded.add(state, own_rows(10 + turn))
        state = sharded.save(path, state, extra={"turn": turn, "key": jax.random.key(turn)})
    return {"batch": parts(sharded.sample(state, jax.random.key(1), 16).data)}


def loaded(path):
    """Return a batch drawn from the checkpoint."""
    state, extra = restored.sharded_load(path, mesh=mesh())
    batch = sharded.sample(state, jax.random.key(1), 16)
    return {"batch": parts(batch.data), "turn": extra["turn"]}


def killed(path, turns):
    """The second process is killed in the middle of a run; the first goes on, if it can."""
    state = filled()
    state = sharded.save(path, state, extra={"turn": -1, "key": jax.random.key(0)})
    for turn in range(int(turns)):
        state = sharded.add(state, own_rows(turn))
        batch = sharded.sample(state, jax.random.key(turn), 16)
        state = sharded.update_priority(state, batch.ids, batch.weight)
        jax.block_until_ready(state)
        if turn == 3:
            print("killed", flush=True)
            if NUMBER == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            print("since", time.time(), flush=True)
    return {"turns": turns}


def killed_in_save(path, at):
    """The second process is killed when it has written so many files of its second save."""
    from fbuf.checkpoint import files

    state = sharded.save(path, filled(), extra={"turn": 0, "key": jax.random.key(0)})
    state = sharded.add(state, own_rows(10))
    if NUMBER == 1:
        left, write = int(at), files._written

        def counted(final, content):
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return write(final, content)

        files._written = counted
    print("since", time.time(), flush=True)
    sharded.save(path, state, extra={"turn": 1, "key": jax.random.key(1)})
    return {}


def disk_full(path):
    """One of two processes cannot write its shards."""
    from fbuf.checkpoint import files

    state = sharded.save(path, filled(), extra={"turn": 0, "key": jax.random.key(0)})
    state = sharded.add(state, own_rows(10))
    write = files._written

    def full(final, content):
        raise OSError(28, "No space left on device")

    if NUMBER == 1:
        files._written = full
    try:
        sharded.save(path, state, extra={"turn": 1, "key": jax.random.key(1)})
        message = ""
    except (OSError, RuntimeError) as error:
        message = f"{type(error).__name__}: {error}"
    files._written = write
    again, extra = restored.sharded_load(path, mesh=mesh())
    state = sharded.save(path, state, extra={"turn": 2, "key": jax.random.key(2)})
    return {"message": message, "turn": extra["turn"], "size": int(sharded.size(again))}


def damaged(path):
    """A file that only the second process reads is damaged."""
    state = filled()
    for turn in range(2):
        state = sharded.add(state, own_rows(10 + turn))
        state = sharded.save(path, state, extra={"turn": turn, "key": jax.random.key(turn)})
    if NUMBER == 1:
        (file,) = pathlib.Path(path).glob("of-shard-00003/shard-*/rows-00000002.npy")
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    try:
        restored.sharded_load(path, mesh=mesh())
        message = ""
    except fbuf.CheckpointError as error:
        message = str(error)
    again, extra = restored.sharded_load(path, mesh=mesh(), fallback=True)
    return {"message": message, "turn": extra["turn"], "size": int(sharded.size(again))}


DONE = {
    "histories": lambda names, turns: histories(names.split(","), int(turns)),
    "other_keys": other_keys,
    "alone": alone,
    "apart": apart,
    "saved": saved,
    "loaded": loaded,
    "killed": killed,
    "killed_in_save": killed_in_save,
    "disk_full": disk_full,
    "damaged": damaged,
}

print(json.dumps(DONE[sys.argv[4]](*sys.argv[5:])), flush=True)
