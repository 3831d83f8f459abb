"""Where episodes end, as TensorDicts say it: flags, ids, or both. No slice mixes two episodes."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from support.few import few

import fbuf

torch = pytest.importorskip("torch")
pytest.importorskip("tensordict")

from fbuf_adapters.pytorch import InteropError  # noqa: E402 (after the skip)
from fbuf_adapters.tensordict import TensorDictReplayBuffer  # noqa: E402 (after the skip)
from support import buffers  # noqa: E402 (after the skip)
from tensordict import TensorDict  # noqa: E402 (after the skip)

CAPACITY, BATCH = 24, 64
PAIRS = {"sampler": fbuf.Uniform(window=2), "view": fbuf.Sequence(2), "batch_size": 2 * BATCH}
"""Two steps of an episode; so many of them that each is drawn."""

LENGTHS = (3, 2, 3)
EPISODE = torch.repeat_interleave(torch.arange(3), torch.tensor(LENGTHS))
ENDS = torch.tensor([False, False, True, False, True, False, False, True])


def ours(**options):
    return TensorDictReplayBuffer(CAPACITY, **{**PAIRS, "seed": 0, **options})


def steps(true=EPISODE, flags=(), start=0, **more):
    """Steps that know their true episode, and say so only by what is asked for."""
    count = len(true)
    data = {"t": torch.arange(start, start + count), "true": true.clone(), **more}
    if flags:
        data["next"] = {name: flag.unsqueeze(-1) for name, flag in dict(flags).items()}
    return TensorDict(data, batch_size=[count])


def starts(rb):
    """The steps that pairs begin at, none of which goes from one episode into another."""
    batch = rb.sample()
    t, true = (batch[key].reshape(-1, 2) for key in ("t", "true"))
    assert torch.equal(t[:, 1], t[:, 0] + 1)
    assert torch.equal(true[:, 1], true[:, 0])
    return set(t[:, 0].tolist())


def flags_of(rb):
    return buffers.flags(rb.buffer.state)[: len(rb)]


# Ids.


def of_many(*cases):
    """Parameters: the first one, and the others for the sweep, for each compiles its own."""
    return [cases[0], *(pytest.param(case, marks=pytest.mark.sweep) for case in cases[1:])]


@pytest.mark.sweep
@pytest.mark.parametrize("key", [("collector", "traj_ids"), ("episode",), ("some", "where")])
def test_ids_end_episodes(key):
    data = steps()
    data[key] = EPISODE.unsqueeze(-1)
    rb = ours(traj_key=None if key[0] != "some" else key)
    rb.extend(data)
    assert starts(rb) == {0, 1, 3, 5, 6}
    assert flags_of(rb) == [0, 0, 2, 0, 2, 0, 0, 0]
    for _ in range(3):  # around the end, where the last episode of one call meets the next one
        rb.extend(data)
    assert len(rb) == CAPACITY
    assert starts(rb) == {0, 1, 3, 5, 6}


@pytest.mark.sweep
def test_ids_of_a_collector_come_before_others():
    data = steps(torch.zeros(8, dtype=torch.int64))
    data["collector", "traj_ids"] = torch.zeros(8, dtype=torch.int64)
    data["episode"] = torch.arange(8)
    rb = ours()
    rb.extend(data)
    assert starts(rb) == set(range(7))


@pytest.mark.sweep
@pytest.mark.parametrize(
    "dtype", of_many(torch.int64, torch.float32, torch.float64, torch.uint8), ids=str
)
def test_an_id_that_changes_between_two_calls_ends_the_episode(dtype):
    rb = ours()
    for start, number in ((0, 1), (8, 1), (16, 2)):
        episode = torch.full((8,), number, dtype=dtype)
        rb.extend(steps(episode, start=start, episode=episode))
        episode.zero_()  # it is the caller's again
    assert starts(rb) == set(range(23)) - {15}
    assert flags_of(rb) == [2 * (t == 15) for t in range(24)]


@pytest.mark.sweep
def test_an_id_that_changes_from_one_item_to_the_next():
    rb = ours()
    for row in steps(episode=EPISODE):
        rb.add(row)
    assert starts(rb) == {0, 1, 3, 5, 6}


@pytest.mark.sweep
def test_environments_have_an_id_each():
    rb = ours(num_envs=2)
    first = torch.tensor([[0, 0, 0, 1], [5, 5, 5, 5]])
    then = torch.tensor([[1, 2, 2, 2], [6, 6, 6, 6]])
    for start, episode in ((0, first), (4, then)):
        t = torch.tensor([[start], [start + 100]]) + torch.arange(4)
        rb.extend(TensorDict({"t": t, "true": episode, "episode": episode}, batch_size=[2, 4]))
    assert starts(rb) == {0, 1, 3, 5, 6, 100, 101, 102, 104, 105, 106}
    step = TensorDict({"t": [8, 108], "true": [3, 6], "episode": [3, 6]}, batch_size=[2])
    rb.extend(step)
    assert starts(rb) == {0, 1, 3, 5, 6, 100, 101, 102, 104, 105, 106, 107}


@pytest.mark.sweep
def test_ids_may_be_the_same_again_in_an_emptied_buffer():
    rb = ours()
    rb.extend(steps(episode=EPISODE))
    rb.empty()
    rb.extend(steps(torch.full((8,), 7), episode=torch.full((8,), 7)))
    assert starts(rb) == set(range(7))
    assert flags_of(rb) == [0] * 8


@pytest.mark.sweep
def test_ids_and_flags_end_episodes_together():
    ended = torch.arange(8) == 6
    rb = ours()
    rb.extend(steps(flags={"terminated": ended}, episode=EPISODE))
    assert starts(rb) == {0, 1, 3, 5}
    assert flags_of(rb) == [0, 0, 2, 0, 2, 0, 1, 0]


@pytest.mark.sweep
def test_flattened_rollouts_of_a_collector():
    """`[8, 25]` of environments that ended at different times, one after the other."""
    ids = torch.arange(8).repeat_interleave(25) * 3 + (torch.arange(200) % 25 > 9).long()
    data = TensorDict({"t": torch.arange(200), "true": ids}, batch_size=[200])
    data["collector", "traj_ids"] = ids
    rb = TensorDictReplayBuffer(
        1000, sampler=fbuf.Uniform(window=5), view=fbuf.Sequence(5), batch_size=5 * 1000
    )
    rb.extend(data)
    true = rb.sample()["true"].reshape(-1, 5)
    assert len(true) == 1000
    assert bool((true == true[:, :1]).all())


# Flags.


NEVER = torch.zeros(8, dtype=torch.bool)
FLAGS = of_many(
    ({"done": ENDS, "terminated": NEVER, "truncated": NEVER}, [0, 0, 2, 0, 2, 0, 0, 2]),
    ({"done": ENDS}, [0, 0, 1, 0, 1, 0, 0, 1]),
    ({"done": ENDS, "terminated": NEVER}, [0, 0, 2, 0, 2, 0, 0, 2]),
    ({"done": NEVER, "truncated": ENDS}, [0, 0, 2, 0, 2, 0, 0, 2]),
    ({"done": ENDS, "truncated": NEVER}, [0, 0, 1, 0, 1, 0, 0, 1]),
)


@pytest.mark.sweep
@pytest.mark.parametrize("given", FLAGS)
def test_done_ends_an_episode_wherever_it_is_set(given):
    """Beside a `terminated` that is False there, it is a truncation."""
    flags, expected = given
    rb = ours()
    rb.extend(steps(flags=flags))
    assert flags_of(rb) == expected
    assert starts(rb) == {0, 1, 3, 5, 6}


def test_all_kinds_of_flags_together():
    rb = ours()
    early = ENDS & (torch.arange(8) < 4)
    rb.extend(steps(flags={"done": ENDS, "terminated": early, "truncated": NEVER}))
    assert flags_of(rb) == [0, 0, 1, 0, 2, 0, 0, 2]


@pytest.mark.sweep
def test_flags_may_have_other_keys():
    data = steps()
    data["some", "end"] = ENDS.unsqueeze(-1)
    data["next", "done"] = torch.ones(8, 1, dtype=torch.bool)  # which does not matter then
    rb = ours(end_keys=[("some", "end")])
    rb.extend(data)
    assert starts(rb) == {0, 1, 3, 5, 6}


# Flags that cannot be read.


def refused(rb, data, match):
    """It is an error, and the rows are as before."""
    before = len(rb)
    with pytest.raises(InteropError, match=match):
        rb.extend(data)
    assert len(rb) == before


UNREADABLE = {
    "a flag for each agent": (
        lambda: TensorDict(
            {"t": torch.arange(8), "next": {"terminated": torch.zeros(8, 2, 1).bool()}}, [8]
        ),
        r"\('next', 'terminated'|'next', 'terminated'.*\[8, 2, 1\].*reduce it.*end_keys",
    ),
    "an id for each agent": (
        lambda: steps(episode=torch.zeros(8, 2)),
        r"'episode'.*one number a row.*\[8, 2\].*traj_key=False",
    ),
    "nothing": (steps, "follows episodes, but nothing in data says where they end.*traj_key"),
    "environments in turn": (
        lambda: steps(torch.arange(8) % 4, episode=torch.arange(8) % 4),
        "row 4 is of episode 0 again.*num_envs",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_an_error(name):
    make, match = UNREADABLE[name]
    refused(ours(), make(), match)
    if name != "nothing":  # a view alone does with one endless episode
        options = {"sampler": fbuf.Uniform(), "view": fbuf.Sequence(2, boundary="pad")}
        refused(ours(**options), make(), match)


@pytest.mark.sweep
@pytest.mark.parametrize("name", of_many(*UNREADABLE))
def test_who_does_not_follow_episodes_need_not_read_where_they_end(name):
    rb = TensorDictReplayBuffer(CAPACITY, batch_size=BATCH)
    rb.extend(UNREADABLE[name][0]())
    assert set(rb.sample()["t"].tolist()) == set(range(8))


def test_a_key_that_is_not_there():
    refused(ours(traj_key="run"), steps(flags={"done": ENDS}), "no 'run'.*traj_key")


@pytest.mark.sweep
def test_one_may_say_that_all_is_one_episode():
    rb = ours(traj_key=False, end_keys=())
    rb.extend(steps(episode=EPISODE, flags={"done": ENDS}).set("true", torch.zeros(8)))
    assert starts(rb) == set(range(7))


@pytest.mark.sweep
def test_an_id_may_be_used_again_where_its_episode_was_ended():
    episode = torch.tensor([0, 0, 0, 1, 1, 0, 0, 0])
    rb = ours()
    data = steps(flags={"done": ENDS})
    rb.extend(data.set("episode", episode))
    assert starts(rb) == {0, 1, 3, 5, 6}
    refused(ours(), steps(episode=episode), "row 5 is of episode 0 again")


@pytest.mark.sweep
def test_ids_and_the_step_that_resets():
    with pytest.raises(ValueError, match=r"traj_key.*next_step.*leave traj_key out"):
        ours(autoreset="next_step", traj_key="episode")
    rb = ours(autoreset="next_step")
    rb.extend(steps(episode=EPISODE, flags={"done": ENDS}))
    assert len(rb) == 6  # without two of the rows after an end


# Others write, too, and things fail.


def by_id(number, start, count=8):
    episode = torch.full((count,), number)
    return steps(episode, start=start, episode=episode)


@pytest.mark.sweep
def test_rows_that_fail_to_be_added_leave_no_episodes_mixed():
    rb = ours()
    rb.extend(by_id(1, 0))
    wrong = by_id(2, 8).set("more", torch.ones(8))
    refused(rb, wrong, "more")
    rb.extend(by_id(2, 8))
    assert starts(rb) == set(range(15)) - {7}


@pytest.mark.parametrize("through", few(["core", "saved", "removed"], "saved", "removed"))
def test_the_newest_episode_is_known_whoever_wrote_it(through):
    rb = ours()
    rb.extend(by_id(1, 0))
    if through == "core":
        items = {"t": np.arange(8, 16), "true": np.full(8, 3), "episode": np.full(8, 3)}
        rb.buffer.end_episode()
        rb.buffer.extend({k: torch.from_numpy(v) for k, v in items.items()})
        rb.extend(by_id(3, 16))
        assert starts(rb) == set(range(23)) - {7}
        return
    if through == "saved":
        saved, rb = rb.state_dict(), ours()
        rb.load_state_dict(saved, episodes="keep")
    else:
        rb.buffer.remove(fbuf.newest_ids(rb.buffer.state, 1))
    rb.extend(by_id(1, 8))
    rb.extend(by_id(2, 16))
    gone = {15} if through == "saved" else {6, 7, 15}
    assert starts(rb) == set(range(23)) - gone


@pytest.mark.parametrize("way", ["dumps", "state_dict", "pickle"])
@pytest.mark.parametrize("number", [1, 2])
def test_ids_that_begin_anew_after_a_load_go_on_in_no_episode(way, number, tmp_path):
    """Collectors of a new process count from the same number again."""
    rb, other = ours(), ours()
    rb.extend(by_id(1, 0))
    if way == "dumps":
        rb.dumps(tmp_path)
        other.loads(tmp_path)
    elif way == "state_dict":
        other.load_state_dict(rb.state_dict())
    else:
        other = pickle.loads(pickle.dumps(rb))
    other.extend(by_id(number, 8))
    assert starts(other) == set(range(15)) - {7}
    other.extend(by_id(number, 16))  # and this one does
    assert starts(other) <= set(range(23)) - {7}
    assert other.stats()["num_starts"] == 22


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy])
def test_a_copy_is_in_the_midst_of_the_same_episode(again):
    rb = ours()
    rb.extend(by_id(1, 0))
    other = again(rb)
    other.extend(by_id(1, 8))
    assert starts(other) == set(range(15))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("first", [True, False])
def test_an_interrupt_loses_no_row_and_mixes_no_episodes(when, first, monkeypatch):
    """Whether it comes before the rows are there or after, the next call goes on from what is."""
    rb = ours()
    if not first:
        rb.extend(by_id(1, 0))
    extend = rb.buffer.extend

    def interrupted(*args, **options):
        if when == "after":
            extend(*args, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rb.buffer, "extend", interrupted)
        with pytest.raises(KeyboardInterrupt):
            rb.extend(by_id(2, 8))
    before = 8 * (not first) + 8 * (when == "after")
    assert len(rb) == before
    assert rb.extend(by_id(2, 16)).tolist() == list(range(before, before + 8))
    found = starts(rb) if when == "before" else pairs_of(rb)
    assert {16, 22} <= found
    assert 7 not in found


def pairs_of(rb):
    """The steps that pairs begin at, where steps may be missing in between."""
    batch = rb.sample()
    true = batch["true"].reshape(-1, 2)
    assert torch.equal(true[:, 1], true[:, 0])
    return set(batch["t"].reshape(-1, 2)[:, 0].tolist())


@pytest.mark.sweep
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(1, 40))]
)
def test_any_way_to_add_episodes(seed):
    """Ids, flags or both, item by item or eight at a time, with interruptions: always whole."""
    random = np.random.default_rng(seed)
    by_ids, by_flags = [(True, False), (False, True), (True, True)][seed % 3]
    rb, number, t = ours(traj_key=None if by_ids else False), 0, 0
    told: list[tuple[int, int]] = []
    for _ in range(24):
        if random.random() < 0.05:
            rb.empty()
            told.clear()
        if random.random() < 0.1:
            rb.load_state_dict(rb.state_dict(), episodes="keep")
        count = int(random.choice([1, 8]))
        true, ended = [], []
        for _ in range(count):
            true.append(number)
            ended.append(bool(random.random() < 0.25))
            number += ended[-1]
        data = steps(torch.tensor(true), start=t)
        if by_flags:
            data["next", "done"] = torch.tensor(ended).unsqueeze(-1)
        if by_ids:
            data["episode"] = torch.tensor(true) % 2**31
        if count == 1:
            rb.add(data[0])
        else:
            rb.extend(data)
        told += zip(range(t, t + count), true, strict=True)
        t += count
        kept = told[-CAPACITY:]
        expected = {one[0] for one, other in itertools.pairwise(kept) if one[1] == other[1]}
        if expected:
            assert starts(rb) <= expected
            num_starts = int(rb.buffer.stats()["num_starts"])
            assert num_starts == len(expected)


# Other forms of TensorDicts, and things that are none.


@pytest.mark.parametrize("envs", [None, 2])
@pytest.mark.parametrize("kind", [TensorDict, dict])
def test_a_list_of_items_is_a_batch(kind, envs):
    size = [] if envs is None else [envs]
    items = [kind({"t": torch.full(size, n), "obs": torch.ones(*size, 3)}) for n in range(4)]
    if kind is TensorDict:
        for item in items:
            item.batch_size = size
    rb = TensorDictReplayBuffer(CAPACITY, num_envs=envs, batch_size=4)
    slots = rb.extend(items)
    assert slots.shape == torch.Size([*size, 4])
    assert rb[:]["t"].tolist() == ([0, 1, 2, 3] if envs is None else [[0, 1, 2, 3]] * 2)
    for wrong, match in (
        ([], "data is an empty list"),
        ([items[0], {"t": torch.zeros(size)}], "cannot be stacked|differs"),
        ([items[0], torch.ones(3)], "data must be a TensorDict or a dict"),
    ):
        with pytest.raises(InteropError, match=match):
            rb.extend(wrong)
    assert len(rb) == 4 * (envs or 1)


def test_a_batch_is_no_item():
    rb = TensorDictReplayBuffer(CAPACITY)
    rb.add(TensorDict({"obs": torch.zeros(3)}))
    with pytest.raises(InteropError, match=r"add: data has the batch size \[5\].*use extend\(\)"):
        rb.add(TensorDict({"obs": torch.zeros(5, 3)}, batch_size=[5]))
    assert len(rb) == 1


@pytest.mark.parametrize("made", [None, (1, 2)], ids=["nothing", "tuple"])
def test_what_a_transform_returns_is_a_tensordict(made):
    class Wrong:
        def __call__(self, batch):
            return made

        def inv(self, data):
            return data if made is None else made

    for transform in (Wrong(), lambda batch: made):
        rb = TensorDictReplayBuffer(CAPACITY, batch_size=2)
        rb.extend(steps())
        rb.append_transform(transform)
        for read in (rb.sample, lambda rb=rb: rb[:], lambda rb=rb: next(rb.episodes())):
            with pytest.raises(
                TypeError, match=r"the transform .* returned a .* instead of a Tens"
            ):
                read()
        if made is not None and hasattr(transform, "inv"):
            with pytest.raises(TypeError, match=r"the transform .*Wrong returned a tuple instead"):
                rb.extend(steps())
        assert len(rb) == len(EPISODE)


def test_collectors_of_several_processes_are_refused():
    """As TorchRL's ask: is there a storage that has been filled? Then share it."""
    rb = ours()
    assert not hasattr(rb, "_storage")
    assert not hasattr(rb, "shared")
    for ask in (lambda: rb._storage.initialized, lambda: rb.share()):
        with pytest.raises(AttributeError, match=r"MultiSyncCollector.*rb\.extend\(data\)"):
            ask()
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        rb.nothing  # noqa: B018 (to read it is what raises)
    torchrl = pytest.importorskip("torchrl.collectors")
    make = lambda: None
    with pytest.raises(AttributeError, match=r"MultiSyncCollector.*rb\.extend\(data\)"):
        torchrl.MultiSyncCollector([make], frames_per_batch=4, total_frames=8, replay_buffer=rb)


# Beginnings.

BEGINS = torch.tensor([True, False, False, True, False, True, False, False])


@pytest.mark.parametrize("shape", few([[8], [8, 1]], [8, 1]))
@pytest.mark.parametrize("told", few(["alone", "flags", "ids"], "alone", "flags"))
def test_a_row_that_begins_an_episode_ends_the_one_before_it(shape, told):
    rb = ours()
    more = {"episode": EPISODE} if told == "ids" else {}
    flags = {"done": ENDS & (torch.arange(8) < 3)} if told == "flags" else {}
    for start in (0, 8):  # the second call begins with one, too
        rb.extend(steps(EPISODE + start, flags, start, is_init=BEGINS.reshape(shape), **more))
    assert starts(rb) == {0, 1, 3, 5, 6, 8, 9, 11, 13, 14}
    end = 1 if told == "flags" else 2
    assert flags_of(rb) == [0, 0, end, 0, 2, 0, 0, 2, 0, 0, end, 0, 2, 0, 0, 0]


@pytest.mark.sweep
def test_rows_one_by_one_and_a_state_of_another():
    rb = ours()
    for row in steps(is_init=BEGINS):
        rb.add(row)
    rb.buffer.write(fbuf.newest_ids(rb.buffer.state, 1), {})  # somebody else has changed it
    rb.extend(steps(EPISODE + 8, start=8, is_init=BEGINS))
    assert starts(rb) == {0, 1, 3, 5, 6, 8, 9, 11, 13, 14}


@pytest.mark.sweep
def test_environments_begin_on_their_own():
    rb = ours(num_envs=2)
    begins = torch.tensor([[True, False, True, False], [True, False, False, False]])
    true = torch.tensor([[0, 0, 1, 1], [2, 2, 2, 2]])
    t = torch.arange(8).reshape(2, 4)
    rows = {"t": t, "true": true, "is_init": begins.unsqueeze(-1)}
    rb.extend(TensorDict(rows, batch_size=[2, 4]))
    begins = torch.tensor([[False, False, False, False], [True, False, False, False]])
    more = {"t": t + 4 + 4 * (t > 3), "true": torch.tensor([[1] * 4, [3] * 4])}
    more["t"] = t + 8
    more["is_init"] = begins.unsqueeze(-1)
    rb.extend(TensorDict(more, batch_size=[2, 4]))
    flags = buffers.flags(rb.buffer.state)
    assert flags[:16:2] == [0, 2, 0, 0, 0, 0, 0, 0]
    assert flags[1:16:2] == [0, 0, 0, 2, 0, 0, 0, 0]


@pytest.mark.sweep
def test_beginnings_can_have_another_key_or_none():
    data = steps(is_init=BEGINS)
    rb = ours(init_key=("agents", "begins"))
    refused(rb, data, "nothing in data says where they end")
    data["agents", "begins"] = data["is_init"]
    rb.extend(data)
    assert starts(rb) == {0, 1, 3, 5, 6}
    refused(ours(init_key=None), data, "nothing in data says where they end")
    rb = ours(init_key=None)
    rb.extend(steps(torch.zeros(8), flags={"done": BEGINS & ~BEGINS}, is_init=BEGINS))
    assert starts(rb) == set(range(7))
    two = torch.zeros(8, 2, dtype=torch.bool)
    refused(ours(), steps(is_init=two), r"'is_init'\] must be one flag a row")
    rb = ours(sampler=fbuf.Uniform(), view=fbuf.Item(), batch_size=4)
    rb.extend(steps(is_init=two))  # nobody asks
    assert len(rb) == 8


@pytest.mark.sweep
def test_episodes_may_be_ended_by_a_call():
    rb = ours(traj_key=False, end_keys=(), num_envs=2)
    t = torch.arange(6).reshape(2, 3)
    data = TensorDict({"t": t, "true": t}, batch_size=[2, 3])
    rb.extend(data)
    rb.end_episode(torch.tensor([True, False]))
    assert buffers.flags(rb.buffer.state)[:6] == [0, 0, 0, 0, 2, 0]
    slots = rb.extend(data)
    assert slots.tolist() == [[6, 8, 10], [7, 9, 11]]
    rb.end_episode()
    assert buffers.flags(rb.buffer.state)[:12] == [0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 2, 2]
    one = ours()
    one.end_episode()  # the first reset comes before the first row
    one.extend(by_id(1, 0))
    one.end_episode()
    one.extend(by_id(1, 8))  # an id that is used again is another episode
    assert starts(one) == set(range(15)) - {7}


@pytest.mark.sweep
def test_what_an_init_tracker_stores():
    """A collector that resets at each iteration marks no end where it leaves an episode."""
    pytest.importorskip("torchrl")
    pytest.importorskip("gymnasium")
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, InitTracker, TransformedEnv

    make = lambda: TransformedEnv(GymEnv("CartPole-v1"), InitTracker())
    rb = TensorDictReplayBuffer(200, traj_key=False, **PAIRS)
    for data in Collector(make, frames_per_batch=30, total_frames=90, reset_at_each_iter=True):
        rb.extend(data)
    begins = [episode["is_init"][:, 0].tolist() for episode in rb.episodes()]
    assert all(one == [True] + [False] * (len(one) - 1) for one in begins)
    assert sum(map(len, begins)) == 90
    assert len(begins) == int(rb[:]["is_init"].sum()) > 3


@pytest.mark.parametrize("who", ["core", "cleared", "priorities"])
def test_rows_of_other_code_go_on_in_no_episode(who):
    """Nothing but the flags tells of ends here, and these rows have none."""
    flags = {"done": torch.zeros(8, dtype=torch.bool)}
    rb = ours(traj_key=False)
    rb.extend(steps(torch.zeros(8), flags))
    if who == "core":
        rows = {"t": torch.arange(20, 24), "true": torch.ones(4)}
        rb.buffer.end_episode()
        rb.buffer.extend(rows | {"next": {"done": torch.zeros(4, 1, dtype=torch.bool)}})
    elif who == "cleared":
        rb.buffer.empty()
    else:
        rb.buffer.remove(fbuf.Ids(torch.tensor([-1]).int(), torch.tensor([0]).int()))
    rb.extend(steps(torch.zeros(8), flags, start=8))
    ends = {"core": [7, 11], "cleared": [], "priorities": []}[who]
    assert [n for n, flag in enumerate(flags_of(rb)) if flag] == ends
