"""Where the episodes of a data set end, and what the rows there are good for."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from fbuf_adapters.datasets import _chunks, from_arrays, from_d4rl, from_npz, to_npz
from fbuf_adapters.datasets._continuity import goes_on
from support.few import few

import fbuf
from fbuf.host import HostStore

ITEM = {"observation": jnp.zeros(2), "reward": 0.0}
ROWS = {"reward": "float32"}


def walks(lengths, first=0):
    """Episodes of so many steps: observations, next observations, and where they end."""
    parts = [np.arange(n + 1) + first + 1000 * k for k, n in enumerate(lengths)]
    pair = lambda numbers: np.stack([numbers, numbers / 7], -1).astype(np.float32)
    observed = np.concatenate([pair(part[:-1]) for part in parts])
    later = np.concatenate([pair(part[1:]) for part in parts])
    ends = np.zeros(sum(lengths), bool)
    ends[np.cumsum(lengths) - 1] = True
    return observed, later, ends


def at(count, *rows):
    return np.isin(np.arange(count), np.array(rows) % count)


def loaded(source, path, into=None, *, observed, terminated, truncated=None, later=None, **more):
    """The rows, through each of the loaders, and what it warned of."""
    reward = terminated.astype(np.float32)
    if source == "d4rl":
        h5py = pytest.importorskip("h5py")
        flags = {} if truncated is None else {"timeouts": truncated}
        led = {} if later is None else {"next_observations": later}
        arrays = {"observations": observed, "rewards": reward, "terminals": terminated}
        with h5py.File(path / "x.hdf5", "w") as file:
            for name, array in {**arrays, "actions": reward, **flags, **led}.items():
                file[name] = array
        load = lambda: from_d4rl(path / "x.hdf5", into, **more)
    elif source == "npz":
        flags = {} if truncated is None else {"truncated": truncated}
        led = {} if later is None else {"next_observation": later}
        arrays = {"observation": observed, "reward": reward, "terminated": terminated}
        np.savez(path / "x.npz", **arrays, **flags, **led)
        load = lambda: from_npz(path / "x.npz", into, **more)
    else:
        fields = {"observation": observed, "reward": reward}
        if later is not None:
            fields["next_observation"] = later
        flags = {"terminated": terminated, "truncated": truncated}
        load = lambda: from_arrays(fields, into, **flags, **more)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        return load(), [str(warning.message) for warning in caught]


def all_rows(buffer, view):
    if isinstance(buffer, fbuf.State):
        return fbuf.read(buffer, fbuf.newest_ids(buffer, int(fbuf.size(buffer))), view=view)
    return buffer.read(buffer.newest_ids(int(buffer.size())), view=view)


def ends_of(buffer):
    """The rows that terminated, and those that were truncated."""
    rows = all_rows(buffer, fbuf.Item())
    return [np.flatnonzero(np.asarray(f)).tolist() for f in (rows.terminated, rows.truncated)]


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(_chunks, "_MOST_ROWS", 4)


SOURCES = ["arrays", "npz", "d4rl"]
NEXT = {"next_of": "observation"}


# Rows that terminated, and whose next observations nobody knows.


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        pytest.param("arrays", HostStore, marks=pytest.mark.sweep),
        ("d4rl", fbuf.init),
        pytest.param("npz", fbuf.init, marks=pytest.mark.sweep),
        pytest.param("d4rl", HostStore, marks=pytest.mark.sweep),
    ],
)
def test_a_row_that_terminated_counts(source, kind, small_chunks, tmp_path):
    """As in antmaze, where such rows have the only rewards."""
    observed, _, _ = walks([1, 3, 4, 1, 1, 2, 4, 2])
    terminated = at(18, 0, 3, 8, 9, 13, 17)  # the first, the last of a chunk, of one step, the last
    truncated = at(18, 3, 7, 11, 15)  # of a chunk, too; 3 is both
    into = kind(ITEM, 18, next_of="observation", max_ends=9)
    buffer, said = loaded(
        source, tmp_path, into, observed=observed, terminated=terminated, truncated=truncated
    )
    masked = truncated & ~terminated
    counted = [" 6 rows that terminated; ", f" {masked.sum()} rows that were truncated; "]
    assert [of in line for of, line in zip(counted, said, strict=True)] == [True, True]
    led = all_rows(buffer, fbuf.Transition())
    assert (np.asarray(led.mask) == ~masked).all()
    assert np.asarray(led.data.item["reward"])[np.asarray(led.mask)].sum() == 6
    following = np.where(terminated[:, None], observed, np.append(observed[1:], [[0, 0]], axis=0))
    assert (np.asarray(led.data.next_observation)[~masked] == following[~masked]).all()
    steps = all_rows(buffer, fbuf.NStep(3, gamma=0.5))
    for row in range(18):
        last = next(n for n in range(row, 18) if n == row + 2 or (terminated | truncated)[n])
        gained = 0.5 ** (last - row) * terminated[last]
        assert steps.mask[row] == (not masked[last])
        if steps.mask[row]:
            assert (steps.data.reward[row], steps.data.steps[row]) == (gained, last - row + 1)
            assert steps.data.discount[row] == (0 if terminated[last] else 0.5 ** (last - row + 1))
    to_npz(buffer, tmp_path / "again.npz")
    with (
        pytest.warns(UserWarning, match=" 6 rows that terminated; "),
        pytest.warns(UserWarning, match=f" {masked.sum()} rows that were truncated; "),
    ):
        again = all_rows(from_npz(tmp_path / "again.npz", **NEXT), fbuf.Transition())
    assert (np.asarray(again.mask) == ~masked).all()


@pytest.mark.sweep
def test_a_field_of_next_observations_needs_none_of_rows_that_terminated():
    observed, _, ends = walks([2, 1, 3])
    fields = {"observation": observed, "reward": ends.astype(np.float32)}
    state = fbuf.init({**ITEM, "next_observation": jnp.zeros(2)}, 6)
    with pytest.warns(UserWarning, match="3 rows that terminated"):
        state = from_arrays(fields, state, terminated=ends, truncated=False)
    following = np.where(ends[:, None], observed, np.append(observed[1:], [[0, 0]], axis=0))
    assert (np.asarray(fbuf.rows(state).data["next_observation"]) == following).all()


# Ends that nobody marked.


@pytest.mark.parametrize("source", few(SOURCES, "npz"))
@pytest.mark.parametrize(
    "given",
    [{"next_of": "observation"}, {"into": fbuf.init(ITEM, 12)}],
    ids=["next_of", "no next observations"],
)
def test_a_jump_is_an_end(source, given, small_chunks, tmp_path):
    """At the end of a chunk, too, and whoever wants the next observations."""
    observed, later, _ = walks([4, 3, 2, 3])
    into = given.get("into")
    into = None if into is None else fbuf.init(ITEM, 12)
    new = {} if into is not None else given
    rows = {"observed": observed, "later": later, "terminated": at(12, 6)}
    buffer, said = loaded(source, tmp_path, into, **rows, **new)
    assert said == [
        f"from_{source}: in 2 places, after rows 3, 8, the next observation is not the observation "
        "of the following row, though no flag ends the episode; it is truncated there"
    ]
    assert ends_of(buffer) == [[6], [3, 8, 11]]
    if into is None:
        led = all_rows(buffer, fbuf.Transition())
        assert led.mask.all()
        assert (np.asarray(led.data.next_observation) == later).all()
        steps = np.asarray(all_rows(buffer, fbuf.NStep(3, gamma=1.0)).data.steps)
        assert steps.tolist() == [3, 3, 2, 1, 3, 2, 1, 2, 1, 3, 2, 1]


@pytest.mark.sweep
def test_rows_in_no_order_are_episodes_of_one_step(tmp_path):
    observed, later, _ = walks([30])
    order = np.random.default_rng(0).permutation(30)
    rows = {"observed": observed[order], "later": later[order], "terminated": at(30, 7)}
    state, said = loaded("arrays", tmp_path, **rows, **NEXT)
    assert len(said) == 1
    assert "right, if the rows are in no order" in said[0]
    led = all_rows(state, fbuf.Transition())
    assert led.mask.all()
    assert (np.asarray(led.data.next_observation) == later[order]).all()
    told, said = loaded("arrays", tmp_path, **rows, truncated=~rows["terminated"], **NEXT)
    assert said == []
    assert ends_of(told) == [[7], [row for row in range(30) if row != 7]]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize(("terminated", "rows"), [((4,), "5 to 11"), ((-1,), "0 to 11")])
def test_one_terminal_does_not_say_where_episodes_are_cut_off(source, terminated, rows, tmp_path):
    given = {"observed": walks([12])[0], "terminated": at(12, *terminated)}
    _, said = loaded(source, tmp_path, **given)
    assert len(said) == 1
    assert f"and not where others were cut off, so rows {rows} count" in said[0]
    told = at(12, -1) if source == "d4rl" else at(12)
    assert loaded(source, tmp_path, **given, truncated=told)[1] == []
    shown = {"later": walks([12])[1]}  # the rows show that nothing is missing
    assert loaded(source, tmp_path, **given, **shown)[1] == []


def test_d4rl_has_more_ends_than_those_that_terminated(tmp_path):
    """Its tasks have limits: what terminated, be it the last row, says nothing of them."""
    given = {"observed": walks([12])[0], "terminated": at(12, 4, -1)}
    _, said = loaded("d4rl", tmp_path, **given)
    assert len(said) == 1
    assert "give max_episode_steps" in said[0]
    for source in ("arrays", "npz"):
        _, said = loaded(source, tmp_path, **given)
        assert len(said) == 1
        assert "not where others were cut off" in said[0]


def test_arrays_without_any_end(tmp_path):
    given = {"observed": walks([12])[0], "terminated": at(12)}
    for none in (None, at(12)):
        _, said = loaded("arrays", tmp_path, **given, truncated=none)
        assert said == [
            "from_arrays: no row of the data set ends an episode, so all 12 count as one episode; "
            "if there are more, give truncated, which is False if nothing was cut off"
        ]
    assert loaded("arrays", tmp_path, **given, truncated=False)[1] == []
    assert loaded("arrays", tmp_path, observed=walks([1])[0], terminated=at(1))[1] == []


def test_d4rl_with_timeouts_that_are_false_everywhere(tmp_path):
    rows = {"observed": walks([12])[0], "terminated": at(12, 4), "truncated": at(12)}
    _, said = loaded("d4rl", tmp_path, **rows)
    assert len(said) == 1
    assert "rows 5 to 11 count as one episode" in said[0]
    state, said = loaded("d4rl", tmp_path, **rows, max_episode_steps=4)
    assert (ends_of(state), said) == ([[4], [3, 8, 11]], [])


def test_steps_are_counted_on_where_a_task_goes_on_after_a_terminal(tmp_path, small_chunks):
    """As the rows show it: the fourth terminates and goes on, the last of the second does not."""
    observed, later, _ = walks([6, 5, 6])
    rows = {"observed": observed, "later": later, "terminated": at(17, 3, 10)}
    state, said = loaded("d4rl", tmp_path, **rows, max_episode_steps=6)
    assert (ends_of(state), said) == ([[3, 10], [5, 16]], [])


def test_a_limit_that_is_too_small_or_counts_from_the_wrong_rows_is_said(tmp_path):
    observed, later, _ = walks([6, 5, 6])
    rows = {"observed": observed, "later": later, "terminated": at(17, 10)}
    state, said = loaded("d4rl", tmp_path, **rows, max_episode_steps=3)
    assert ends_of(state) == [[10], [2, 5, 8, 13, 16]]
    assert len(said) == 1
    assert said[0].startswith("from_d4rl: in 3 places, after rows 2, 8, 13, 3 steps were over, and")
    state, said = loaded("d4rl", tmp_path, **rows, max_episode_steps=9)
    assert ends_of(state) == [[10], [5, 16]]
    assert len(said) == 1
    assert "after row 5 the next observation is not" in said[0]
    rows = {"observed": observed, "terminated": at(17, 3, 4)}
    _, said = loaded("d4rl", tmp_path, **rows, max_episode_steps=6)
    assert len(said) == 1
    assert "after row 3 a row that terminated is followed by" in said[0]


@pytest.mark.sweep
def test_files_that_are_loaded_one_after_another_are_not_joined(tmp_path):
    observed, later, _ = walks([3])
    state = fbuf.init(ITEM, 6, next_of="observation", max_ends=2)
    for _ in range(2):  # each is cut off in the middle of its episode
        rows = {"observed": observed, "later": later, "terminated": at(3, 7)}
        state, said = loaded("arrays", tmp_path, state, **{**rows, "terminated": np.zeros(3, bool)})
    assert len(said) == 1
    assert "no row of the data set ends an episode" in said[0]
    assert ends_of(state) == [[], [2, 5]]
    led = all_rows(state, fbuf.Transition())
    assert (np.asarray(led.data.next_observation) == np.tile(later, (2, 1))).all()


# Jumps are told from roundings.

WALK = np.cumsum(np.random.default_rng(0).normal(size=(200, 5)), axis=0)
GRID = np.random.default_rng(1).integers(0, 300, (200, 2))


def jumps(observed, later, size=64):
    """The rows but the last that do not go on."""
    rows = len(observed)
    found = goes_on({"": observed}, {"": later}, np.ones(rows, bool), size)
    assert not found[-1]
    return np.flatnonzero(~found[:-1]).tolist()


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(
    "led",
    [
        lambda x: x,
        lambda x: x.astype(np.float32),
        lambda x: x.astype(np.float32).astype(np.float64),
        lambda x: x.astype(np.float16).astype(np.float32),
        lambda x: x.astype(np.float16),
        lambda x: x.astype(jnp.bfloat16),
        lambda x: np.nextafter(np.float32(x), np.float32(1e9)),
    ],
    ids=["same", "f32", "f32 in f64", "f16 in f32", "f16", "bf16", "one step of f32"],
)
def test_a_rounding_is_no_jump(led, size):
    led_to = np.append(WALK[1:], WALK[-1:], axis=0)
    led_to[[49, 120]] += 0.5
    for observed in (WALK, WALK.astype(np.float32)):
        assert jumps(observed, led(led_to), size) == [49, 120]
        assert jumps(led(observed), led_to.astype(observed.dtype), size) == [49, 120]


@pytest.mark.parametrize("dtype", ["uint8", "int32", "float16", "float32", "float64", "bfloat16"])
def test_a_step_on_a_grid_is_a_jump(dtype):
    grid = (GRID % 200).astype(jnp.dtype(dtype))
    grid[4, 1] = 254  # where half a step of bfloat16 is all but one
    led_to = np.append(grid[1:], grid[-1:], axis=0)
    led_to[[3, 90], 1] += np.asarray(1, grid.dtype)
    assert jumps(grid, led_to) == [3, 90]


def test_what_is_no_number_is_itself_and_nothing_else():
    observed = WALK.astype(np.float32)
    observed[10:20, 2], observed[30:40, 3], observed[50, 1] = np.nan, np.inf, -0.0
    led_to = np.append(observed[1:], observed[-1:], axis=0)
    led_to[49, 1] = 0.0
    assert jumps(observed, led_to) == []
    led_to[14, 2], led_to[34, 3], led_to[60, 0] = 1, -np.inf, np.nan
    assert jumps(observed, led_to) == [14, 34, 60]


@pytest.mark.sweep
def test_arrays_of_a_file_are_read_again(tmp_path, small_chunks):
    """They are compared before; in Fortran order, too."""
    observed, later, _ = walks([40])
    rows = {"observed": np.asfortranarray(observed), "later": later, "terminated": at(40, 39)}
    state, said = loaded("npz", tmp_path, **rows, **NEXT)
    assert said == []
    assert (np.asarray(fbuf.rows(state).data["observation"]) == observed).all()
    assert (np.asarray(fbuf.rows(state).data["next_observation"]) == later).all()


def test_one_huge_number_hides_no_jump():
    rng = np.random.default_rng(0)
    observed = rng.normal(size=(300, 3)).astype(np.float32)
    observed[5] = 1e9
    led_to = np.roll(observed, -1, axis=0)
    led_to[[99, 199]] += 1
    assert jumps(observed, led_to) == [99, 199]
