"""Faults of a data set are named before anything is added, with what to do."""

import io
import re
import types
import warnings
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fbuf_adapters.datasets import DatasetError, from_arrays, from_d4rl, from_npz, to_npz
from support.episodes import episodes, flat

import fbuf
from fbuf.host import HostStore

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


class Tensor:
    """As far as anyone looks, a torch tensor."""

    shape = (12,)


Tensor.__module__ = "torch"
TENSOR = Tensor()
NONE = {"into": None}
NEXT = {"into": into(next_of="observation")}
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
    "a cast to no dtype": (
        {"casts": {**CASTS, "reward": "flaot32"}},
        "from_arrays: casts has 'flaot32' for 'reward', which is no dtype; write it as in "
        "{'reward': 'float32'}",
    ),
    "a cast to nothing": (
        {"casts": {**CASTS, "reward": None}},
        "from_arrays: casts has None for 'reward', which is no dtype; write it as in "
        "{'reward': 'float32'}",
    ),
    "an integer between two floats": (
        {**rows(reward=at(np.zeros(12, np.int64), 5, 2**24 + 1)), "next_observation": None},
        "from_arrays: episode 1, row 5 of the data set: reward holds 16777217, which float32 "
        "cannot hold exactly",
    ),
    "the largest integer": (
        {**rows(reward=at(np.zeros(12, np.uint64), 3, 2**64 - 1)), "next_observation": None},
        "from_arrays: episode 1, row 3 of the data set: reward holds 18446744073709551615, which "
        "float32 cannot hold exactly",
    ),
    "an integer between two floats of 16 bits": (
        {
            **rows(reward=at(np.zeros(12, np.int16), 0, 2049)),
            **{"into": None, "casts": {**CASTS, "reward": "float16"}, "next_observation": None},
        },
        "from_arrays: episode 0, row 0 of the data set: reward holds 2049, which float16 cannot "
        "hold exactly",
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
    "a tensor": (
        rows(reward=TENSOR),
        "from_arrays: reward is a torch tensor; give reward.numpy(force=True)",
    ),
    "flags in a tensor": (
        {"terminated": TENSOR},
        "from_arrays: terminated is a torch tensor; give terminated.numpy(force=True)",
    ),
    "masked rows": (
        rows(reward=np.ma.masked_array(ROWS["reward"], TERMINATED)),
        "from_arrays: reward is a masked array, whose mask would be lost; leave the masked rows "
        "out, and give .data of the rest",
    ),
    "masked flags": (
        {"truncated": np.ma.masked_array(TRUNCATED, TERMINATED)},
        "from_arrays: truncated is a masked array, whose mask would be lost; leave the masked rows "
        "out, and give .data of the rest",
    ),
    "an array of another kind": (
        rows(reward=types.SimpleNamespace(shape=(12,), dtype="float32", __getitem__=None)),
        "from_arrays: reward must be an array [rows, ...], got SimpleNamespace",
    ),
    "two fields of one name": (
        {**NONE, **rows(**{"a.b": ROWS["reward"], "a": {"b": ROWS["reward"]}})},
        "two fields are called 'a.b': {'a.b': x} has the same name as {'a': {'b': x}}; call one of "
        "them something else",
    ),
    "next observations that nothing takes": (
        {},
        "from_arrays: next_observation is given, and the buffer has no place for it; give "
        "next_of='observation', or the item a field 'next_observation', or leave it out",
    ),
    "next observations given twice": (
        rows(next_observation=LATER),
        "from_arrays: next_observation is given, and arrays have a field 'next_observation'; leave "
        "one of them out",
    ),
    "next observations of a shape that would be broadcast": (
        {**NEXT, "next_observation": LATER[:, :1]},
        "from_arrays: next_observation has shape (1,) in each row, and observation has (3,); they "
        "must be alike",
    ),
    "next observations of another shape": (
        {**NONE, "next_of": "observation", "next_observation": np.zeros((12, 4), np.float32)},
        "from_arrays: next_observation has shape (4,) in each row, and observation has (3,); they "
        "must be alike",
    ),
    "next observations of another shape, for a field": (
        {
            "into": into(item={**ITEM, "next_observation": jnp.zeros(3)}),
            "next_observation": LATER[:, :1],
        },
        "from_arrays: next_observation has shape (1,) in each row, and observation has (3,); they "
        "must be alike",
    ),
    "next observations of other parts": (
        {**NEXT, "next_observation": {"camera": LATER}},
        "from_arrays: next_observation must have the same parts as observation, which has "
        "observation; it has next_observation.camera",
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
        {"terminated": np.stack([TERMINATED] * 2, 1)},
        "from_arrays: terminated must be one flag a row, [rows], got shape (12, 2)",
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
        "leave into out, with the same next_of, and add what you get: state = fbuf.extend(state, "
        "loaded) deals the episodes out to the environments",
    ),
    "dummies": (
        {"into": into(autoreset="next_step")},
        "from_arrays: the buffer was made with autoreset='next_step', so it would take the first "
        "row of each episode for a dummy; "
        "leave into out, with the same next_of, and add what you get: state = fbuf.extend(state, "
        "loaded) deals the episodes out to the environments",
    ),
    "the sampler of a buffer that is there": (
        {"sampler": fbuf.Uniform()},
        "from_arrays: sampler is for a new buffer; leave it out, or give it to fbuf.init",
    ),
    "a field of what nobody knows": (
        {"next_observation": None, "into": into(item={**ITEM, "next_observation": jnp.zeros(3)})},
        "from_arrays: the data set lacks the last observation of 2 of 3 episodes, so "
        "'next_observation' cannot be a field of all rows; leave it out of the item, and make the "
        "buffer with next_of='observation', which masks those",
    ),
    "a store with environments": (
        {"into": lambda: HostStore(ITEM, 100, num_envs=2)},
        "from_arrays: the buffer has 2 environments, and a data set is one episode after another; "
        "make the store without num_envs, and with autoreset='same_step'",
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


def test_more_ends_than_the_caller_knows_of():
    """Rows in no order have as many episodes as there are rows."""
    order = np.arange(12)[::-1]
    fields = {**ROWS, "observation": ROWS["observation"][order]}
    given = {**GOOD, "arrays": fields, "next_observation": LATER[order]}
    with pytest.raises(
        DatasetError, match=r"has 12 episodes, .* make it with max_ends=12"
    ) as raised:
        from_arrays(given.pop("arrays"), into(next_of="observation")(), **given)
    assert re.search(
        r"in 9 places, after rows 0, 1, 3, \.\.\., .* in no order", raised.value.__notes__[0]
    )


def test_casts_are_a_dict():
    with pytest.raises(
        TypeError,
        match=r"^from_arrays: casts must be a dict, such as {'reward': 'float32'}, got 'float32'$",
    ):
        from_arrays(ROWS, terminated=TERMINATED, casts="float32")


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
    "next observations that would be broadcast": (
        {"next_observations": LATER[:, :1]},
        {"next_of": "observation"},
        "from_d4rl: next_observations has shape (1,) in each row, and observations has (3,); they "
        "must be alike",
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


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_episode_steps": 0}, ValueError, "max_episode_steps must be from 1 to .*, got 0"),
        ({"max_episode_steps": -1}, ValueError, "max_episode_steps must be from 1 to .*, got -1"),
        ({"max_episode_steps": True}, TypeError, "max_episode_steps must be an int, got True"),
        ({"infos": "qpos"}, TypeError, r"infos must be a list of names, .*, got 'qpos'"),
        ({"infos": 3}, TypeError, r"infos must be a list of names, .*, got 3"),
    ],
)
def test_arguments_of_hdf5_files(tmp_path, options, error, message):
    path = hdf5(tmp_path / "x.hdf5", leave_out=["timeouts"])
    with pytest.raises(error, match=f"from_d4rl: {message}"):
        from_d4rl(path, casts=CASTS, **options)


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


WHOLE = npz(
    x=np.arange(5000, dtype=np.float32),
    terminated=np.arange(5000) % 100 == 99,
    truncated=np.zeros(5000, bool),
)
LONGER = io.BytesIO(WHOLE)
with zipfile.ZipFile(LONGER, "a") as file:
    header = io.BytesIO()
    np.save(header, np.zeros(5000, np.float32))
    file.writestr("y.npy", header.getvalue() + b"0")
TWICE = io.BytesIO(WHOLE)
with zipfile.ZipFile(TWICE, "a") as file, warnings.catch_warnings(action="ignore"):
    file.writestr("terminated.npy", header.getvalue())
FLIPPED = bytearray(WHOLE)
FLIPPED[9000] ^= 1
LAST = {"last_observation": np.zeros(1)}
NPZ = {
    "cut off": (WHOLE[:-9000], "it is cut off, damaged, or no npz (File is not a zip file)"),
    "a flipped byte": (bytes(FLIPPED), "it is cut off, damaged, or no npz (x: Bad CRC-32"),
    "longer than it says": (
        LONGER.getvalue(),
        "no npz (y: it has 20001 bytes, and 20000 by its header)",
    ),
    "objects": (
        npz(x=np.array([{}, None]), terminated=np.zeros(2, bool)),
        "no npz (x: it holds objects of Python, which are not read)",
    ),
    "two arrays of one name": (
        TWICE.getvalue(),
        "from_npz: the file has two arrays 'terminated', and only one of them can be read; write "
        "it again with two names",
    ),
    "an array with parts": (
        npz(**{"a.b": np.zeros(2, np.float32), "a": np.zeros(2)}, terminated=np.ones(2)),
        "'a.b' would be a part of 'a', which is an array itself; call one of them something else",
    ),
    "dtypes of no kind": (
        npz(x=np.zeros(2, "V2"), terminated=np.ones(2), dtypes=np.array(["x=bfloat61"])),
        "no npz (dtypes: data type 'bfloat61' not understood)",
    ),
    "last observations of no row": (
        npz(x=np.zeros(2), terminated=np.ones(2), **LAST, last_observation_row=np.array([2])),
        "no npz (last_observation_row must be from 0 to 1)",
    ),
    "last observations of too many rows": (
        npz(x=np.zeros(2), terminated=np.ones(2), **LAST, last_observation_row=np.array([0, 1])),
        "no npz (last_observation_row must be an int for each entry of last_observation)",
    ),
    "no ends": (
        npz(x=np.zeros(2)),
        "from_npz: the file has no 'terminated', which says where episodes end; it has x; "
        "rename its arrays: observation, action, reward, next_observation, terminated, truncated; "
        "or from_arrays(renamed, terminated=...)",
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


def test_last_observations_of_another_field(tmp_path):
    last = {"last_observation": np.zeros((1, 2)), "last_observation_row": np.array([1])}
    fields = {"x": np.zeros((2, 2), np.float32), "y": np.zeros(2, np.float32)}
    np.savez(tmp_path / "x.npz", **last, **fields, terminated=np.arange(2) == 1)
    with pytest.raises(DatasetError) as raised:
        from_npz(tmp_path / "x.npz", next_of="y")
    assert str(raised.value) == (
        "from_npz: last_observation has shape (2,) in each row, and y has (); they must be alike"
    )
    last["last_observation_of"] = np.array(["x"])
    np.savez(tmp_path / "x.npz", **last, **fields, terminated=np.arange(2) == 1)
    with pytest.raises(DatasetError) as raised:
        from_npz(tmp_path / "x.npz", next_of="y")
    assert str(raised.value) == (
        "from_npz: the data set has the last values of 'x', and not of 'y'; give next_of='x'"
    )


def held(item):
    """A buffer that holds three such rows."""
    rows = jax.tree.map(lambda leaf: jnp.zeros((3, *jnp.shape(leaf))), item)
    return lambda: fbuf.add(fbuf.init(item, 3), rows)


FILES_OWN = "; call it something else in the item, or use fbuf.save, which keeps any names"


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (into(), "to_npz: the buffer holds no rows"),
        *(
            (
                held({"x": 0.0, name: 0.0}),
                f"to_npz: the item has a field {name!r}, and the file has an array of this name "
                f"for itself{FILES_OWN}",
            )
            for name in (
                "terminated",
                "truncated",
                "dtypes",
                "last_observation",
                "last_observation_row",
                "last_observation_of",
            )
        ),
        *(
            (
                held(tree),
                f"to_npz: the item has {name!r}, whose key {key!r} cannot be told from a place in "
                f"a tuple or in a dict of dicts{FILES_OWN}",
            )
            for tree, name, key in (
                ({"a.b": 0.0, "a": {"b": 0.0}}, "a.b", "a.b"),
                ({"x": {"0": 0.0, "1": 0.0}}, "x.0", "0"),
                ({"x": {0: 0.0, 1: 0.0}}, "x.0", 0),
            )
        ),
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


def test_an_npz_is_no_file_of_d4rl(tmp_path):
    np.savez(tmp_path / "data.npz", observations=np.zeros(3))
    with pytest.raises(DatasetError, match="looks like an npz file; use from_npz"):
        from_d4rl(tmp_path / "data.npz")
