"""Data sets of the real Minari, in and out again."""

from typing import Any, NamedTuple

import numpy as np
import pytest

pytest.importorskip("minari")

import gymnasium
import jax
import jax.numpy as jnp
import minari
from fbuf_adapters.datasets import (
    DatasetError,
    from_arrays,
    from_minari,
    from_npz,
    to_minari,
    to_npz,
)
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer
from support.episodes import Episode, assert_holds, assert_same, episodes, flat

import fbuf

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is set to None:UserWarning"),
    pytest.mark.filterwarnings("ignore:env_spec is None:UserWarning"),
]
CASTS = {"reward": "float32", "action": "int32"}
NEW = {"casts": CASTS, "next_of": "observation"}
ACTIONS = spaces.Discrete(5)
IMAGE = spaces.Box(0, 255, (32, 32, 3), np.uint8)  # large enough for JPEG, by default
VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
SPACES = {
    "vector": VECTOR,
    "image": IMAGE,
    "dict": spaces.Dict(
        camera=IMAGE, joints=spaces.Tuple([VECTOR, spaces.Box(0, 10**6, (), np.int32)])
    ),
}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def buffers(made, **more):
    """As Minari takes episodes."""
    return [
        EpisodeBuffer(
            observations=e.observation,
            actions=e.action,
            rewards=e.reward,
            terminations=e.flags[0],
            truncations=e.flags[1],
            infos={name: leaf[: len(e)] for name, leaf in more.items()},
        )
        for e in made
    ]


def written(made, kind="vector", name="test/mine-v0", **more):
    space = {"observation_space": SPACES[kind], "action_space": ACTIONS}
    given = buffers(made, **more) if isinstance(made[0], Episode) else made
    return minari.create_dataset_from_buffers(name, given, **space, jpeg_encoding=False)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.sweep] * (k != "image")) for k in SPACES]
)
def test_in_and_out_again(kind):
    made = episodes([1 + (7 * n) % 40 for n in range(40)], kind)
    dataset = written(made, kind)
    state = from_minari(dataset, **NEW)
    assert_holds(state, made)
    space = {"observation_space": SPACES[kind], "action_space": ACTIONS}
    again = to_minari(state, "test/again-v0", **space)
    assert (len(again), again.total_steps) == (len(dataset), dataset.total_steps)
    for one, other in zip(dataset, again, strict=True):
        assert_same(one.observations, other.observations)
        assert_same(np.int32(one.actions), other.actions)
        assert_same(np.float32(one.rewards), other.rewards)
        assert_same((one.terminations, one.truncations), (other.terminations, other.truncations))
    assert_holds(from_minari(again, next_of="observation"), made)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its own folder
def test_what_a_collector_of_minari_wrote():
    env = minari.DataCollector(gymnasium.make("CartPole-v1", max_episode_steps=12))
    for seed in range(6):
        env.reset(seed=seed)
        for step in range(20):
            _, _, terminated, truncated, _ = env.step(step % 2)
            if terminated or truncated:
                break
    env.reset()
    env.step(0)  # cut by the collector
    dataset = env.create_dataset("cartpole/test-v0")
    state = from_minari("cartpole/test-v0", **NEW)
    assert int(fbuf.size(state)) == dataset.total_steps
    whole = to_minari(state, "cartpole/again-v0", env="CartPole-v1")
    for one, other in zip(dataset, whole, strict=True):
        assert_same(one.observations, other.observations)


@pytest.mark.sweep
def test_ids_paths_and_filtered_data_sets(tmp_path):
    made = episodes([3, 9, 2, 8])
    dataset = written(made)
    for given in ("test/mine-v0", tmp_path / "test/mine-v0", str(dataset.storage.data_path)):
        assert_holds(from_minari(given, **NEW), made)
    long = dataset.filter_episodes(lambda episode: len(episode) > 5)
    assert_holds(from_minari(long, **NEW), [made[1], made[3]])


@pytest.mark.sweep
def test_infos_are_those_of_the_step():
    made = episodes([3, 2])
    given = buffers(made)
    given[0].infos.update(seen=np.arange(4), of={"step": np.arange(3)})  # one more, of the reset
    given[1].infos.update(seen=np.arange(3), of={"step": np.arange(2)})
    dataset = written(given)
    state = from_minari(dataset, infos=["seen", "of"], casts={**CASTS, "seen": "i4", "of": "i4"})
    rows = fbuf.rows(state).data
    assert rows["seen"].tolist() == [1, 2, 3, 1, 2]
    assert rows["of"]["step"].tolist() == [0, 1, 2, 0, 1]


def test_infos_may_have_dots_in_their_names():
    """Also the name of a part of an observation that has none; and as Gymnasium calls them."""
    made = episodes([3, 2])
    given = buffers(made)
    for buffer, steps in zip(given, (3, 2), strict=True):
        buffer.infos.update({"observation.depth": np.arange(steps + 1, dtype=np.int32)})
        buffer.infos.update({"TimeLimit.truncated": np.arange(steps + 1) == steps})
    infos = ["observation.depth", "TimeLimit.truncated"]
    data = written(given)
    for options in ({}, {"next_of": "observation"}):
        state = from_minari(data, infos=infos, casts=CASTS, **options)
        rows = fbuf.rows(state).data
        assert rows["observation.depth"].tolist() == [1, 2, 3, 1, 2]
    assert rows["TimeLimit.truncated"].tolist() == [False, False, True, False, True]


@pytest.mark.sweep
def test_a_field_holds_the_next_observation():
    made = episodes([3, 1, 4])
    item = {"observation": jnp.zeros(3), "next_observation": jnp.zeros(3), "reward": 0.0}
    state = fbuf.init({**item, "action": jnp.int32(0)}, 20)
    state = from_minari(written(made), state, casts=CASTS)
    assert_same(fbuf.rows(state).data["next_observation"][-8:], flat(made)[3])
    assert_holds(from_minari(out(state), next_of="observation"), made)


def test_infos_are_a_list():
    dataset = written(episodes([3]), seen=np.arange(4))
    with pytest.raises(TypeError, match=r"infos must be a list of names, .*, got 'seen'"):
        from_minari(dataset, infos="seen", **NEW)


@pytest.mark.parametrize(
    ("stated", "found"),
    [
        (5, "episode 1 ends after 7"),
        (13, "the episodes have 12"),
        (0, "episode 0 has 3"),
    ],
)
def test_steps_that_the_metadata_miscount(stated, found):
    dataset = written(episodes([3, 4, 5]))
    dataset.storage.update_metadata({"total_steps": stated})
    message = f"the metadata of the data set say that it has {stated} steps, and {found}; correct"
    with pytest.raises(DatasetError, match=message):
        from_minari("test/mine-v0", **NEW)


# Out.


def out(state, name="test/out-v0"):
    return to_minari(state, name, observation_space=VECTOR, action_space=ACTIONS)


def filled(capacity, made, **options):
    item = {"observation": jnp.zeros(3), "action": jnp.int32(0), "reward": 0.0}
    state = fbuf.init(item, capacity, next_of="observation", **options)
    return add(state, made)


def add(state, made, open_end=False):
    fields, terminated, truncated, later = flat(made)
    if open_end:
        truncated[-1] = False
    fields = {
        **fields,
        "action": np.int32(fields["action"]),
        "reward": np.float32(fields["reward"]),
    }
    flags = {"terminated": terminated, "truncated": truncated}
    return fbuf.add(state, fields, **flags, next_observation=later)


class Point(NamedTuple):
    here: Any
    there: Any


class Step(NamedTuple):
    observation: Any
    action: Any
    reward: Any
    at: Any


@pytest.mark.sweep
def test_named_tuples_are_dicts_of_their_fields():
    made = episodes([3, 4])
    fields, terminated, truncated, later = flat(made)
    point = Point(fields["observation"], np.arange(7, dtype=np.int32))
    rows = Step(point, np.int32(fields["action"]), np.float32(fields["reward"]), point)
    item = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)
    flags = {"terminated": terminated, "truncated": truncated}
    state = fbuf.init(item, 7, next_of="observation", max_ends=2)
    state = fbuf.add(state, rows, **flags, next_observation=Point(later, point.there + 1))
    space = spaces.Dict(here=VECTOR, there=spaces.Box(0, 9, (), np.int32))
    dataset = to_minari(state, "test/out-v0", observation_space=space, action_space=ACTIONS)
    assert_same(dataset[1].observations["there"], np.arange(3, 8, dtype=np.int32))
    assert_same(dataset[1].infos["at"]["here"], made[1].observation[:-1])
    again = from_minari(dataset, fbuf.clear(state), infos=["at"])
    assert_same(fbuf.rows(again).data, rows)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"observation_space": spaces.Box(-1, 1, (4,))},
            "to_minari: rows have the shapes {'observation': (3,)}, and observation_space has "
            "{'observation': (4,)}; give the observation_space of these rows",
        ),
        (
            {"action_space": spaces.Tuple([ACTIONS, ACTIONS])},
            "to_minari: rows have the shapes {'action': ()}, and action_space has {'action.0': "
            "(), 'action.1': ()}; give the action_space of these rows",
        ),
        pytest.param(
            {"env": "CartPole-v1", "observation_space": None},
            "to_minari: rows have the shapes {'observation': (3,)}, and observation_space has "
            "{'observation': (4,)}; give the observation_space of these rows",
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_spaces_are_those_of_the_rows(given, message, tmp_path):
    state = filled(4, episodes([3]))
    space = {"observation_space": VECTOR, "action_space": ACTIONS}
    with pytest.raises(DatasetError) as raised:
        to_minari(state, "test/out-v0", **{**space, **given})
    assert str(raised.value) == message
    assert not (tmp_path / "test/out-v0").exists()
    assert out(state).total_steps == 3


def test_an_id_needs_a_version():
    with pytest.raises(DatasetError) as raised:
        out(None, "test/out")
    assert str(raised.value) == (
        "to_minari: dataset_id must end in a version, as name-v0 does, got 'test/out'"
    )


@pytest.mark.sweep
def test_an_episode_whose_beginning_was_overwritten_is_left_out():
    made = episodes([5, 4, 6])
    with pytest.warns(
        UserWarning, match="to_minari: 1 of 3 episodes or parts of them are left out"
    ):
        dataset = out(filled(12, made))
    assert_holds(from_minari(dataset, next_of="observation"), made[1:])


def test_an_episode_that_was_moved_without_its_beginning_is_left_out():
    """Not only the oldest row of a buffer may be in the middle of its episode."""
    made, moved = episodes([3]), episodes([5, 4, 6])
    state = fbuf.extend(filled(30, made), filled(12, moved))
    with pytest.warns(UserWarning, match="1 of 4 episodes or parts of them are left out"):
        dataset = out(state)
    assert_holds(from_minari(dataset, next_of="observation"), [*made, *moved[1:]])


@pytest.mark.sweep
def test_an_open_episode_is_truncated():
    made = episodes([5, 4])
    state = add(filled(20, made[:1]), made[1:], open_end=True)
    assert_holds(from_minari(out(state), next_of="observation"), made)


@pytest.mark.sweep
def test_an_episode_with_a_removed_row_is_left_out():
    made = episodes([5, 4, 3])
    state = filled(20, made)
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.array([6])))
    with pytest.warns(UserWarning, match="2 of 4 episodes or parts of them are left out"):
        dataset = out(state)
    assert_holds(from_minari(dataset, next_of="observation"), [made[0], made[2]])


@pytest.mark.sweep
def test_environments_come_one_after_another():
    made = episodes([4, 4])
    item = {"observation": jnp.zeros(3), "action": jnp.int32(0), "reward": 0.0}
    state = fbuf.init(item, 16, num_envs=2, next_of="observation")
    lanes = lambda leaf: np.asarray(leaf).reshape(2, 4, *np.shape(leaf)[1:])
    fields, terminated, truncated, later = jax.tree.map(lanes, flat(made))
    fields |= {"action": np.int32(fields["action"]), "reward": np.float32(fields["reward"])}
    flags = {"terminated": terminated, "truncated": truncated}
    state = fbuf.add(state, fields, **flags, next_observation=later)
    assert_holds(from_minari(out(state), next_of="observation"), made)


@pytest.mark.sweep
def test_an_unknown_last_observation_is_not_made_up(recwarn):
    made = episodes([3, 4])
    fields, terminated, truncated, _ = flat(made)
    flags = {"terminated": terminated, "truncated": truncated}
    state = from_arrays(fields, **flags, **NEW)
    with pytest.raises(DatasetError, match="to_minari: the last observation of no episode is kno"):
        out(state)


@pytest.mark.sweep
def test_nothing_is_left_of_what_raised(tmp_path, monkeypatch):
    calls = []

    def fails(self, buffer):
        calls.append(buffer)
        raise KeyboardInterrupt

    state = filled(20, episodes([3, 4]))
    with monkeypatch.context() as broken:
        broken.setattr(minari.MinariDataset, "update_dataset_from_buffer", fails)
        with pytest.raises(KeyboardInterrupt):
            out(state)
    assert calls
    assert out(state).total_episodes == 2
    with pytest.raises(ValueError, match="already exists"):
        out(state)
    assert minari.load_dataset("test/out-v0").total_episodes == 2


REFUSED_OUT = {
    "no action": (
        lambda: fbuf.init({"observation": jnp.zeros(3), "reward": 0.0}, 4, next_of="observation"),
        "to_minari: the item has no field 'action'; it has observation, reward",
    ),
    "no next observation": (
        lambda: fbuf.init({"observation": 0.0, "action": 0.0, "reward": 0.0}, 4),
        "to_minari: Minari stores the observation after the last step, and this buffer keeps none; "
        "make it with next_of='observation', or with a field 'next_observation'",
    ),
    "bfloat16": (
        lambda: fbuf.init(
            {"observation": jnp.bfloat16(0), "action": 0.0, "reward": 0.0}, 4, next_of="observation"
        ),
        "to_minari: observation is bfloat16, which Minari's files cannot hold; write the buffer "
        "with to_npz, load that with from_npz(path, next_of='observation', casts={'observation': "
        "'float32'}), and write the result",
    ),
    "empty": (
        lambda: fbuf.clear(filled(4, episodes([1]))),
        "to_minari: the buffer has no whole episode",
    ),
}


@pytest.mark.parametrize("name", REFUSED_OUT)
def test_what_cannot_go_out(name):
    make, message = REFUSED_OUT[name]
    with pytest.raises(DatasetError) as raised:
        out(make())
    assert str(raised.value) == message


# Bad data sets: the third episode is wrong.


def broken(**changes):
    given = buffers(episodes([3, 4, 5]))
    return [*given[:2], EpisodeBuffer(**{**vars(given[2]), **changes})]


FIVE = np.arange(5) == 4
BAD = {
    "no end": (
        dict(terminations=~FIVE & False, truncations=~FIVE & False),
        "from_minari: episode 2 has no end: neither terminations nor truncations is True at its "
        "last step; write it with truncations[-1] = True",
    ),
    "an end in the middle": (
        dict(terminations=np.arange(5) == 1),
        "from_minari: episode 2: terminations is True at step 1 of 5, before the last one; an "
        "episode ends once",
    ),
    "a flag that is NaN": (
        dict(truncations=np.where(FIVE, np.nan, 0)),
        "from_minari: episode 2: truncations must be 0 or 1, got nan in row 4; say where episodes "
        "end",
    ),
    "flags too short": (
        dict(truncations=FIVE[1:]),
        "from_minari: episode 2: truncations has 4 entries, and there are 5 steps",
    ),
    "no last observation": (
        dict(observations=np.zeros((5, 3), np.float32)),
        "from_minari: episode 2: observation has 5 entries, and 5 steps need 6",
    ),
    "an action too many": (
        dict(actions=np.zeros(6, np.int64)),
        "from_minari: episode 2: action has 6 entries, and 5 steps need 5",
    ),
    "another shape": (
        dict(observations=np.zeros((6, 2), np.float32)),
        "from_minari: episode 2: observation has shape (2,), and in the first episode it has (3,)",
    ),
    "another dtype": (
        dict(observations=np.zeros((6, 3))),
        "from_minari: episode 2, row 7 of the data set: observation, or the next observation, "
        "is float64 there, and is stored as float32; if it may be cast, give "
        "casts={'observation': 'float32'}",
    ),
    "an action that does not fit": (
        dict(actions=np.array([0, 0, 2**40, 0, 0])),
        "from_minari: episode 2, row 9 of the data set: action holds 1099511627776, which int32 "
        "cannot hold",
    ),
    "a reward that does not fit": (
        dict(rewards=np.array([0, 0, 0, 0, -1e300])),
        "from_minari: episode 2, row 11 of the data set: reward holds -1e+300, which float32 "
        "cannot hold",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.sweep] * ("fit" not in n)) for n in BAD]
)
def test_what_is_wrong_is_named(name):
    changes, message = BAD[name]
    dataset = written(broken(**changes))
    with pytest.raises(DatasetError) as raised:
        from_minari(dataset, **NEW)
    assert str(raised.value) == message
    assert raised.value.state is None  # of one chunk nothing was added


@pytest.mark.sweep
def test_what_was_added_before_is_there(monkeypatch):
    from fbuf_adapters.datasets import _chunks

    monkeypatch.setattr(_chunks, "_MOST_ROWS", 4)
    dataset = written(broken(truncations=FIVE & False))
    with pytest.raises(DatasetError) as raised:
        from_minari(dataset, **NEW)
    assert "4 of 12 rows were added before, 1 whole episodes" in raised.value.__notes__[0]
    made = episodes([3, 4])
    there = Episode(made[1].observation[:2], made[1].action[:1], made[1].reward[:1], False)
    assert_holds(raised.value.state, [made[0], there])


def test_a_file_that_is_cut_off():
    dataset = written(episodes([3, 4]))
    path = dataset.storage.data_path / "main_data.hdf5"
    path.write_bytes(path.read_bytes()[:-900])
    with pytest.raises(DatasetError, match=r"^from_minari: episode 0 cannot be read: .*truncated"):
        from_minari("test/mine-v0", **NEW)


@pytest.mark.sweep
def test_a_missing_field():
    dataset = written(episodes([3, 4]))
    h5py = pytest.importorskip("h5py")
    with h5py.File(dataset.storage.data_path / "main_data.hdf5", "a") as file:
        del file["episode_1/rewards"]
    with pytest.raises(DatasetError, match=r"^from_minari: episode 1 cannot be read: .*'rewards'"):
        from_minari(dataset, **NEW)


@pytest.mark.sweep
def test_spaces_that_cannot_be_stored():
    text = EpisodeBuffer(
        observations=["a", "b", "c"],
        actions=np.zeros(2, np.int64),
        rewards=np.zeros(2),
        terminations=np.array([False, True]),
        truncations=np.array([False, False]),
        infos={},
    )
    space = {"observation_space": spaces.Text(1), "action_space": ACTIONS}
    dataset = minari.create_dataset_from_buffers("test/text-v0", [text], **space)
    with pytest.raises(DatasetError, match=r"observation is <U1, which cannot be stored; leave it"):
        from_minari(dataset, **NEW)
    state = from_minari(dataset, fbuf.init({"reward": 0.0}, 2), casts={"reward": "float32"})
    assert int(fbuf.size(state)) == 2


def test_no_such_data_set(tmp_path):
    with pytest.raises(FileNotFoundError, match="test/none-v0"):
        from_minari("test/none-v0")
    with pytest.raises(FileNotFoundError, match="there is no data set of Minari in"):
        from_minari(tmp_path)
    with pytest.raises(TypeError, match=r"must be a minari.MinariDataset, an id or a path, got in"):
        from_minari(3)


@pytest.mark.parametrize("field", [pytest.param(False, marks=pytest.mark.sweep), True])
def test_an_observation_that_stands_in_is_not_written(field, tmp_path):
    """Whether it is kept aside, or in a field; what is known of other rows is written."""
    made = [e for number, e in enumerate(episodes([3, 1, 1, 4])) if number % 3 == 0]
    fields, terminated, _, later = flat(made)
    item = {"observation": jnp.zeros(3), "action": jnp.int32(0), "reward": 0.0}
    item |= {"next_observation": jnp.zeros(3)} if field else {}
    kept = {} if field else {"next_of": "observation", "max_ends": 14}
    state = fbuf.init(item, 14, **kept)
    flags = {"terminated": terminated, "truncated": False, "casts": CASTS}
    with pytest.warns(UserWarning, match="2 rows that terminated"):
        state = from_arrays(fields, state, **flags)
    state = from_arrays(fields, state, next_observation=later, **flags)
    with pytest.warns(
        UserWarning, match="to_minari: 2 of 4 episodes or parts of them are left out"
    ):
        dataset = out(state)
    for episode, written_one in zip(made, dataset, strict=True):
        assert_same(written_one.observations, episode.observation)
    if not field:
        to_npz(state, tmp_path / "x.npz")
        with np.load(tmp_path / "x.npz") as file:
            assert file["last_observation_row"].tolist() == [9, 13]
        with pytest.warns(UserWarning, match="2 rows that terminated"):
            again = from_npz(tmp_path / "x.npz", next_of="observation")
        assert_holds(again, [*made, *made], unknown=[0, 1])


def test_an_observation_that_stood_in_before_a_resize_is_not_written_after():
    made = episodes([3, 4])
    fields, terminated, _, later = flat(made)
    lacking = {"observation": fields["observation"][:3], "action": fields["action"][:3]}
    lacking["reward"] = fields["reward"][:3]
    item = {"observation": jnp.zeros(3), "action": jnp.int32(0), "reward": 0.0}
    state = fbuf.init(item, 10, next_of="observation", max_ends=2)
    with pytest.warns(UserWarning, match="1 row that terminated"):
        state = from_arrays(lacking, state, terminated=terminated[:3], truncated=False, casts=CASTS)
    flags = {"terminated": terminated, "truncated": False, "casts": CASTS}
    state = from_arrays(fields, fbuf.resize(state, 20), next_observation=later, **flags)
    with pytest.warns(UserWarning, match="to_minari: 1 of 3 episodes"):
        dataset = out(state)
    assert [len(episode) for episode in dataset] == [3, 4]
