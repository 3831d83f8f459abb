"""What is wrong with a data set is said before anything is added, with what to do."""

import io
import re
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest
from episodes import episodes, flat
from fbuf_adapters.datasets import DatasetError, from_arrays, from_d4rl, from_npz, to_npz
from fbuf_adapters.host import HostStore

import fbuf

ITEM = {"observation": jnp.zeros(3), "action": jnp.int32(0), "reward": 0.0}
CASTS = {"reward": "float32", "action": "int32"}
ROWS, TERMINATED, TRUNCATED, LATER = flat(episodes([3, 4, 5]))
GOOD = {
    "arrays": ROWS,
    "terminated": TERMINATED,
    "truncated": TRUNCATED,
    "next_observation": LATER,
    "casts": CASTS,
}


def into(capacity=12, item=ITEM, **options):
    return lambda: fbuf.init(item, capacity, **options)


def rows(**changes):
    return {"arrays": {**ROWS, **changes}}


def at(array, row, value):
    changed = np.array(array, np.float64 if value != value else array.dtype)
    changed[row] = value
    return changed


NONE = {"into": None}
REFUSED = {
    "casts not stated": (
        {"casts": {}},
        "from_arrays: action is int64, and the buffer stores int32; reward is float64, and the "
        "buffer stores float32; if it may be cast, give casts={'action': 'int32', 'reward': "
        "'float32'}",
    ),
    "one cast not stated, in a new buffer": (
        {**NONE, "casts": {"action": "int32"}},
        "from_arrays: reward is float64, which a new buffer cannot store; if it may be cast, give "
        "casts={'action': 'int32', 'reward': 'float32'}",
    ),
    "a cast of no field": (
        {"casts": {**CASTS, "rewards": "float32"}},
        "from_arrays: casts has 'rewards', which no field is called; there are action, "
        "observation, reward",
    ),
    "a cast to something else": (
        {"casts": {**CASTS, "reward": "int32"}},
        "from_arrays: reward is float64, which cannot be cast to int32 without another meaning; "
        "convert it yourself and use from_arrays",
    ),
    "a cast that is not the buffer's": (
        {"casts": {**CASTS, "reward": "float16"}},
        "from_arrays: reward is float16, and the buffer stores float32; if it may be cast, give "
        "casts={'reward': 'float32', 'action': 'int32'}",
    ),
    "a field that is missing": (
        {"into": into(item={**ITEM, "log_prob": 0.0})},
        "from_arrays: the buffer has a field 'log_prob', which the data set lacks; it has action, "
        "observation, reward. Leave the field out of the item, or add it to the data and use "
        "from_arrays",
    ),
    "another shape": (
        {"into": into(item={**ITEM, "observation": jnp.zeros(2)})},
        "from_arrays: observation has shape (3,) in the data set, and (2,) in the buffer; make the "
        "buffer for such rows",
    ),
    "strings": (
        {**NONE, **rows(name=np.array(["a"] * 12))},
        "from_arrays: name is <U1, which cannot be stored; leave it out",
    ),
    "another length": (
        rows(action=ROWS["action"][:-1]),
        "from_arrays: action has 11 rows, and terminated has 12",
    ),
    "next observations of another length": (
        {"next_observation": LATER[1:]},
        "from_arrays: next_observation has 11 rows, and terminated has 12",
    ),
    "flags of another length": (
        {"truncated": TRUNCATED[1:]},
        "from_arrays: truncated has 11 rows, and terminated has 12",
    ),
    "no array": (
        rows(reward=1.0),
        "from_arrays: reward must be an array [rows, ...], got float",
    ),
    "a NaN flag": (
        {"terminated": at(TERMINATED, 7, np.nan)},
        "from_arrays: terminated must be 0 or 1, got nan in row 7; say where episodes end",
    ),
    "a flag of 2": (
        {"terminated": np.arange(12) // 4},
        "from_arrays: terminated must be 0 or 1, got 2 in row 8; say where episodes end",
    ),
    "a flag of strings": (
        {"terminated": np.array(["no"] * 12)},
        "from_arrays: terminated must be bools, or numbers 0 and 1",
    ),
    "flags with two axes": (
        {"terminated": TERMINATED[:, None]},
        "from_arrays: terminated must be one flag a row, [rows], got shape (12, 1)",
    ),
    "no rows": (
        {
            "arrays": {name: leaf[:0] for name, leaf in ROWS.items()},
            **{"terminated": TERMINATED[:0], "truncated": None, "next_observation": None},
        },
        "from_arrays: the data set has no rows",
    ),
    "too small": (
        {"into": into(11)},
        "from_arrays: the data set has 12 rows, and the buffer has room for 11; make it with "
        "capacity=12, or more",
    ),
    "too few ends": (
        {"into": into(100, next_of="observation", max_ends=2)},
        "from_arrays: the data set has 3 episodes, and the buffer keeps 2 last observations; make "
        "it with max_ends=3, or more",
    ),
    "full of unread rows": (
        {"into": lambda: fbuf.add(into(15, sampler=fbuf.Fifo())(), _stored(4))},
        "from_arrays: the data set has 12 rows, and the buffer has room for 11; make it with "
        "capacity=12, or more",
    ),
    "environments": (
        {"into": into(num_envs=2)},
        "from_arrays: the buffer has 2 environments, and a data set is one episode after another; "
        "make the buffer without num_envs",
    ),
    "dummies": (
        {"into": into(autoreset="next_step")},
        "from_arrays: the buffer was made with autoreset='next_step', so it would take the first "
        "row of each episode for a dummy; make it with autoreset='same_step'",
    ),
    "the sampler of a buffer that is there": (
        {"sampler": fbuf.Uniform()},
        "from_arrays: sampler is for a new buffer; leave it out, or give it to fbuf.init",
    ),
    "rows in no order": (
        {
            **rows(observation=ROWS["observation"][::-1].copy()),
            **{"next_observation": LATER[::-1].copy(), "into": into(next_of="observation")},
        },
        "from_arrays: episode 0, row 0 of the data set: its next observation is not the "
        "observation of the following row, though no episode ends there. Say where episodes end; "
        "or, if the rows are in no order, give the item a field 'next_observation' in place of "
        "next_of",
    ),
    "a field of what nobody knows": (
        {"next_observation": None, "into": into(item={**ITEM, "next_observation": jnp.zeros(3)})},
        "from_arrays: the data set lacks the last observation of 3 of 3 episodes, so "
        "'next_observation' cannot be a field of all rows; leave it out of the item, and make the "
        "buffer with next_of='observation', which masks those",
    ),
    "a store with environments": (
        {"into": lambda: HostStore(ITEM, 100, num_envs=2)},
        "from_arrays: the buffer has 2 environments, and a data set is one episode after another; "
        "make the buffer without num_envs",
    ),
    "a store without room for the ends": (
        {"into": lambda: HostStore(ITEM, 100, next_of="observation", max_ends=2)},
        "from_arrays: the data set has 3 episodes, and the buffer keeps 2 last observations; make "
        "it with max_ends=3, or more",
    ),
}


def _stored(count):
    return {
        "observation": jnp.zeros((count, 3)),
        "action": jnp.zeros(count, jnp.int32),
        "reward": jnp.zeros(count),
    }


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_said(name):
    changes, message = REFUSED[name]
    given = {**GOOD, **changes}
    make = given.pop("into", into())
    buffer = None if make is None else make()
    with pytest.raises(DatasetError) as raised:
        from_arrays(given.pop("arrays"), buffer, **given)
    assert str(raised.value) == message
    assert not hasattr(raised.value, "__notes__")  # nothing was added
    if isinstance(buffer, fbuf.State):
        int(fbuf.size(buffer))  # and nothing consumed


def test_what_is_no_buffer():
    with pytest.raises(TypeError, match=r"into must be a fbuf.State or a HostStore, got dict"):
        from_arrays(GOOD["arrays"], {}, terminated=TERMINATED)


def test_a_consumed_buffer():
    state = into()()
    fbuf.clear(state)
    with pytest.raises(RuntimeError, match="consumed"):
        from_arrays(ROWS, state, terminated=TERMINATED, casts=CASTS)


# Files.


def hdf5(path, leave_out=(), **changes):
    h5py = pytest.importorskip("h5py")
    arrays = {
        **{f"{name}s": leaf for name, leaf in ROWS.items()},
        **{"terminals": TERMINATED, "timeouts": TRUNCATED, "next_observations": LATER},
        **changes,
    }
    with h5py.File(path, "w") as file:
        for name, leaf in arrays.items():
            if name not in leave_out:
                file[name] = leaf
    return path


D4RL = {
    "no actions": (
        {"leave_out": ["actions"]},
        {},
        "from_d4rl: the file has no 'actions'; it has next_observations, observations, rewards, "
        "terminals, timeouts",
    ),
    "no terminals": (
        {"leave_out": ["terminals"]},
        {},
        "from_d4rl: the file has no 'terminals'; it has actions, next_observations, observations, "
        "rewards, timeouts",
    ),
    "NaN": (
        {"timeouts": at(TRUNCATED, 3, np.nan)},
        {},
        "from_d4rl: timeouts must be 0 or 1, got nan in row 3; say where episodes end",
    ),
    "another length": (
        {"rewards": ROWS["reward"][1:]},
        {},
        "from_d4rl: rewards has 11 rows, and terminals has 12",
    ),
    "no info": (
        {},
        {"infos": ["qpos"]},
        "from_d4rl: the file has no 'infos/qpos'; it has actions, next_observations, observations, "
        "rewards, terminals, timeouts",
    ),
    "an info of the name of a field": (
        {},
        {"infos": ["reward"]},
        "from_d4rl: infos has 'reward', which is a field already",
    ),
    "timeouts and a limit": (
        {},
        {"max_episode_steps": 5},
        "from_d4rl: the file has timeouts, so it says itself where episodes are truncated; leave "
        "max_episode_steps out",
    ),
}


@pytest.mark.parametrize("name", D4RL)
def test_hdf5_files(tmp_path, name):
    changes, options, message = D4RL[name]
    path = hdf5(tmp_path / "x.hdf5", **changes)
    with pytest.raises(DatasetError) as raised:
        from_d4rl(path, casts=CASTS, **options)
    assert str(raised.value) == message


def test_an_hdf5_file_that_is_cut_off(tmp_path):
    path = hdf5(tmp_path / "x.hdf5")
    path.write_bytes(path.read_bytes()[:-100])
    begin = f"from_d4rl: {str(path)!r} cannot be read: it is cut off, damaged, or no HDF5 ("
    with pytest.raises(DatasetError, match=f"^{re.escape(begin)}.*truncated"):
        from_d4rl(path, casts=CASTS)
    path.write_bytes(b"no HDF5 at all")
    with pytest.raises(DatasetError, match=f"^{re.escape(begin)}"):
        from_d4rl(path, casts=CASTS)
    with pytest.raises(FileNotFoundError, match="from_d4rl: there is no file"):
        from_d4rl(tmp_path / "y.hdf5")


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


WHOLE = npz(x=np.arange(5000, dtype=np.float32), terminated=np.zeros(5000, bool))
LONGER = io.BytesIO(WHOLE)
with zipfile.ZipFile(LONGER, "a") as file:
    header = io.BytesIO()
    np.save(header, np.zeros(5000, np.float32))
    file.writestr("y.npy", header.getvalue() + b"0")
FLIPPED = bytearray(WHOLE)
FLIPPED[9000] ^= 1
NPZ = {
    "cut off": (WHOLE[:-9000], "it is cut off, damaged, or no npz (File is not a zip file)"),
    "a flipped byte": (bytes(FLIPPED), "it is cut off, damaged, or no npz (Bad CRC-32"),
    "longer than it says": (LONGER.getvalue(), "no npz (y is longer than its header says)"),
    "objects": (
        npz(x=np.array([{}, None]), terminated=np.zeros(2, bool)),
        "no npz (x holds objects of Python, which are not read)",
    ),
    "columns": (
        npz(x=np.asfortranarray(np.zeros((2, 3))), terminated=np.zeros(2, bool)),
        "no npz (x is stored column by column; save a numpy.ascontiguousarray)",
    ),
    "no ends": (
        npz(x=np.zeros(2)),
        "from_npz: the file has no 'terminated', which says where episodes end; it has x",
    ),
    "another length": (
        npz(x=np.zeros(2, np.float32), terminated=np.zeros(3, bool)),
        "from_npz: x has 2 rows, and terminated has 3",
    ),
}


@pytest.mark.parametrize("name", NPZ)
def test_npz_files(tmp_path, name):
    content, message = NPZ[name]
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(DatasetError, match=re.escape(message)):
        from_npz(tmp_path / "x.npz")


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (into(), "to_npz: the buffer holds no rows"),
        (
            lambda: fbuf.add(fbuf.init(jnp.zeros(()), 3), jnp.zeros(2)),
            "to_npz: the item is a ShapeDtypeStruct, and the arrays of a file have names; make the "
            "item a dict",
        ),
    ],
)
def test_what_cannot_be_written(tmp_path, state, message):
    with pytest.raises(DatasetError) as raised:
        to_npz(state(), tmp_path / "x.npz")
    assert str(raised.value) == message
    with pytest.raises(
        TypeError, match=r"to_npz: state must be a fbuf.State or a HostStore, got dict"
    ):
        to_npz({}, tmp_path / "x.npz")
