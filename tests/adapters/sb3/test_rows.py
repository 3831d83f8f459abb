"""The arrays of a buffer, which read what is asked for, beside those of Stable-Baselines3."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
import torch
from fbuf_adapters.sb3 import ReplayBuffer
from fbuf_adapters.sb3._rows import places_of
from gymnasium import spaces
from test_sb3 import FLOATS, SPACES, Run, filled
from test_sb3 import both as both_empty

NAMES = "observations", "next_observations", "actions", "rewards", "dones"
INDEX = {
    "int": 3,
    "negative": -2,
    "numpy int": np.int64(4),
    "pair": (3, 1),
    "slice": slice(2, 9),
    "stepped": slice(None, None, -3),
    "empty": slice(5, 5),
    "all": slice(None),
    "dots": ...,
    "nothing": (),
    "env": (slice(None), 1),
    "list": [3, 1, 3],
    "array": np.array([[0, -1], [5, 2]]),
    "no rows": np.zeros(0, int),
    "arrays": (np.arange(6), np.arange(6) % 2),
    "array and int": (np.arange(6), 0),
    "outer": (np.arange(3)[:, None], np.arange(2)),
    "array of envs": (slice(1, 4), np.array([1, 0, 1])),
    "bools": np.arange(20) % 3 == 0,
    "mask": np.arange(40).reshape(20, 2) % 3 == 0,
    "new axis": (None, 2),
    "tensor": torch.tensor([1, 4]),
    "uint8": np.array([1, 4], np.uint8),
}
WIDE = {
    "last": (..., 0),
    "whole row": (np.arange(6), np.arange(6) % 2, slice(None)),
    "number": (np.arange(6), 1, 2),
    "number of arrays": (np.arange(6), np.arange(6) % 2, 1),
    "arrays apart": (np.arange(2), slice(None), np.array([2, 0])),
    "env and number": (slice(None), np.array([1, 0]), 2),
    "part": (4, slice(None), slice(1, 3)),
}


@pytest.fixture(scope="module")
def both():
    """Around the end of the ring, with ends of episodes."""
    made = both_empty(FLOATS, 2)
    for _, step in zip(range(33), Run(FLOATS, 2, resets=False), strict=False):
        for buffer in made:
            buffer.add(*copy.deepcopy(step))
    return made


@pytest.mark.parametrize("name", [*INDEX, *WIDE])
def test_any_index_reads_as_numpy_indexes(both, name):
    index = (INDEX | WIDE)[name]
    for field in NAMES if name in INDEX else NAMES[:2]:
        mine, theirs = (getattr(buffer, field) for buffer in both)
        found, wanted = mine[index], theirs[index]
        np.testing.assert_array_equal(found, wanted)
        assert (np.shape(found), found.dtype) == (np.shape(wanted), wanted.dtype)
        assert type(found) is type(wanted)
        if np.size(found) and isinstance(found, np.ndarray):  # a view in theirs is read-only
            assert found.flags.writeable == (not np.may_share_memory(wanted, theirs))


def test_random_indices(both):
    rng = np.random.default_rng(0)
    theirs = both[1].observations
    part = [
        lambda n: int(rng.integers(-n, n)),
        lambda n: slice(*sorted(rng.integers(-n, n + 1, 2).tolist())),
        lambda n: rng.integers(-n, n, rng.integers(1, 4)),
        lambda n: rng.integers(-n, n, (2, 1)),
        lambda n: ...,
    ]
    found = 0
    for _ in range(300):
        index = tuple(rng.choice(part)(n) for n in theirs.shape[: rng.integers(1, 4)])
        try:
            wanted = theirs[index]
        except (IndexError, ValueError) as error:
            with pytest.raises(type(error)):
                both[0].observations[index]
            continue
        np.testing.assert_array_equal(both[0].observations[index], wanted)
        found += places_of(index, theirs.shape) is not None
    assert found > 100


def test_arrays_apart_in_a_matrix_have_their_axes_first():
    """NumPy moves the axes of an array and of an int to the front if a slice is between them."""
    space = spaces.Box(-9, 9, (2, 3))
    buffer = ReplayBuffer(6, space, spaces.Discrete(2), "cpu", n_envs=2)
    none = np.zeros(2, int)
    for number in range(4):
        seen = np.arange(12, dtype=np.float32).reshape(2, 2, 3) / 12 + number
        buffer.add(seen, seen, none, none, none, [{}, {}])
    every = np.array(buffer.observations[:])
    for index in ((slice(None), np.array([0, 1]), slice(None), 0), (slice(3), [1], slice(None), 2)):
        found = buffer.observations[index]
        assert found.shape == every[index].shape
        np.testing.assert_array_equal(found, every[index])


@pytest.mark.parametrize("index", [20, (0, 2), -21, [20], 1.5, "a", (0, 0, 0), [True]])
def test_wrong_indices(both, index):
    """As NumPy says it."""
    for buffer in both:
        with pytest.raises(IndexError):
            buffer.rewards[index]


def test_rows_that_were_not_written_are_0():
    ours, theirs = filled(SPACES["dict"], 3, 5)
    for name in ("a", "b", "c"):
        np.testing.assert_array_equal(ours.observations[name], theirs.observations[name])
        np.testing.assert_array_equal(
            ours.next_observations[name][3:8], theirs.next_observations[name][3:8]
        )
    assert ours.rewards[9].tolist() == [0, 0, 0]
    empty = ReplayBuffer(8, FLOATS, FLOATS)
    assert not np.asarray(empty.rewards).any()


def test_only_the_rows_of_an_index_are_read(both, monkeypatch):
    rewards, read = both[0].rewards, []
    source = type(rewards.source)
    plain = source.read
    monkeypatch.setattr(source, "read", lambda s, *x: (read.append(len(x[0])), plain(s, *x))[1])
    for index, count in ((3, 2), ((3, 1), 1), (slice(2, 5), 6), ((np.arange(4), 0), 4)):
        rewards[index]
        assert read.pop() == count
    assert (rewards.shape, rewards.ndim, len(rewards), rewards.size) == ((20, 2), 2, 20, 40)
    assert rewards.nbytes == both[1].rewards.nbytes
    assert not read


def test_arithmetic_and_methods_are_those_of_an_array(both):
    ours, theirs = both
    for use in (
        lambda b: b.rewards * 2 + 1,
        lambda b: 1 - b.dones,
        lambda b: b.rewards > b.rewards.mean(),
        lambda b: -b.rewards,
        lambda b: np.mean(b.observations, axis=(0, 1)),
        lambda b: np.concatenate([b.rewards, b.rewards]),
        lambda b: np.zeros_like(b.dones),
        lambda b: b.rewards.reshape(-1, 1),
        lambda b: b.rewards.astype(np.float64).sum(),
        lambda b: np.stack(list(b.rewards)),
        lambda b: b.swap_and_flatten(b.observations),
        lambda b: b.to_torch(b.rewards),
        lambda b: torch.as_tensor(b.observations),
        lambda b: np.array(b.rewards, np.float64),
        lambda b: copy.deepcopy(b.rewards),
        lambda b: pickle.loads(pickle.dumps(b.rewards)),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # torch asks for one array
            warnings.simplefilter("ignore", DeprecationWarning)
            found, wanted = use(ours), use(theirs)
        assert type(found) is type(wanted)
        np.testing.assert_array_equal(found, wanted)
    assert ours.rewards[3, 1] in ours.rewards
    assert repr(ours.rewards) == repr(theirs.rewards)
    assert set(dict(filled(SPACES["dict"], 1, 3)[0].observations)) == {"a", "b", "c"}
    with pytest.raises(ValueError, match="truth value"):
        bool(ours.rewards)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ours.rewards.nothing  # noqa: B018


def test_what_would_write_to_rows_is_refused(both):
    ours, text = both[0], "cannot be changed, because stored rows do not change"

    def times(name):
        rows = getattr(ours, name)
        rows *= 2

    for write in (
        lambda: ours.rewards.__setitem__(3, 1.0),
        lambda: ours.observations.__setitem__(slice(0, 3), np.zeros((3, 2, 3))),
        lambda: ours.timeouts.__setitem__(ours.pos - 1, True),
        lambda: ours.dones.__setitem__(ours.pos, 1 - ours.dones[ours.pos]),
        lambda: ours.rewards.fill(0),
        lambda: ours.rewards.sort(),
        lambda: np.add(1, 2, out=ours.rewards),
        lambda: np.add.at(ours.rewards, 0, 1),
        lambda: times("rewards"),
        lambda: filled(SPACES["dict"], 1, 3)[0].observations.__setitem__("a", 0),
        lambda: filled(SPACES["dict"], 1, 3)[0].observations.update(a=0),
    ):
        with pytest.raises(ValueError, match=text):
            write()
    for write in (
        lambda: ours.rewards[3].__setitem__(0, 1),
        lambda: np.asarray(ours.rewards).__setitem__(0, 1),
    ):
        with pytest.raises(ValueError, match="read-only"):
            write()
    rewards = ours.rewards[np.arange(3), 0]
    rewards += 1  # a copy in theirs, too


def test_stacks_of_frames_are_read_by_index():
    frames = SPACES["uint8"]
    ours, theirs = filled(frames, 1, 30)
    np.testing.assert_array_equal(ours.observations[3:5], theirs.observations[3:5])
    np.testing.assert_array_equal(ours.next_observations[-1], theirs.next_observations[-1])
