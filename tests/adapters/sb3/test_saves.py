"""Buffers in files: a save that is killed leaves the file before it, or the new one."""

from __future__ import annotations

import os
import pathlib
import pickle
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from fbuf_adapters.sb3 import CheckpointCallback, HerReplayBuffer, PrioritizedDQN, ReplayBuffer
from stable_baselines3 import DQN
from test_her import Rewarding
from test_her import filled as filled_with_goals
from test_sb3 import FLOATS, Run, both, filled, keys, same

import fbuf
from fbuf.checkpoint import files

ROOT = pathlib.Path(__file__).parents[3]


class Kills:
    """The directory as a kill would leave it: after each write, sync and rename."""

    def __init__(self, folder, copies, monkeypatch):
        self.folder, self.copies, self.count = folder, copies, 0
        write = files.ChecksumFile.write

        def parts(file, data):
            view = memoryview(data).cast("B")
            for at in range(0, max(len(view), 1), max(len(view) // 12, 1)):
                write(file, view[at : at + max(len(view) // 12, 1)])
                file._file.flush()
                self.note()
            return len(view)

        monkeypatch.setattr(files.ChecksumFile, "write", parts)
        for name in ("fsync", "replace"):
            monkeypatch.setattr(os, name, self.noted(getattr(os, name)))

    def noted(self, call):
        def noting(*args, **options):
            self.note()
            done = call(*args, **options)
            self.note()
            return done

        return noting

    def note(self):
        shutil.copytree(self.folder, self.copies / str(self.count))
        self.count += 1


def rewards(path):
    buffer, _ = both(FLOATS, 1)
    buffer.load(path)
    return buffer.rewards.ravel().tolist()


def test_a_save_is_whole_or_not_there_at_every_moment(tmp_path, monkeypatch):
    folder = tmp_path / "saved"
    buffer, _ = filled(FLOATS, 1, 9)
    buffer.save(folder / "buffer.pkl")
    before = rewards(folder / "buffer.pkl")
    for step, _ in zip(Run(FLOATS, 1, seed=3), range(4), strict=False):
        buffer.add(*step)
    with monkeypatch.context() as patched:
        kills = Kills(folder, tmp_path / "copies", patched)
        buffer.save(folder / "buffer.pkl")
    after = rewards(folder / "buffer.pkl")
    found = [rewards(tmp_path / "copies" / str(n) / "buffer.pkl") for n in range(kills.count)]
    assert kills.count > 15
    assert found[0] == before != after == found[-1]
    assert all(rows in (before, after) for rows in found)
    assert os.listdir(folder) == ["buffer.pkl"]


def test_a_save_that_fails_leaves_the_file_before_it(tmp_path, monkeypatch):
    buffer, _ = filled(FLOATS, 1, 9)
    buffer.save(tmp_path / "buffer")
    before = rewards(tmp_path / "buffer")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files.ChecksumFile, "write", full)
        with pytest.raises(OSError, match="No space left"):
            buffer.save(tmp_path / "buffer")
    assert rewards(tmp_path / "buffer") == before
    assert os.listdir(tmp_path) == ["buffer.pkl"]
    buffer.add(*next(iter(Run(FLOATS, 1))))  # none waits for the save


def test_a_save_amid_a_save_is_refused(tmp_path, monkeypatch):
    buffer, _ = filled(FLOATS, 1, 9)
    write, refused = files.ChecksumFile.write, []

    def saving(file, data):
        with pytest.raises(RuntimeError, match="save is called in the midst of save") as error:
            buffer.save(tmp_path / "buffer")
        refused.append(error)
        return write(file, data)

    with monkeypatch.context() as patched:
        patched.setattr(files.ChecksumFile, "write", saving)
        buffer.save(tmp_path / "buffer")
    assert refused
    assert rewards(tmp_path / "buffer") == buffer.rewards.ravel().tolist()
    buffer.save(tmp_path / "buffer")


@pytest.mark.first(1)
@pytest.mark.parametrize("sampler", [fbuf.Uniform(), fbuf.Prioritized()], ids=["uniform", "per"])
def test_a_loaded_buffer_goes_on(tmp_path, sampler):
    """With the next batch, and within the episode; also from a file of Stable-Baselines3's save."""
    ours, theirs = filled(FLOATS, 2, 33, sampler=sampler)
    ours.save(tmp_path / "new" / "buffer.pkl")
    other, _ = both(FLOATS, 2, sampler=sampler)
    other.load(str(tmp_path / "new" / "buffer"))
    for _, step in zip(range(9), Run(FLOATS, 2, resets=False), strict=False):
        for buffer in (ours, other, theirs):
            buffer.add(*step)
    assert keys(tuple(ours.sample(16))[:5]) == keys(tuple(other.sample(16))[:5])
    same(np.asarray(other.next_observations), theirs.next_observations)


def test_goals_keep_their_environment(tmp_path):
    buffer = filled_with_goals(copy_info_dict=True)
    buffer.save(tmp_path / "buffer")
    other = HerReplayBuffer(
        32, buffer.observation_space, buffer.action_space, buffer.env, copy_info_dict=True
    )
    other.load(tmp_path / "buffer")
    calls = Rewarding.calls
    assert (other.sample(64).rewards.numpy() == buffer.sample(64).rewards.numpy()).all()
    assert Rewarding.calls == calls + 2


def test_what_cannot_be_loaded(tmp_path):
    buffer, _ = filled(FLOATS, 1, 9)
    before = buffer.rewards.ravel().tolist()
    with pytest.raises(FileNotFoundError):
        buffer.load(tmp_path / "nothing")
    buffer.save(tmp_path / "buffer.pkl")
    whole = (tmp_path / "buffer.pkl").read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        (tmp_path / "half.pkl").write_bytes(whole[:length])
        with pytest.raises(fbuf.CheckpointError, match="no whole pickle"):
            buffer.load(tmp_path / "half.pkl")
    for other, error, text in (
        (both(FLOATS, 1, size=41)[0], ValueError, "was made with"),
        (filled_with_goals(), TypeError, "has a ReplayBuffer, and this buffer is a HerReplay"),
    ):
        with pytest.raises(error, match=text):
            other.load(tmp_path / "buffer.pkl")
    assert buffer.rewards.ravel().tolist() == before


OPTIONS = {"buffer_size": 60, "learning_starts": 55, "device": "cpu", "seed": 0}


def test_checkpoints_of_a_run_are_whole(tmp_path, monkeypatch):
    """Where the file of the model is, that of its buffer is, too."""
    folder, copies = tmp_path / "saved", tmp_path / "copies"
    model = DQN("MlpPolicy", "CartPole-v1", replay_buffer_class=ReplayBuffer, **OPTIONS)
    callback = CheckpointCallback(20, str(folder), save_replay_buffer=True)
    with monkeypatch.context() as patched:
        callback.init_callback(model)
        kills = Kills(folder, copies, patched)
        model.learn(40, callback)
    assert kills.count > 40
    names = lambda path: sorted(x for x in os.listdir(path) if not x.endswith(".unfinished"))
    for steps in (20, 40):
        path = f"rl_model_replay_buffer_{steps}_steps.pkl"
        assert path in names(folder)
        model.load_replay_buffer(folder / path)
        assert model.replay_buffer.size() == steps - 1  # the newest step is added later
    loads = 0
    for number in range(kills.count):
        for name in names(copies / str(number)):
            file = copies / str(number) / name
            assert file.read_bytes() == (folder / name).read_bytes()
            if name.endswith(".zip"):
                loads += 1
                beside = name.replace("model", "model_replay_buffer").replace("zip", "pkl")
                assert file.with_name(beside).exists()
    assert loads > 2
    assert DQN.load(folder / "rl_model_40_steps.zip").num_timesteps == 40


def test_an_algorithm_with_priorities_saves_whole_files(tmp_path, monkeypatch):
    model = PrioritizedDQN("MlpPolicy", "CartPole-v1", **OPTIONS).learn(10)
    size = model.replay_buffer.size()
    model.save_replay_buffer(tmp_path / "buffer.pkl")
    with monkeypatch.context() as patched:
        kills = Kills(tmp_path, tmp_path.with_name("copies"), patched)
        model.save_replay_buffer(str(tmp_path / "buffer.pkl"))
    for number in range(kills.count):
        model.load_replay_buffer(tmp_path.with_name("copies") / str(number) / "buffer.pkl")
        assert model.replay_buffer.size() == size


@pytest.mark.sweep
def test_n_steps_of_an_algorithm_are_those_of_its_buffer(recwarn):
    """Also of a class that is given, and without a warning that they are ignored."""
    for more in ({"replay_buffer_class": ReplayBuffer}, {}):
        options = {"n_steps": 3, "gamma": 0.9, **more, **OPTIONS}
        model = PrioritizedDQN("MlpPolicy", "CartPole-v1", **options)
        assert (model.replay_buffer.n_steps, model.replay_buffer.gamma) == (3, 0.9)
    model.learn(60)
    batch = model.replay_buffer.sample(64)
    found = set(np.round(batch.discounts.ravel().tolist(), 5).tolist())
    assert 0.729 in found
    assert found <= {0.9, 0.81, 0.729}
    sums = {round(sum(0.9**n for n in range(steps)), 5) for steps in (1, 2, 3)}
    assert set(np.round(batch.rewards.ravel().tolist(), 5).tolist()) <= sums
    assert not [str(w.message) for w in recwarn if "n_steps" in str(w.message)]
    with pytest.raises(ValueError, match="n_steps is 3, and 2 in replay_buffer_kwargs"):
        PrioritizedDQN(
            "MlpPolicy", "CartPole-v1", n_steps=3, replay_buffer_kwargs={"n_steps": 2}, **OPTIONS
        )


SAVING = textwrap.dedent(
    """
    import sys, numpy as np
    sys.path[:0] = ["adapters", "."]
    from gymnasium import spaces
    from fbuf_adapters.sb3 import ReplayBuffer
    floats = spaces.Box(-1e9, 1e9, (200,), np.float32)
    buffer, number = ReplayBuffer(20_000, floats, floats, seed=0), 0
    row = np.zeros((1, 200), np.float32)
    while True:
        number += 1
        buffer.add(row + number, row, row, np.full(1, number), [False], [{}])
        buffer.save(sys.argv[1])
        print(number, flush=True)
    """
)


@pytest.mark.sweep
def test_killed_at_any_moment(tmp_path):
    rng, path = random.Random(0), tmp_path / "buffer.pkl"
    for _ in range(4):
        path.unlink(missing_ok=True)
        command = [sys.executable, "-c", SAVING, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(3)]
            time.sleep(rng.uniform(0, 0.3))
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.readlines()
        returned = int([line for line in lines if line.strip()][-1])
        buffer = pickle.loads(path.read_bytes())
        assert buffer.size() in (returned, returned + 1)
        assert buffer.rewards[: buffer.size(), 0].tolist() == list(range(1, buffer.size() + 1))
