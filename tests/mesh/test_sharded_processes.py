"""One buffer over several processes: the batches of one, checkpoints, and what a death does."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from support import meshes, restored, tags

from fbuf import sharded

pytestmark = pytest.mark.sweep  # each starts JAX in two processes

SCRIPT = pathlib.Path(__file__).parents[1] / "support" / "mesh_process.py"


def free_port():
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return found.getsockname()[1]


def start(what, *args, count=2, devices=4, **environment):
    """So many processes, with so many devices each."""
    port = free_port()
    flags = " ".join(
        flag for flag in os.environ["XLA_FLAGS"].split() if "host_platform_device_count" not in flag
    )
    given = {"XLA_FLAGS": flags, "FBUF_DEVICES": str(devices), **environment}
    return [
        subprocess.Popen(
            [
                sys.executable,
                str(SCRIPT),
                str(port),
                str(count),
                str(number),
                what,
                *map(str, args),
            ],
            env={**os.environ, **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]


def ended(processes, seconds=400):
    """Return the output of each process, its errors and its exit status."""
    found = []
    try:
        for process in processes:
            out, errors = process.communicate(timeout=seconds)
            found.append((out, errors, process.returncode))
    finally:
        for process in processes:
            process.kill()
    return found


def results(processes):
    """The result that each has printed at the end."""
    found = []
    for out, errors, status in ended(processes):
        assert status == 0, errors[-3000:]
        found.append(json.loads(out.splitlines()[-1]))
    return found


def parts(tree):
    """Return a digest of each device's part of a tree, for the devices of this process."""
    found = {}
    for leaf in jax.tree.leaves(tree):
        for part in leaf.addressable_shards:
            found.setdefault(str(part.device.id), []).append(np.asarray(part.data))
    return {name: meshes.digest(arrays) for name, arrays in found.items()}


@pytest.mark.parametrize(
    "names",
    [
        "prioritized,window,shuffled",
        *(
            pytest.param(names, marks=pytest.mark.soak)
            for names in (
                "episode,priority_window,mixture",
                "stratified,shuffled_episode,mixture_window",
                "uniform,stride,largest_ever,shuffled_window",
            )
        ),
    ],
)
def test_two_processes_give_what_one_gives(names):
    turns = 26
    mine, other = results(start("histories", names, turns))
    for name in names.split(","):
        sampler, views = meshes.SAMPLERS[name], meshes.views_of(name)
        with tags.all_of(mine[name]["tag"]):
            state, (batches, _) = meshes.run(sampler, views, 8, turns)
        assert {**mine[name]["state"], **other[name]["state"]} == parts(state.blocks)
        assert {**mine[name]["batches"], **other[name]["batches"]} == parts(batches)


def test_keys_that_differ_are_noticed():
    for found in results(start("other_keys", devices=2)):
        assert not found["drawn"]
        assert "different keys" in found["message"]
        assert found["size"] == 3 * 2 * meshes.ENVS


def test_what_a_process_has_for_itself_is_refused(tmp_path):
    for found in results(start("alone", tmp_path / "there", devices=2)):
        for name in ("rows", "flags", "ids"):
            assert "of this process alone" in found[name], name
            assert "make_array_from_process_local_data" in found[name]
        assert "CheckpointError: fbuf.sharded.load: processes see different" in found["load"]
        missing = "CheckpointError: fbuf.save: " in found["save"]
        assert missing or "another process has failed" in found["save"], found["save"]
        assert found["size"] == (3 * 2 + 1) * meshes.ENVS


def test_processes_with_a_copy_or_a_buffer_of_their_own(tmp_path):
    for number, found in enumerate(results(start("apart", tmp_path / "there", devices=2))):
        assert found["same"]
        assert not found["other"]
        assert found["size"] == 8 + 2 * number
        assert found["extra"] == 1


def test_what_two_processes_save_one_loads(tmp_path):
    written = results(start("saved", tmp_path, 2, devices=2))
    there = {**written[0]["batch"], **written[1]["batch"]}
    read = results(start("loaded", tmp_path, devices=2))
    assert {**read[0]["batch"], **read[1]["batch"]} == there
    assert read[0]["turn"] == 1
    for devices in (1, 2, 4):
        state, extra = restored.sharded_load(tmp_path, mesh=meshes.mesh(devices))
        batch = sharded.sample(state, jax.random.key(1), 16)
        if devices == 4:
            assert parts(batch.data) == there
        assert extra["turn"] == 1
    one = restored.sharded_load(tmp_path, mesh=meshes.mesh(1)).state
    assert int(sharded.size(one)) == 5 * 2 * meshes.ENVS


HEARTBEAT = 10
"""Seconds after which JAX takes a silent process for dead."""

WITHIN = 60
"""Seconds that the end may take, on a machine that does other things as well."""


def test_a_process_that_dies_ends_the_others(tmp_path):
    first, second = start("killed", tmp_path, 1000, devices=2, FBUF_HEARTBEAT=str(HEARTBEAT))
    (out, errors, status), (_, _, killed) = ended([first, second])
    assert killed == -signal.SIGKILL
    assert status not in (0, None)
    since = float(next(line for line in out.splitlines() if line.startswith("since")).split()[1])
    assert time.time() - since < WITHIN
    assert "heartbeat" in errors or "disconnected" in errors or "Connection" in errors, errors
    state, extra = restored.sharded_load(tmp_path, mesh=meshes.mesh(4))
    assert extra["turn"] == -1
    assert int(sharded.size(state)) == 3 * 2 * meshes.ENVS


@pytest.mark.parametrize("at", [0, 1, 3])
def test_a_process_that_dies_in_a_save_leaves_the_one_before(tmp_path, at):
    processes = start("killed_in_save", tmp_path, at, devices=2, FBUF_HEARTBEAT=str(HEARTBEAT))
    (_, _, status), (_, _, killed) = ended(processes)
    assert killed == -signal.SIGKILL
    assert status not in (0, None)
    state, extra = restored.sharded_load(tmp_path, mesh=meshes.mesh(2))
    assert extra["turn"] == 0
    assert int(sharded.size(state)) == 3 * 2 * meshes.ENVS
    state = sharded.save(tmp_path, state, extra={"turn": 5})  # and the next one is whole
    assert restored.sharded_load(tmp_path, mesh=meshes.mesh(1)).extra["turn"] == 5


def test_a_full_disk_of_one_process_is_told_to_the_other(tmp_path):
    first, second = results(start("disk_full", tmp_path, devices=2))
    assert "another process has failed" in first["message"]
    assert "No space left" in second["message"]
    assert first["turn"] == second["turn"] == 0
    assert restored.sharded_load(tmp_path, mesh=meshes.mesh(4)).extra["turn"] == 2


def test_a_file_that_one_process_cannot_read_is_read_by_none(tmp_path):
    """The other one could read all of its own, and both go back to the checkpoint before."""
    first, second = results(start("damaged", tmp_path, devices=2))
    assert "another process cannot read checkpoint 2" in first["message"]
    assert "rows-00000002.npy is damaged" in second["message"]
    for found in (first, second):
        assert found["turn"] == 0
        assert found["size"] == 4 * 2 * meshes.ENVS
