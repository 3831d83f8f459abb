"""npz files in the form of OGBench's; where OGBench is installed, beside its own loader."""

import numpy as np
import pytest
from fbuf_adapters.datasets import DatasetError, from_ogbench

import fbuf

LENGTHS = (4, 1, 9, 2)  # states of each trajectory
STATES = sum(LENGTHS)


def arrays(lengths=LENGTHS):
    """As OGBench's scripts write them: no two states are alike."""
    number = np.arange(sum(lengths), dtype=np.float32)
    return {
        "observations": np.stack([number, -number], -1),
        "actions": number[:, None] / 7,
        "terminals": np.isin(np.arange(len(number)), np.cumsum(lengths) - 1),
        "qpos": np.stack([number * 3] * 4, -1),
        "button_states": np.stack([number, number], -1).astype(np.int64),
    }


@pytest.fixture
def write(tmp_path):
    def of(**made):
        path = tmp_path / "walk-v0.npz"
        np.savez_compressed(path, **(arrays() | made))
        return path

    return of


def rows_of(state):
    size = int(fbuf.size(state))
    view = fbuf.Transition() if state.next_obs is not None else fbuf.Item()
    return fbuf.read(state, fbuf.newest_ids(state, size), view=view)


def expected(lengths=LENGTHS):
    """The rows: the last state of each trajectory is none."""
    made = arrays(lengths)
    first = np.cumsum([0, *lengths[:-1]])
    row = np.concatenate(
        [start + np.arange(length - 1) for start, length in zip(first, lengths, strict=True)]
    )
    ends = np.concatenate([np.arange(length - 1) == length - 2 for length in lengths])
    return made, row, ends


def test_last_states_are_next_observations_alone(write):
    made, row, ends = expected()
    state = from_ogbench(
        write(), infos=["qpos", "button_states"], next_of="observation",
        casts={"button_states": "int32"},
    )  # fmt: skip
    batch = rows_of(state)
    assert np.asarray(batch.mask).all()
    np.testing.assert_array_equal(batch.data.item["observation"], made["observations"][row])
    np.testing.assert_array_equal(batch.data.item["action"], made["actions"][row])
    np.testing.assert_array_equal(batch.data.item["qpos"], made["qpos"][row])
    np.testing.assert_array_equal(batch.data.item["button_states"], made["button_states"][row])
    np.testing.assert_array_equal(batch.data.next_observation, made["observations"][row + 1])
    np.testing.assert_array_equal(batch.truncated, ends)
    assert not np.asarray(batch.terminated).any()


def test_no_window_reaches_the_next_trajectory(write):
    state = from_ogbench(write())
    size = int(fbuf.size(state))
    view = fbuf.Window({"observation": (0, 1)})
    data = fbuf.read(state, fbuf.newest_ids(state, size), view=view).data
    _, _, ends = expected()
    np.testing.assert_array_equal(data.valid["observation"][:, 1], ~ends)


@pytest.mark.first(3)
@pytest.mark.parametrize("lengths", [(1, 3), (3, 1), (2,), (1, 1, 5), (5, 1, 1, 4), (600, 3, 700)])
@pytest.mark.parametrize("next_of", [None, "observation"])
def test_trajectories_of_any_length(write, monkeypatch, lengths, next_of):
    """Also in many blocks, whose edges lie anywhere."""
    monkeypatch.setattr("fbuf_adapters.datasets._chunks._MOST_ROWS", 7)
    monkeypatch.setattr("fbuf_adapters.datasets._chunks._FEWEST_ROWS", 7)
    made, row, ends = expected(lengths)
    batch = rows_of(from_ogbench(write(**arrays(lengths)), next_of=next_of))
    item = batch.data if next_of is None else batch.data.item
    np.testing.assert_array_equal(item["observation"], made["observations"][row])
    np.testing.assert_array_equal(item["action"], made["actions"][row])
    np.testing.assert_array_equal(batch.truncated, ends)
    if next_of is not None:
        np.testing.assert_array_equal(batch.data.next_observation, made["observations"][row + 1])


def test_a_file_that_ends_within_a_trajectory(write):
    """Nobody knows the next observation of its last row."""
    made = {name: leaf[:-1] for name, leaf in arrays((3, 4)).items()}
    with pytest.warns(UserWarning, match="the next observations of 1 row that was truncated;"):
        state = from_ogbench(write(**made), next_of="observation")
    assert np.asarray(rows_of(state).mask).tolist() == [True, True, True, True, False]
    assert np.asarray(fbuf.rows(state).truncated).tolist() == [False, True, False, False, True]


def test_pixels_keep_their_dtype(write):
    pixels = np.random.default_rng(0).integers(0, 256, (STATES, 4, 4, 3)).astype(np.uint8)
    batch = rows_of(from_ogbench(write(observations=pixels), next_of="observation"))
    _, row, _ = expected()
    np.testing.assert_array_equal(batch.data.next_observation, pixels[row + 1])
    assert batch.data.next_observation.dtype == np.uint8


def test_files_that_are_refused(write, tmp_path):
    path = tmp_path / "other.npz"
    np.savez(path, observations=np.zeros(3))
    with pytest.raises(DatasetError, match="no 'terminals'; it has observations"):
        from_ogbench(path)
    with pytest.raises(DatasetError, match=r"actions has shape \(3, 1\), and terminals has 16"):
        from_ogbench(write(actions=np.zeros((3, 1), np.float32)))
    with pytest.raises(DatasetError, match="terminals must be 0 or 1, got 2"):
        from_ogbench(write(terminals=np.arange(STATES)))
    with pytest.raises(DatasetError, match="the data set has no rows"):
        from_ogbench(write(terminals=np.ones(STATES, bool)))
    with pytest.raises(DatasetError, match="infos has 'action', which is a field already"):
        from_ogbench(write(), infos=["action"])
    with pytest.raises(DatasetError, match="button_states is int64"):
        from_ogbench(write(), infos=["button_states"])
    whole = write()
    whole.write_bytes(whole.read_bytes()[:-30])
    with pytest.raises(DatasetError, match="cut off, damaged, or no npz"):
        from_ogbench(whole)
    with pytest.raises(FileNotFoundError):
        from_ogbench(tmp_path / "none.npz")
    with pytest.raises(DatasetError, match="last values of 'observation', and not of 'action'"):
        from_ogbench(write(), next_of="action")


# --- OGBench's own loader, where it is installed --------------------------------------------------


@pytest.fixture
def ogbench():
    return pytest.importorskip("ogbench")


@pytest.mark.parametrize("lengths", [LENGTHS, (3, 5), (200, 201, 1, 7)])
def test_rows_are_those_of_their_loader(write, ogbench, lengths):
    path = write(**arrays(lengths))
    theirs = ogbench.load_dataset(str(path), add_info=True)
    casts = {"button_states": "int32"}
    state = from_ogbench(path, infos=["qpos", "button_states"], next_of="observation", casts=casts)
    batch = rows_of(state)
    ours = batch.data.item
    named = {"observation": "observations", "action": "actions", "qpos": "qpos"}
    for name, of_theirs in (named | {"button_states": "button_states"}).items():
        np.testing.assert_array_equal(ours[name], theirs[of_theirs])
    np.testing.assert_array_equal(batch.data.next_observation, theirs["next_observations"])
    np.testing.assert_array_equal(batch.truncated, theirs["terminals"] == 1)


def test_a_walk_in_their_maze(ogbench, tmp_path):
    """Steps of one of their environments, in a file like theirs; rewards by their function."""
    import gymnasium
    from ogbench.relabel_utils import relabel_dataset

    env = gymnasium.make("pointmaze-medium-singletask-v0", terminate_at_goal=False)
    made = {name: [] for name in ("observations", "actions", "terminals", "qpos")}
    for seed in range(2):
        observation, _ = env.reset(seed=seed)
        for step in range(21):
            action = env.action_space.sample()
            now = (observation, action, step == 20, env.unwrapped.data.qpos)
            for name, value in zip(made, now, strict=True):
                made[name].append(np.array(value))
            observation, *_ = env.step(action)
    floats = {name: np.float32(made[name]) for name in ("observations", "actions", "qpos")}
    path = tmp_path / "pointmaze-v0.npz"
    np.savez_compressed(path, **floats, terminals=np.array(made["terminals"]))
    state = from_ogbench(path, infos=["qpos"], next_of="observation")
    theirs = ogbench.load_dataset(str(path), add_info=True)
    relabel_dataset("pointmaze", env, theirs)
    batch = rows_of(state)
    assert int(fbuf.size(state)) == 40 == len(theirs["rewards"])
    np.testing.assert_array_equal(batch.data.item["qpos"], theirs["qpos"])
    np.testing.assert_array_equal(batch.data.next_observation, theirs["next_observations"])
