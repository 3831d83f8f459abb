"""A data set comes into the buffer row by row, and out of the buffer again."""

import os
import signal
import subprocess
import sys
import tracemalloc
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fbuf_adapters import datasets
from fbuf_adapters.datasets import (
    DatasetError,
    _chunks,
    _loading,
    _target,
    from_arrays,
    from_d4rl,
    from_npz,
    to_npz,
)
from support.episodes import Episode, assert_holds, assert_same, episodes, flat

import fbuf
import fbuf.owner.owner
from fbuf.host import HostStore, row_arrays

CASTS = {"reward": "float32", "action": "int32"}
FORTY = [1 + (7 * n) % 40 for n in range(40)]
NEW = {"casts": CASTS, "next_of": "observation"}


def loaded(made, into=None, following=True, **options):
    fields, terminated, truncated, later = flat(made, following)
    flags = {"terminated": terminated, "truncated": truncated}
    options = options or (NEW if into is None else {"casts": CASTS})
    return from_arrays(fields, into, **flags, next_observation=later, **options)


def item(made, **more):
    row = lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)
    observation = jax.tree.map(row, made[0].observation)
    return {"observation": observation, "action": jnp.int32(0), "reward": 0.0, **more}


@pytest.fixture
def small_chunks(monkeypatch):
    """So that episodes go on from chunk to chunk."""
    monkeypatch.setattr(_chunks, "_MOST_ROWS", 16)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("kind", "following"),
    [
        ("dict", True),
        pytest.param("vector", False, marks=pytest.mark.sweep),
        pytest.param("vector", True, marks=pytest.mark.sweep),
        pytest.param("dict", False, marks=pytest.mark.sweep),
    ],
)
def test_every_row_is_in_the_buffer(kind, following, small_chunks, recwarn):
    made = episodes(FORTY, kind)
    state = loaded(made, following=following)
    assert_holds(state, made, unknown=() if following else range(40))
    # One counts the rows that terminated, and one those that were truncated.
    assert len(recwarn) == (0 if following else 2)


@pytest.mark.sweep
def test_one_program_adds_all_chunks(small_chunks, monkeypatch):
    sizes = []
    add = fbuf.add
    monkeypatch.setattr(
        fbuf.owner.owner,
        "add",
        lambda state, items, **given: (
            sizes.append(len(given["mask"])) or add(state, items, **given)
        ),
    )
    loaded(episodes([5, 40, 3]))
    assert sizes == [16, 16, 16]


@pytest.mark.sweep
def test_an_unknown_end_takes_nobodys_place(recwarn):
    made = episodes([3, 1, 4])
    state = loaded(made, following=False)
    more = episodes([2, 2])
    state = fbuf.resize(state, 100)
    assert_holds(state, made, unknown=range(3))
    fields, terminated, truncated, later = flat(more)
    fields = {
        **fields,
        "action": np.int32(fields["action"]),
        "reward": np.float32(fields["reward"]),
    }
    flags = {"terminated": terminated, "truncated": truncated}
    state = fbuf.add(state, fields, **flags, next_observation=later)
    assert_holds(state, [*made, *more], unknown=range(3))


@pytest.mark.sweep
def test_only_rows_that_are_added_are_marked(small_chunks, recwarn):
    before, made = episodes([1] * 20), episodes([1] * 17)
    state = loaded(before, fbuf.init(item(made), 20, next_of="observation", max_ends=20))
    state = loaded(made, state, following=False)  # the last three of before stay
    led = fbuf.rows(state, view=fbuf.Transition())
    truncated = ~np.asarray(led.terminated)
    truncated[:3] = False  # the next observations of before are known
    assert_same(led.mask, ~truncated)


@pytest.mark.sweep
def test_an_open_episode_is_ended_before():
    made = episodes([4, 2])
    state = fbuf.init(item(made), 50, next_of="observation")
    before = Episode(made[0].observation, made[0].action, made[0].reward, False)
    fields, _, _, later = flat([before])
    fields = {
        **fields,
        "action": np.int32(fields["action"]),
        "reward": np.float32(fields["reward"]),
    }
    state = fbuf.add(state, fields, next_observation=later)
    state = loaded(made, state)
    assert_holds(state, [before, *made])


@pytest.mark.sweep
def test_what_is_cut_at_the_end_of_the_data_is_truncated(recwarn):
    made = episodes([3, 5])
    fields, terminated, _, later = flat(made)
    state = from_arrays(fields, terminated=terminated, next_observation=later, **NEW)
    assert_holds(state, made)
    state = from_arrays(fields, terminated=terminated, **NEW)
    assert_holds(state, made, unknown=[0, 1])


@pytest.mark.sweep
def test_a_field_holds_the_next_observation():
    made = episodes([3, 1, 9])
    state = fbuf.init(item(made, next_observation=jnp.zeros(3)), 20)
    state = loaded(made, state)
    assert_same(fbuf.rows(state).data["next_observation"][-13:], flat(made)[3])


@pytest.mark.sweep
def test_float64_is_rounded_where_it_is_said():
    made = episodes([3, 4], "wide")
    item = {"observation": jnp.zeros(3), "next_observation": jnp.zeros(3)}
    state = fbuf.init(item, 20, next_of="observation")
    rows = fbuf.rows(loaded(made, state, casts={"observation": "float32"}), view=fbuf.Transition())
    fields, _, _, later = flat(made)
    assert_same(rows.data.item["observation"][-7:], np.float32(fields["observation"]))
    assert_same(rows.data.item["next_observation"][-7:], np.float32(later))
    assert_same(rows.data.next_observation[-7:], np.float32(later))


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("dtype", "largest"),
    [
        ("float32", 2**24),
        pytest.param("float16", 2**11, marks=pytest.mark.sweep),
        pytest.param("bfloat16", 2**8, marks=pytest.mark.sweep),
    ],
)
def test_integers_that_a_float_holds(dtype, largest):
    x = np.array([0, -1, largest, -largest, 2 * largest][: 4 if dtype == "float16" else 5])
    state = from_arrays({"x": x}, terminated=x == x, casts={"x": dtype})
    assert_same(fbuf.rows(state).data["x"], jnp.asarray(x, dtype))


@pytest.mark.sweep
def test_another_byte_order():
    made = episodes([3, 4])
    fields, terminated, truncated, later = flat(made)
    swapped = lambda leaf: leaf.astype(leaf.dtype.newbyteorder(">"))
    fields, later = jax.tree.map(swapped, (fields, later))
    flags = {"terminated": terminated, "truncated": swapped(truncated.astype(np.int32))}
    assert_holds(from_arrays(fields, **flags, next_observation=later, **NEW), made)


@pytest.mark.sweep
def test_fields_that_the_buffer_lacks_are_left_out():
    made = episodes([3, 2])
    wanted = {"reward": 0.0}
    casts = {"reward": "float32"}
    state = loaded(made, fbuf.init(wanted, 5), following=False, casts=casts)
    assert_same(fbuf.rows(state).data, {"reward": np.float32(flat(made)[0]["reward"])})


@pytest.mark.sweep
@pytest.mark.parametrize("following", [True, False])
def test_a_store_is_added_to_in_place(small_chunks, following, tmp_path, recwarn):
    made = episodes([5, 40, 1])
    store = HostStore(item(made), 60, next_of="observation", files=tmp_path / "rows")
    assert loaded(made, store, following=following) is store
    assert_holds(store, made, unknown=() if following else range(3))
    to_npz(store, tmp_path / "rows.npz")
    again = from_npz(tmp_path / "rows.npz", HostStore(item(made), 46, next_of="observation"))
    assert_holds(again, made, unknown=() if following else range(3))
    state = from_npz(tmp_path / "rows.npz", next_of="observation")
    assert_holds(state, made, unknown=() if following else range(3))


@pytest.mark.sweep
def test_the_sampler_is_that_of_the_caller():
    sampler = fbuf.Prioritized(window=3)
    assert loaded(episodes([5, 5]), None, False, sampler=sampler, casts=CASTS).sampler == sampler


@pytest.mark.sweep
def test_a_bar_shows_where_it_is(capsys, monkeypatch):
    made = episodes([5])
    monkeypatch.setattr(_loading, "tqdm", lambda delay, **bar: __import__("tqdm").tqdm(**bar))
    loaded(made, **NEW, progress=True)
    assert "from_arrays" in capsys.readouterr().err
    loaded(made, **NEW, progress=False)
    assert not capsys.readouterr().err


@pytest.mark.sweep
def test_a_file_is_never_in_memory_as_a_whole(tmp_path):
    h5py = pytest.importorskip("h5py")
    frames = np.zeros((20_000, 64, 64), np.uint8)  # 80 MB
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["observations"] = frames
        for name in ("actions", "rewards"):
            file[name] = np.zeros(20_000, np.float32)
        file["terminals"] = np.arange(20_000) % 100 == 99
    tracemalloc.start()
    try:
        state = from_d4rl(tmp_path / "x.hdf5", max_episode_steps=100)
        read = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        to_npz(state, tmp_path / "x.npz")
        written = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert read < frames.nbytes / 2
    assert written < frames.nbytes / 2


# A data set that raises in the middle.


class Interrupting:
    """An array of which some rows raise when they are read."""

    def __init__(self, array, row):
        self._array, self._row = array, row
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, part):
        if part.start <= self._row < part.stop:
            os.kill(os.getpid(), signal.SIGINT)
        return self._array[part]


@pytest.mark.sweep
def test_ctrl_c_leaves_whole_rows(small_chunks):
    made = episodes([10, 20, 30])
    fields, terminated, truncated, later = flat(made)
    fields["reward"] = Interrupting(fields["reward"], 50)
    state = fbuf.init(item(made), 100, next_of="observation")
    flags = {"terminated": terminated, "truncated": truncated}
    with pytest.raises(KeyboardInterrupt) as raised:
        from_arrays(fields, state, **flags, next_observation=later, casts=CASTS)
    assert raised.value.__notes__ == [
        "from_arrays: 32 of 60 rows were added before, 2 whole episodes and the beginning of one, "
        "which is now truncated; the attribute 'state' of this exception is the buffer with them"
    ]
    begun = made[2]
    there = Episode(begun.observation[:3], begun.action[:2], begun.reward[:2], False)
    assert_holds(raised.value.state, [*made[:2], there])


@pytest.mark.parametrize("kind", [fbuf.init, pytest.param(HostStore, marks=pytest.mark.sweep)])
def test_ctrl_c_within_an_add_has_it_end(kind, small_chunks, monkeypatch, recwarn):
    """Rows, flags, counts, and which next observations nobody knows: all of them or none."""
    made = episodes([10, 20, 30])
    into = kind(item(made), 100, next_of="observation")
    given, apply = _target._given, row_arrays.Rows.apply
    chunks, waiting = [], [kind]

    def noted(chunk):
        chunks.append(chunk)
        if len(chunks) == 2 and fbuf.init in waiting:
            waiting.remove(fbuf.init)
            signal.raise_signal(signal.SIGINT)
        return given(chunk)

    def interrupted(rows, *changes):  # in the middle of a change of the store's own
        if len(chunks) == 2 and HostStore in waiting:
            waiting.remove(HostStore)
            signal.raise_signal(signal.SIGINT)
        apply(rows, *changes)

    monkeypatch.setattr(_target, "_given", noted)
    monkeypatch.setattr(row_arrays.Rows, "apply", interrupted)
    with pytest.raises(KeyboardInterrupt) as raised:
        loaded(made, into, following=False)
    monkeypatch.undo()
    assert "32 of 60 rows were added before, 2 whole episodes" in raised.value.__notes__[0]
    begun = made[2]
    there = Episode(begun.observation[:3], begun.action[:2], begun.reward[:2], False)
    assert_holds(raised.value.state, [*made[:2], there], unknown=range(2))


def test_a_refused_data_set_consumes_nothing():
    made = episodes([3])
    state = fbuf.init(item(made), 2, next_of="observation")
    with pytest.raises(datasets.DatasetError) as raised:
        loaded(made, state)
    assert raised.value.state is None
    assert int(fbuf.size(state)) == 0


# D4RL.


def d4rl(path, made, leave_out=(), **more):
    h5py = pytest.importorskip("h5py")
    fields, terminated, truncated, later = flat(made)
    arrays = {
        **{f"{name}s": leaf for name, leaf in fields.items()},
        "terminals": terminated,
        "timeouts": truncated,
        "next_observations": later,
        **more,
    }

    def write(group, tree):
        for name, leaf in tree.items():
            if isinstance(leaf, dict):
                write(group.create_group(name), leaf)
            else:
                group[name] = leaf

    with h5py.File(path, "w") as file:
        write(file, {name: leaf for name, leaf in arrays.items() if name not in leave_out})
    return path


@pytest.mark.parametrize(
    "flags",
    [
        np.float32,
        pytest.param(np.bool_, marks=pytest.mark.sweep),
        pytest.param(np.uint8, marks=pytest.mark.sweep),
    ],
)
def test_d4rl(tmp_path, small_chunks, flags):
    made = episodes(FORTY)
    _, terminated, truncated, _ = flat(made)
    more = {"terminals": terminated.astype(flags), "timeouts": truncated.astype(flags)}
    path = d4rl(tmp_path / "x.hdf5", made, **more)
    assert_holds(from_d4rl(path, **NEW), made)


def test_d4rl_without_next_observations(tmp_path, small_chunks):
    made = episodes(FORTY)
    path = d4rl(tmp_path / "x.hdf5", made, ["next_observations"])
    with (
        pytest.warns(UserWarning, match=r"from_d4rl: the data set lacks .* of 14 rows that term"),
        pytest.warns(UserWarning, match=r"from_d4rl: the data set lacks .* of 26 rows that were t"),
    ):
        state = from_d4rl(path, **NEW)
    assert_holds(state, made, unknown=range(40))


@pytest.mark.sweep
def test_d4rl_without_timeouts(tmp_path):
    made = episodes([7, 5, 5, 5, 2])  # the first and the fourth terminate
    path = d4rl(tmp_path / "x.hdf5", made, ["timeouts"])
    with pytest.warns(UserWarning, match=r"in 2 places, after rows 11, 16, the next observation"):
        state = from_d4rl(path, **NEW)
    assert_holds(state, made)
    path = d4rl(tmp_path / "y.hdf5", made, ["timeouts", "next_observations"])
    with (
        pytest.warns(UserWarning, match="2 rows that terminated"),
        pytest.warns(UserWarning, match="1 row that was truncated"),
        pytest.warns(UserWarning, match=r"rows 7 to 21 count as one episode; .* max_episode_steps"),
    ):
        state = from_d4rl(path, **NEW)
    ends = np.flatnonzero(np.asarray(fbuf.rows(state).terminated | fbuf.rows(state).truncated))
    assert ends.tolist() == [6, 21, 23]


@pytest.mark.sweep
def test_d4rl_without_any_end(tmp_path):
    made = episodes([5])
    path = d4rl(tmp_path / "x.hdf5", made, ["timeouts"], terminals=np.zeros(5, bool))
    with pytest.warns(
        UserWarning,
        match="^from_d4rl: no row of the data set ends an episode, so all 5 count as one episode; "
        "if there are more, give max_episode_steps$",
    ):
        from_d4rl(path, **NEW)
    from_d4rl(path, max_episode_steps=5, **NEW)  # said, so no warning


@pytest.mark.sweep
def test_d4rl_with_a_limit_of_steps(tmp_path):
    made = episodes([3, 5, 5, 4, 2])
    path = d4rl(tmp_path / "x.hdf5", made, ["timeouts"])
    assert_holds(from_d4rl(path, max_episode_steps=5, **NEW), made)


@pytest.mark.sweep
def test_d4rl_infos_and_groups(tmp_path):
    made = episodes([3, 4])
    infos = {"qpos": np.arange(14, dtype=np.float32).reshape(7, 2)}
    path = d4rl(tmp_path / "x.hdf5", made, infos=infos)
    state = from_d4rl(path, infos=["qpos"], casts=CASTS)
    assert_same(fbuf.rows(state).data["qpos"], infos["qpos"])
    made = [
        Episode({"a": e.observation, "b": e.observation * 2}, e.action, e.reward, e.terminated)
        for e in made
    ]
    assert_holds(from_d4rl(d4rl(tmp_path / "y.hdf5", made), **NEW), made)


# npz.


@pytest.mark.parametrize("kind", [pytest.param("vector", marks=pytest.mark.sweep), "dict"])
def test_npz_and_back(tmp_path, kind, small_chunks):
    made = episodes(FORTY, kind)
    state = loaded(made)
    to_npz(state, tmp_path / "x.npz")
    again = from_npz(tmp_path / "x.npz", next_of="observation")
    assert_holds(again, made)
    with np.load(tmp_path / "x.npz") as file:
        assert_same(file["reward"], np.float32(flat(made)[0]["reward"]))


@pytest.mark.sweep
def test_npz_keeps_which_ends_are_unknown(tmp_path, recwarn):
    made = episodes([3, 4, 5])
    state = fbuf.init(item(made), 12, next_of="observation")
    state = loaded([made[0]], state, following=False)
    state = loaded(made[1:], state)
    to_npz(state, tmp_path / "x.npz")
    assert_holds(from_npz(tmp_path / "x.npz", next_of="observation"), made, unknown=[0])


@pytest.mark.sweep
def test_npz_of_environments_removed_rows_and_a_full_ring(tmp_path):
    state = fbuf.init({"x": jnp.int32(0)}, 8, num_envs=2, next_of="x")
    x = jnp.arange(12, dtype=jnp.int32).reshape(2, 6)  # of each lane the last four stay
    ends = jnp.zeros((2, 6), bool).at[0, 3].set(True)
    state = fbuf.add(state, {"x": x}, terminated=ends, next_observation=x + 1)
    state = fbuf.remove(state, jax.tree.map(lambda leaf: leaf[1, 1], fbuf.newest_ids(state, 4)))
    to_npz(state, tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as file:
        found = {name: file[name].tolist() for name in file.files}
    assert found == {
        "x": [2, 3, 4, 5, 8, 10, 11],
        "terminated": [n == 1 for n in range(7)],
        "truncated": [n in (3, 4, 6) for n in range(7)],
        "last_observation": [4, 6, 9, 12],
        "last_observation_row": [1, 3, 4, 6],
        "last_observation_of": ["x"],
    }
    again = from_npz(tmp_path / "x.npz", next_of="x")
    assert_same(fbuf.rows(again, view=fbuf.Transition()).data.next_observation[-1], np.int32(12))
    # A file of before does not say of which field they are.
    np.savez(tmp_path / "y.npz", **{n: found[n] for n in found if n != "last_observation_of"})
    again = from_npz(tmp_path / "y.npz", next_of="x", casts={"x": "int32"})
    assert_same(fbuf.rows(again, view=fbuf.Transition()).data.next_observation[-1], np.int32(12))


@pytest.mark.sweep
def test_npz_of_dtypes_that_numpy_lacks(tmp_path):
    state = fbuf.init({"x": jnp.zeros(3, jnp.bfloat16), "y=": jnp.bfloat16(0)}, 4, next_of="x")
    x = jnp.arange(9, dtype=jnp.bfloat16).reshape(3, 3) / 7
    rows = {"x": x, "y=": jnp.arange(3, dtype=jnp.bfloat16)}
    state = fbuf.add(state, rows, next_observation=x + 1)
    to_npz(state, tmp_path / "x.npz")
    again = from_npz(tmp_path / "x.npz", next_of="x")
    assert_same(fbuf.rows(again).data, rows)
    assert_same(fbuf.rows(again, view=fbuf.Transition()).data.next_observation[-1], x[-1] + 1)


@pytest.mark.sweep
def test_npz_of_columns(tmp_path, small_chunks):
    made = episodes([9, 14])
    fields, terminated, truncated, later = flat(made)
    columns = {"observation": np.asfortranarray(fields["observation"])}
    columns["next_observation"] = np.asfortranarray(later)
    rest = {"action": fields["action"], "reward": fields["reward"], "truncated": truncated}
    np.savez(tmp_path / "x.npz", **columns, **rest, terminated=terminated)
    item = {"observation": jnp.zeros(3), "action": jnp.int32(0), "reward": 0.0}
    state = fbuf.init(item, 23, next_of="observation")
    assert_holds(from_npz(tmp_path / "x.npz", state, casts=CASTS), made)


@pytest.mark.sweep
def test_npz_of_names_that_only_files_of_ours_have_for_themselves(tmp_path):
    names = ("dtypes", "last_observation", "last_observation_of", "observation.dtypes")
    arrays = {name: np.arange(3, dtype=np.int32) for name in names}
    np.savez(tmp_path / "x.npz", **arrays, terminated=np.ones(3, bool))
    rows = fbuf.rows(from_npz(tmp_path / "x.npz")).data
    assert_same(rows.pop("observation")["dtypes"], arrays.pop("observation.dtypes"))
    assert_same({name: np.asarray(leaf) for name, leaf in rows.items()}, arrays)


@pytest.mark.sweep
def test_npz_without_any_end(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros(3, np.float32), terminated=np.zeros(3, bool))
    with pytest.warns(UserWarning, match=r"all 3 count .* write an array 'truncated' into the fi"):
        from_npz(tmp_path / "x.npz")


@pytest.mark.sweep
def test_npz_of_a_buffer_that_keeps_next_observations_twice(tmp_path):
    made = episodes([3, 4])
    fields, terminated, truncated, later = flat(made)
    fields["next_observation"] = later + 1  # another thing, of the caller's
    state = fbuf.init(
        item(made, next_observation=jnp.zeros(3)), 7, next_of="observation", max_ends=2
    )
    casts = {"action": np.int32, "reward": np.float32}
    fields |= {name: fields[name].astype(dtype) for name, dtype in casts.items()}
    flags = {"terminated": terminated, "truncated": truncated}
    state = fbuf.add(state, fields, **flags, next_observation=later)
    to_npz(state, tmp_path / "x.npz")
    rows = fbuf.rows(from_npz(tmp_path / "x.npz", next_of="observation"), view=fbuf.Transition())
    assert_same(rows.data.item["next_observation"], later + 1)
    assert_same(rows.data.next_observation, later)


@pytest.mark.sweep
def test_npz_of_ones_own(tmp_path):
    made = episodes([3, 4], "dict")
    fields, terminated, truncated, _ = flat(made)
    arrays = {
        "observation.camera": fields["observation"]["camera"],
        "observation.joints.0": fields["observation"]["joints"][0],
        "observation.joints.1": fields["observation"]["joints"][1],
        "action": fields["action"],
        "reward": fields["reward"],
    }
    np.savez_compressed(
        tmp_path / "x.npz", **arrays, terminated=terminated, truncated=truncated.astype(int)
    )
    with (
        pytest.warns(UserWarning, match="1 row that terminated"),
        pytest.warns(UserWarning, match="1 row that was truncated"),
    ):
        state = from_npz(tmp_path / "x.npz", **NEW)
    assert_holds(state, made, unknown=[0, 1])


@pytest.mark.sweep
def test_a_file_that_is_there_stays_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    state = loaded(episodes([3]))
    to_npz(state, path)
    before = path.read_bytes()
    write = zipfile.ZipFile.open

    def fails(self, name, mode="r", **options):
        if str(name).startswith("reward"):
            raise OSError("the disk is full")
        return write(self, name, mode, **options)

    monkeypatch.setattr(zipfile.ZipFile, "open", fails)
    with pytest.raises(OSError, match="the disk is full"):
        to_npz(state, path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["x.npz"]


def columns(rows=6):
    """Rows as some files have them: rewards and flags with an axis of one."""
    ends = (np.arange(rows) == rows - 1)[:, None]
    return np.zeros((rows, 2), np.float32), np.arange(rows, dtype=np.float32)[:, None], ends


def test_rewards_and_flags_may_have_an_axis_of_one(tmp_path):
    h5py = pytest.importorskip("h5py")
    observation, reward, ends = columns()
    path = tmp_path / "walk.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"] = observation, np.zeros(6, np.int32)
        file["rewards"], file["terminals"] = reward, ends
        file["timeouts"] = np.arange(6)[:, None] == 2
    state = from_d4rl(path)
    assert fbuf.rows(state).data["reward"].tolist() == [0, 1, 2, 3, 4, 5]
    assert int(fbuf.stats(state, detailed=True)["ends"]) == 2
    into = fbuf.init({"observation": jnp.zeros(2), "reward": 0.0}, 8)
    arrays = {"observation": observation, "reward": reward}
    into = from_arrays(arrays, into, terminated=ends, truncated=False)
    assert fbuf.rows(into).data["reward"].tolist()[-6:] == [0, 1, 2, 3, 4, 5]
    kept = from_arrays(arrays, terminated=ends, truncated=False)
    assert kept.storage.item["reward"].shape == (1,)
    wrong = fbuf.init({"observation": 0.0}, 8)
    with pytest.raises(DatasetError, match=r"observation has shape \(2,\).*\(\) in the buffer"):
        from_arrays(arrays, wrong, terminated=ends, truncated=False)


@pytest.mark.sweep
def test_fields_can_be_left_out(tmp_path):
    observation, reward, ends = columns()
    arrays = {
        "observation": {"place": observation, "image": np.zeros((6, 9), np.uint8)},
        "reward": reward[:, 0],
        "note": np.array(["a"] * 6),
    }
    drop = ["note", "observation.image"]
    state = from_arrays(arrays, terminated=ends, truncated=False, drop=drop)
    assert state.storage.item.keys() == {"observation", "reward"}
    assert state.storage.item["observation"].keys() == {"place"}
    path = tmp_path / "walk.npz"
    np.savez(
        path, terminated=ends, truncated=ends & False, reward=reward[:, 0], note=arrays["note"]
    )
    assert from_npz(path, drop=("note",)).storage.item.keys() == {"reward"}
    for names, message in (
        (
            ["x"],
            "drop has 'x', and no dict has a field of this name; .*observation.image",
        ),
        (["reward.a"], "drop has 'reward.a'"),
        (["reward", "note", "observation"], "drop names all fields"),
    ):
        with pytest.raises(DatasetError, match=message):
            from_arrays(arrays, terminated=ends, truncated=False, drop=names)
    with pytest.raises(TypeError, match=r"drop must be a list of names, such as \['note'\]"):
        from_arrays(arrays, terminated=ends, truncated=False, drop="note")
    into = fbuf.init({"reward": 0.0}, 8)
    with pytest.raises(DatasetError, match="drop is for a new buffer"):
        from_arrays(arrays, into, terminated=ends, truncated=False, drop=["note"])


def test_a_file_that_another_program_writes_says_so(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "walk.hdf5"
    with h5py.File(path, "w") as file:
        file["rewards"] = np.zeros(3)
    code = (
        "import h5py, sys; file = h5py.File(sys.argv[1], 'a'); print('open', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        with pytest.raises(DatasetError, match=r"another program has .* open for writing"):
            from_d4rl(path)
        other.communicate(b"\n")
