"""The command line: what it prints is so, and a script can trust its exit code."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.own import Hot

import fbuf
from fbuf.checkpoint import manifest
from fbuf.command import inspect, opened, plan
from fbuf.command.main import main
from fbuf.doctor import draws, picture

SHAPES = [
    pytest.param(None, True, marks=pytest.mark.sweep),
    pytest.param(3, True, marks=pytest.mark.sweep),
    (3, False),
]


def looked(path):
    """The content of the newest checkpoint."""
    return opened.read(path, inspect.found)


class Played:
    """A buffer, and each episode that is there whole: its length and its return."""

    def __init__(
        self, envs, lockstep, autoreset="same_step", steps=40, field="reward", gone=frozenset()
    ):
        lanes, length, rng = envs or 1, 30, np.random.default_rng(0)
        sampler = fbuf.Prioritized(alpha=1.0, eps=0.0)
        item = {"obs": jnp.zeros(2), "of": {field: jnp.float32(0)}}
        self.state = fbuf.init(
            item, length * lanes, num_envs=envs, lockstep=lockstep, autoreset=autoreset,
            sampler=sampler,
        )  # fmt: skip
        shape = (envs,) if envs else ()
        rows = [[] for _ in range(lanes)]  # of each lane: reward, end, dummy
        for _ in range(steps):
            reward = rng.integers(0, 5, shape).astype(np.float32)
            ends, priority = rng.random(shape) < 0.2, rng.integers(1, 9, shape).astype(np.float32)
            mask = rng.random(shape) < (1.0 if lockstep else 0.8)
            given = {} if lockstep else {"mask": mask}
            row = {"obs": np.zeros((*shape, 2), np.float32), "of": {field: reward}}
            self.state = fbuf.add(self.state, row, terminated=ends, priority=priority, **given)
            each = (np.reshape(x, -1) for x in (reward, ends, mask))
            for lane, (r, e, m) in zip(rows, zip(*each, strict=True), strict=True):
                if m:
                    dummy = autoreset == "next_step" and bool(lane) and lane[-1][1]
                    lane.append((r, e and not dummy, dummy))
        self.lengths, self.returns = [], []
        for number, lane in enumerate(rows):
            begin, episode = len(lane) - min(len(lane), length), None
            for at, (r, e, dummy) in enumerate(lane):
                if at == 0 or lane[at - 1][1]:
                    episode = []
                if dummy:
                    episode = []
                    continue
                episode.append((at, r))
                # Once rows are gone, the oldest episode may have begun before the oldest row.
                slots = {at % length * lanes + number for at, _ in episode}
                if e and episode[0][0] >= begin + (begin > 0) and not slots & gone:
                    self.lengths.append(len(episode))
                    self.returns.append(sum(r for _, r in episode))


@pytest.mark.parametrize(
    "steps", [70, *(pytest.param(steps, marks=pytest.mark.sweep) for steps in (20, 30))]
)  # around; not full; exactly full
@pytest.mark.parametrize(
    "autoreset", [pytest.param("same_step", marks=pytest.mark.sweep), "next_step"]
)
@pytest.mark.parametrize(("envs", "lockstep"), SHAPES)
def test_what_a_checkpoint_holds(tmp_path, envs, lockstep, autoreset, steps):
    played = Played(envs, lockstep, autoreset, steps, gone={3, 4})
    state = played.state
    state = fbuf.remove(state, fbuf.ids_at(state, jnp.array([3, 4])))
    fbuf.save(tmp_path, state)
    found = looked(tmp_path)
    of, stats = found.figures, fbuf.stats(state, detailed=True)
    assert sorted(found.episodes.lengths) == sorted(played.lengths)
    assert sorted(found.episodes.returns) == sorted(played.returns)
    assert of["reward"] == "of.reward"
    assert (of["rows"], of["oldest"]) == (int(stats["size"]), int(stats["oldest"]))
    assert of["removed"] + of["dummies"] == int(stats["removed"])
    assert of["fill"] == pytest.approx(float(stats["fill"]))
    assert of["memory"] == int(stats["bytes"])
    assert of["effective sample size"] == pytest.approx(float(stats["effective_sample_size"]))
    likely = np.asarray(fbuf.probability(state, fbuf.rows(state).ids)).reshape(-1)
    likely = likely[likely > 0] * int(stats["size"])
    np.testing.assert_allclose(np.sort(found.draws.likely), np.sort(likely), rtol=1e-5)
    written = (file for file in tmp_path.glob("shard-*/*") if file.is_file())
    assert of["bytes on disk"] == sum(file.stat().st_size for file in written)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "changed",
    [fbuf.clear, pytest.param(lambda state: fbuf.resize(state, 40), marks=pytest.mark.sweep)],
)
def test_the_first_episode_is_whole_where_nothing_was_overwritten(tmp_path, changed):
    state = fbuf.init({"reward": jnp.float32(0)}, 20)
    new = {"reward": jnp.array([1.0, 2.0, jnp.nan, 1e30, 5.0])}
    state = fbuf.add(state, new, terminated=jnp.array([False, True, True, True, True]))
    state = changed(state)
    if not int(fbuf.size(state)):
        state = fbuf.add(state, new, terminated=jnp.array([False, True, True, True, True]))
    fbuf.save(tmp_path, state)
    found = looked(tmp_path)
    assert found.episodes.lengths.tolist() == [2, 1, 1, 1]
    np.testing.assert_allclose(found.episodes.returns, [3.0, np.nan, 1e30, 5.0])
    assert json.loads(json.dumps(found.figures, allow_nan=False))["return"][0] == 3.0


@pytest.mark.sweep
def test_numbers_of_64_bits(tmp_path, capsys):
    with jax.enable_x64(True):
        state = fbuf.init({"reward": jnp.float64(0)}, 20)
        fbuf.save(tmp_path, fbuf.add(state, {"reward": jnp.ones(3)}))
    assert main(["inspect", str(tmp_path)]) == 0
    assert "reward: float64[]" in capsys.readouterr().out
    assert not jax.config.jax_enable_x64


@pytest.mark.sweep
def test_rows_that_were_written_since(tmp_path):
    """A return is of the rewards as they are now, in new files and in files of changed rows."""
    state = fbuf.init({"reward": jnp.float32(0)}, 10)
    rewards = jnp.arange(10, dtype=jnp.float32)
    state = fbuf.add(state, {"reward": rewards}, terminated=jnp.arange(10) % 5 == 4)
    state = fbuf.save(tmp_path, state)
    state = fbuf.write(state, fbuf.ids_at(state, jnp.array([2])), {"reward": jnp.array([100.0])})
    state = fbuf.add(state, {"reward": rewards[:1] + 50.0}, terminated=jnp.array([True]))
    fbuf.save(tmp_path, state)
    # The first episode has lost its first row.
    assert sorted(looked(tmp_path).episodes.returns) == [35.0, 50.0]


@pytest.mark.sweep
@pytest.mark.parametrize("next_of", [None, "obs"])
def test_how_a_buffer_was_made(tmp_path, capsys, next_of):
    made = {
        "autoreset": "next_step", "lockstep": False, "next_of": next_of,
        "max_ends": 6 if next_of else None,
    }  # fmt: skip
    fbuf.save(tmp_path, fbuf.init({"obs": jnp.zeros(2)}, 30, num_envs=3, **made))
    figures = looked(tmp_path).figures
    assert {name: figures[name] for name in made} == made
    assert main(["inspect", str(tmp_path)]) == 0
    said = "autoreset='next_step', lockstep=False, next_of="
    said += "'obs', max_ends=6" if next_of else "None"
    assert f"options     {said}\n" in capsys.readouterr().out


def saved(path, rewards, ends, **options):
    """A checkpoint of these rewards; they end episodes at some places."""
    rewards = jnp.asarray(rewards)
    item = {"reward": jax.ShapeDtypeStruct(rewards.shape[1:], rewards.dtype)}
    state = fbuf.init(item, 8, **options)
    ends = np.isin(np.arange(len(rewards)), ends)
    if len(rewards):
        state = fbuf.add(state, {"reward": rewards}, terminated=ends)
    fbuf.save(path, state)


def as_json(path, capsys):
    """The figures as a strict reader finds them: one that knows no NaN."""
    assert main(["inspect", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "dtype", [jnp.bfloat16, pytest.param(jnp.float32, marks=pytest.mark.sweep)]
)
def test_rewards_that_are_not_finite(tmp_path, capsys, dtype):
    rewards = jnp.array([1, np.nan, np.inf, -np.inf, 2, 3, np.nan], dtype)
    saved(tmp_path, rewards, [1, 3, 5])
    found = as_json(tmp_path, capsys)
    assert (found["episodes"], found["return"]) == (3, [5.0, 5.0, 5.0])
    assert (found["returns not finite"], found["rewards not finite"]) == (2, 4)
    assert main(["inspect", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "\nreturns     5 to 5, median 5; 2 of 3 are NaN or infinite\n" in said
    assert "\nrewards     4 of 7 are NaN or infinite\n" in said


@pytest.mark.sweep
def test_no_return_is_finite(tmp_path, capsys):
    saved(tmp_path, [np.nan, 1.0], [0])
    found = as_json(tmp_path, capsys)
    assert (found["return"], found["returns not finite"]) == (None, 1)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "\nreturns     1 of 1 is NaN or infinite\n" in capsys.readouterr().out


@pytest.mark.sweep
def test_returns_near_the_largest_number(tmp_path, capsys):
    """A sum that overflows is such a return; a median that would overflow is right."""
    with jax.enable_x64(True):
        saved(tmp_path, np.array([1e308, 1.5e308, 1e308, 1e308]), [0, 1, 3])
    found = as_json(tmp_path, capsys)
    assert found["return"] == [1e308, 1.25e308, 1.5e308]
    assert (found["returns not finite"], found["rewards not finite"]) == (1, 0)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("rewards", "said"),
    [
        (np.ones((3, 2), np.float32), "reward is float32[2], and not one real number a row"),
        pytest.param(
            np.ones(3, np.complex64), "reward is complex64[], and not", marks=pytest.mark.sweep
        ),
    ],
)
def test_a_reward_that_is_not_one_number(tmp_path, capsys, rewards, said):
    saved(tmp_path, rewards, [1])
    assert main(["inspect", str(tmp_path)]) == 0
    assert f"\nreturns     {said}" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path), "--reward", "reward"]) == 2
    assert "--reward names 'reward', which is not one" in capsys.readouterr().err
    found = as_json(tmp_path, capsys)
    assert (found["reward"], found["return"], found["rewards not finite"]) == (None, None, None)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "dtype", [jnp.int8, *(pytest.param(d, marks=pytest.mark.sweep) for d in ("bool", "int32"))]
)
def test_a_reward_of_whole_numbers(tmp_path, capsys, dtype):
    """They are summed as they are: 200 is no int8."""
    saved(tmp_path, jnp.array([100, 100, 1, 0], dtype), [1, 3])
    sums = [1.0, 1.5, 2.0] if dtype == "bool" else [1.0, 100.5, 200.0]
    assert as_json(tmp_path, capsys)["return"] == sums


class Point(NamedTuple):
    x: jax.Array
    reward: jax.Array


@pytest.mark.sweep
def test_classes_of_ones_own(tmp_path, capsys):
    """Nothing but their names is known, and no code of theirs is run."""
    item = Point(jnp.zeros(2), jnp.float32(0))
    state = fbuf.init(item, 8, sampler=Hot())
    state = fbuf.add(state, Point(jnp.zeros((3, 2)), jnp.ones(3)), terminated=np.arange(3) == 2)
    fbuf.save(tmp_path, state, extra=Point(1, 2))
    assert main(["inspect", str(tmp_path)]) == 0
    found = capsys.readouterr().out
    assert "Hot(threshold=1.0)" in found
    assert "Point(" in found
    assert "the sampler is one of your own" in found
    assert "no field called reward" in found
    assert "1 whole, of 3 to 3, median 3 rows" in found


@pytest.mark.sweep
def test_inspect_as_it_is_used(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path, picture = tmp_path / "saved", tmp_path / "out.png"
    state = Played(3, True, field="r2").state
    fbuf.save(path, state, extra={"step": 3})
    assert main(["inspect", str(path), "--reward", "of.r2", "--plot", str(picture)]) == 0
    text = capsys.readouterr().out
    for words in ("Prioritized(", "float32[2]", "3 environments", "step", "median"):
        assert words in text
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 90
    for reward in ("nothing", "of", "obs"):
        assert main(["inspect", str(path), "--reward", reward]) == 2
        assert "--reward" in capsys.readouterr().err


@pytest.mark.sweep
@pytest.mark.parametrize("lockstep", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_episodes_come_in_the_order_of_their_ends(tmp_path, lockstep):
    state = fbuf.init({"reward": jnp.float32(0)}, 12, num_envs=2, lockstep=lockstep)
    ends = np.array([[0, 0, 1, 0, 1, 0], [1, 0, 0, 1, 0, 0]], bool)
    rewards = np.array([[1, 2, 4, 8, 16, 32], [64, 128, 256, 512, 1024, 2048]], np.float32)
    fbuf.save(tmp_path, fbuf.add(state, {"reward": rewards}, terminated=ends))
    found = looked(tmp_path).episodes
    assert found.ended.tolist() == [6, 4, 3, 2]
    assert found.returns.tolist() == [64, 7, 128 + 256 + 512, 8 + 16]
    assert found.lengths.tolist() == [1, 3, 3, 2]


@pytest.mark.sweep
def test_priorities_by_age(tmp_path):
    """Rows of each environment, also around the end of the ring, without removed rows."""
    state = fbuf.init(jnp.zeros(()), 6, num_envs=2, sampler=fbuf.Prioritized(alpha=1.0, eps=0.0))
    priority = np.array([[9, 1, 2, 3], [9, 4, 5, 0]], np.float32)
    state = fbuf.add(state, np.zeros((2, 4), np.float32), priority=priority)
    fbuf.save(tmp_path, fbuf.remove(state, fbuf.ids_at(state, jnp.array([2]))))
    found = looked(tmp_path).draws
    by_age = sorted(zip(found.ages.tolist(), found.likely.tolist(), strict=True))
    assert [age for age, _ in by_age] == [1, 2, 2, 3]
    assert [of for _, of in by_age] == pytest.approx([12 / 14, 8 / 14, 20 / 14, 16 / 14])


def test_draws_of_shards_are_in_proportion_to_their_masses():
    one = draws.Draws(np.array([0.5, 1.5]), np.array([2, 1]), np.array([0, 3]), mass=4.0)
    empty = draws.Draws(np.zeros(0), np.zeros(0, int), np.zeros(0, int), mass=0.0)
    last = draws.Draws(np.ones(1), np.array([1]), np.array([2]), mass=1.0)
    found = draws.together([one, empty, last], 5)
    np.testing.assert_allclose(found.likely, [0.6, 1.8, 0.6])
    assert found.ages.tolist() == [2, 1, 1]
    assert found.slots.tolist() == [0, 3, 12]
    assert draws.together([empty, empty], 5).effective == 0


@pytest.mark.sweep
@pytest.mark.parametrize(
    "sampler",
    [
        fbuf.Prioritized(alpha=1.0, eps=0.0),
        fbuf.Uniform(),
        fbuf.Uniform(window=2, by="episode"),
        fbuf.Mixture(),
    ],
)
def test_draws_of_all_shards_together(tmp_path, capsys, sampler):
    """As those of one buffer with the same rows, whatever the shards have of them."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "data")
    item, options = {"reward": jnp.zeros(())}, {"num_envs": 2, "sampler": sampler}
    shards = fbuf.sharded.init(item, 12, mesh=mesh, shards=2, **options)
    one = fbuf.init(item, 12, **options)
    rows = {"reward": np.array([[1, 2, np.nan, 3], [1, 2, 3, 4]], np.float32)}
    given = {"terminated": np.array([[0, 1, 0, 1], [0, 0, 0, 1]], bool)}
    if sampler.keeps_priorities:
        given["priority"] = np.array([[1, 2, 3, 0], [7, 5, 5, 9]], np.float32)
    fbuf.sharded.save(tmp_path / "shards", fbuf.sharded.add(shards, rows, **given))
    fbuf.save(tmp_path / "one", fbuf.add(one, rows, **given))
    found, expected = looked(tmp_path / "shards"), looked(tmp_path / "one")
    counts = found.figures["returns not finite"], found.figures["rewards not finite"]
    assert counts == (1, 1)
    assert found.episodes.returns[0] == 3
    if isinstance(sampler, fbuf.Mixture):
        assert "depend on all shards" in inspect.table(found)
        return
    of, wanted = (
        sorted(zip(one.draws.ages.tolist(), one.draws.likely.round(4).tolist(), strict=True))
        for one in (found, expected)
    )
    np.testing.assert_allclose(of, wanted, rtol=1e-3)
    assert found.figures["likely"] == pytest.approx(expected.figures["likely"])


def drawn(path):
    """The parts of the picture by their titles, of which no pixel is computed."""
    pytest.importorskip("matplotlib")
    return {axes.get_title(): axes for axes in picture.drawn(looked(path), "title").axes}


def points(axes):
    """Where the dots are, and where the means."""
    return [line.get_xydata().tolist() for line in axes.lines]


RETURNS, DRAWS = "returns over time", "which rows are drawn, by age"


@pytest.mark.sweep
def test_a_picture_of_returns_and_priorities(tmp_path):
    sampler = fbuf.Prioritized(alpha=1.0, eps=0.0)
    state = fbuf.init({"reward": jnp.float32(0)}, 5, sampler=sampler)
    rewards = jnp.array([1.0, np.nan, 3.0, 5.0])
    state = fbuf.add(
        state, {"reward": rewards}, terminated=jnp.ones(4, bool),
        priority=jnp.array([1.0, 2.0, 20.0, 1.0]),
    )  # fmt: skip
    fbuf.save(tmp_path, state)
    found = drawn(tmp_path)
    each, mean, bad = points(found[RETURNS])
    assert each == mean == [[1, 1], [3, 3], [4, 5]]
    assert bad == [[2, pytest.approx(0.02)]]
    each, mean = (sorted(of) for of in points(found[DRAWS]))
    expected = np.array([[1, 1 / 6], [2, 20 / 6], [3, 2 / 6], [4, 1 / 6]])
    np.testing.assert_allclose(each, expected, rtol=1e-5)
    np.testing.assert_allclose(mean, expected, rtol=1e-5)
    assert found[DRAWS].get_yscale() == "log"


@pytest.mark.sweep
def test_a_picture_of_many_rows(tmp_path):
    """These have means, and no dot for each."""
    state = fbuf.init({"reward": jnp.float32(0)}, 5000)
    new = {"reward": jnp.arange(5000.0)}
    fbuf.save(tmp_path, fbuf.add(state, new, terminated=jnp.ones(5000, bool)))
    found = drawn(tmp_path)
    (mean,) = points(found[RETURNS])
    assert len(mean) == 50
    assert mean[0] == [50.5, 49.5]
    (band,) = found[RETURNS].collections
    assert band.get_datalim(found[RETURNS].transData).get_points()[:, 1].tolist() == [0, 4999]
    (mean,) = points(found[DRAWS])
    assert [of for _, of in mean] == pytest.approx([1.0] * 50)


@pytest.mark.parametrize(
    ("rewards", "options", "said"),
    [
        pytest.param([0.5], {}, None, marks=pytest.mark.sweep),  # one row
        pytest.param(
            np.ones((3, 2), np.float32),
            {},
            "reward is float32[2], and not one",
            marks=pytest.mark.sweep,
        ),
        pytest.param([np.nan], {"sampler": fbuf.Fifo()}, "none is finite", marks=pytest.mark.sweep),
        ([1.0], {"sampler": fbuf.Fifo()}, "none: rows are read once"),
        (np.zeros(0, np.float32), {}, "none"),
        pytest.param([1e308, -1e308], {}, "too large to draw", marks=pytest.mark.sweep),
        pytest.param([1.0, 1 + 2.0**-52], {}, None, marks=pytest.mark.sweep),
    ],
)
def test_a_picture_of_little(tmp_path, rewards, options, said):
    with jax.enable_x64(np.asarray(rewards).dtype == np.float64 and np.size(rewards) == 2):
        saved(tmp_path, rewards, range(2), **options)
    with jax.enable_x64(True):  # as the command has it
        found = drawn(tmp_path)
    texts = [text.get_text().replace("\n", " ") for axes in found.values() for text in axes.texts]
    texts = [text for text in texts if text != "the sampler keeps no priorities"]
    assert any(said in text for text in texts) if said else not texts
    bars = [bar for axes in found.values() if axes.get_ylabel() == "count" for bar in axes.patches]
    assert all(bar.get_width() > 1e-3 for bar in bars)


@pytest.mark.sweep
def test_the_picture_is_named(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    saved(tmp_path / r"$\q$", [1.0, 2.0], [1])
    out = tmp_path / "picture"
    assert main(["inspect", str(tmp_path / r"$\q$"), "--plot", str(out)]) == 0
    assert f"\nplot        {out}.png\n" in capsys.readouterr().out
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert main(["inspect", str(tmp_path / r"$\q$"), "--json", "--plot", f"{out}.svg"]) == 0
    assert json.loads(capsys.readouterr().out)["plot"] == f"{out}.svg"


def test_an_empty_buffer(tmp_path, capsys):
    fbuf.save(tmp_path, fbuf.init({"reward": 0.0}, 5, sampler=fbuf.Uniform(window=2)))
    assert main(["inspect", str(tmp_path)]) == 0
    assert "no row can be drawn" in capsys.readouterr().out


@pytest.mark.sweep
def test_verify(tmp_path, capsys):
    state = fbuf.add(fbuf.init(jnp.zeros(10), 100), jnp.ones((50, 10)))
    state = fbuf.save(tmp_path, state)
    fbuf.save(tmp_path, fbuf.add(state, jnp.ones((5, 10))))
    assert main(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("whole") == 2
    file = tmp_path / "shard-00000" / "rows-00000002.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert main(["verify", str(tmp_path)]) == 1
    found = capsys.readouterr().out.splitlines()
    assert found[0].startswith("MANIFEST-00000002: ")
    assert "rows-00000002.npy is damaged" in found[0]
    assert found[1] == "MANIFEST-00000001: whole"


@pytest.mark.sweep
def test_beside_a_run_that_goes_on_saving(tmp_path, capsys, monkeypatch):
    """A checkpoint deleted while it is read is no damage: there is a newer one."""
    state = fbuf.add(fbuf.init(jnp.zeros(()), 9), jnp.arange(5.0))
    state = fbuf.save(tmp_path, state, extra=0)
    more = fbuf.add(state, jnp.ones(9), donate=False)
    read, turns = manifest.read, iter(range(1, 4))

    def saved_meanwhile(folder, number):
        nonlocal more
        found = read(folder, number)
        if (turn := next(turns, None)) is not None:
            monkeypatch.setattr(manifest, "read", read)
            more = fbuf.save(tmp_path, more, extra=turn, keep=1)
            monkeypatch.setattr(manifest, "read", saved_meanwhile)
        return found

    monkeypatch.setattr(manifest, "read", saved_meanwhile)
    assert looked(tmp_path).figures["rows"] == 9
    turns = iter([9])
    assert main(["verify", str(tmp_path)]) == 0
    assert "whole" not in capsys.readouterr().out  # that one is gone


@pytest.mark.sweep
def test_a_newer_format_is_no_damage(tmp_path, capsys, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(manifest, "FORMAT", manifest.FORMAT + 1)
        fbuf.save(tmp_path, fbuf.init(jnp.zeros(()), 3))
    for command in ("inspect", "verify"):
        assert main([command, str(tmp_path)]) == 2
    assert capsys.readouterr().out.count(f"has format {manifest.FORMAT + 1}") == 1
    nowhere = str(tmp_path / "none" / "out.png")
    fbuf.save(tmp_path / "saved", fbuf.init(jnp.zeros(()), 3))
    assert main(["inspect", str(tmp_path / "saved"), "--plot", nowhere]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.sweep
def test_a_checkpoint_over_a_mesh(tmp_path, capsys):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), "data")
    item = {"reward": jnp.zeros(())}
    state = fbuf.sharded.init(
        item, 40, mesh=mesh, shards=2, num_envs=4, next_of="reward", max_ends=8
    )
    rewards = np.arange(4, dtype=np.float32)
    for turn in range(3):
        ends = np.full(4, turn == 2)
        state = fbuf.sharded.add(
            state, {"reward": rewards}, terminated=ends, next_observation=rewards
        )
    state = fbuf.sharded.remove(state, fbuf.sharded.ShardedIds(*np.int32([[1], [0], [0]])))
    state = fbuf.sharded.save(tmp_path, state, extra={"step": 3})
    found = looked(tmp_path)
    figures = found.figures
    assert (figures["shards"], figures["rows of a shard"]) == (2, [5, 6])
    assert (figures["capacity"], figures["num_envs"]) == (40, 4)
    assert (figures["next_of"], figures["max_ends"]) == ("reward", 8)
    assert (figures["rows"], figures["removed"], figures["fill"]) == (11, 1, 12 / 40)
    assert found.episodes.lengths.tolist() == [3, 3, 3]  # one has lost a row
    assert found.episodes.returns.tolist() == [0, 3, 9]
    assert (figures["returns not finite"], figures["rewards not finite"]) == (0, 0)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "2, of 5 to 6 rows" in capsys.readouterr().out
    fbuf.sharded.save(tmp_path, state)
    assert main(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "SHARDS-00000002: whole\nSHARDS-00000001: whole\n"
    file = next((tmp_path / "of-shard-00001" / "shard-00000").glob("rows-*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert main(["verify", str(tmp_path)]) == 1
    assert "of-shard-00001" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_no_checkpoint(tmp_path, capsys, command):
    assert main([command, str(tmp_path)]) == 2
    assert main([command, str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith(f"fbuf: there is no checkpoint in {tmp_path}\n")


@pytest.mark.parametrize("name", ["MANIFEST-00000001", "shard-00000/index-00000001.npy"])
@pytest.mark.parametrize("how", ["cut", "gone", "flipped"])
def test_damage_is_said_in_a_line(tmp_path, capsys, name, how):
    fbuf.save(tmp_path, fbuf.init({"reward": 0.0}, 5))
    path = tmp_path / name
    content = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
        path.mkdir()
    elif how == "cut":
        path.write_bytes(content[:-5])
    else:
        content[-2] ^= 8
        path.write_bytes(content)
    for command in ("inspect", "verify"):
        assert main([command, str(tmp_path)]) == 1
    found = capsys.readouterr()
    assert (found.out + found.err).count("\n") == 2
    assert "Traceback" not in found.out + found.err


def test_plan(capsys):
    fields = ["obs:uint8:84x84x4", "action:int32", "reward:float32"]
    options = {"num_envs": 8, "next_of": "obs", "sampler": fbuf.Prioritized(window=3)}
    command = ["--num-envs", "8", "--next-of", "obs", "--sampler", "prioritized", "--window", "3"]
    item = plan.item_of(fields)
    capacity = fbuf.capacity_for("2GiB", item, **options)
    for size in ("2GiB", f"{capacity:_}"):
        assert main(["plan", size, *fields, *command]) == 0
        found = capsys.readouterr().out
        assert found.splitlines()[0].split() == ["rows", f"{capacity:,}"]
        assert "2.0 GiB" in found
        *_, on_device, in_memory, in_files, opened, _ = (
            " ".join(line.split()) for line in found.splitlines()
        )
        assert on_device == "on the device 2.0 GiB - -"
        assert in_memory.startswith("in host memory, HostStore 683.8 KiB 2.0 GiB - ")
        assert in_files.startswith("in files, HostStore 683.8 KiB - 2.0 GiB ")
        assert opened.startswith("in a checkpoint, HostStore.open 683.8 KiB ")
        assert opened.endswith(" MiB 2.0 GiB")
    for wrong in (
        ["x", "a:int8"], ["5", "a"], ["5", "a:int99"], ["5", "a:int8:3y"], ["0", "a:int8"],
        ["5", "a:int8", "a:int8"], ["5", "a:int8", "--num-envs", "2"], ["1GiB", "a:int8:4:5"],
        ["5", "a:int8", "--next-of", "b"], ["1B", "a:int8"], ["²", "a:int8"],
    ):  # fmt: skip
        assert main(["plan", *wrong]) == 2, wrong
        found = capsys.readouterr()
        assert found.err.startswith("fbuf: ")
        assert not found.out


@pytest.mark.parametrize(
    ("field", "dtype"),
    [
        *(("float", "float32"), ("int", "int32"), ("bool", "bool"), ("float64", "float64")),
        *(("bf16", "bfloat16"), ("fp16", "float16"), ("half", "float16"), ("fp32", "float32")),
        *(("double", "float64"), ("f32", "float32"), ("i64", "int64"), ("u16", "uint16")),
    ],
)
def test_plan_takes_the_dtypes_that_init_makes(field, dtype):
    with jax.enable_x64(True):  # as the command has it
        assert plan.item_of([f"x:{field}:3"]) == {"x": jax.ShapeDtypeStruct((3,), dtype)}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("reward", "'reward' has no dtype; write reward:float32"),
        ("obs:f16", "'f16' may mean two dtypes"),
        ("obs:u8:84x84", "'u8' may mean two dtypes; write it out, as uint8"),
        (":float32", "is no field; write name:dtype or"),
    ],
)
def test_plan_says_what_is_wrong_with_a_field(field, message, capsys):
    assert main(["plan", "1000", field]) == 2
    assert message in capsys.readouterr().err


def test_plan_takes_fields_in_fields(capsys):
    fields = ["obs.camera.left:uint8:8x8", "obs.state:bf16:4", "reward:float"]
    expected = {
        "obs": {
            "camera": {"left": jax.ShapeDtypeStruct((8, 8), np.uint8)},
            "state": jax.ShapeDtypeStruct((4,), jnp.bfloat16),
        },
        "reward": jax.ShapeDtypeStruct((), np.float32),
    }
    assert plan.item_of(fields) == expected
    assert main(["plan", "1000", *fields, "--next-of", "obs.camera"]) == 0
    memory = fbuf.nbytes(expected, 1000, next_of="obs.camera")
    assert plan.sizes.in_words(memory) in capsys.readouterr().out
    for wrong, said in (
        (["a:f32", "a.b:f32"], "'a' is an array, and cannot have the field 'a.b'"),
        (["a.b:f32", "a:f32"], "'a' has fields of its own"),
        (["a.b:f32", "a.b:f32"], "there are two fields 'a.b'"),
        (["a..b:f32"], "'a..b' has an empty part"),
    ):
        assert main(["plan", "1000", *wrong]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("size", "rows"), [("1e6", 10**6), ("1.5e3", 1500), ("1_000", 1000)])
def test_plan_takes_numbers_as_people_write_them(size, rows, capsys):
    assert main(["plan", size, "reward:float"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["rows", f"{rows:,}"]


@pytest.mark.parametrize(("free", "disk"), [(10**6, 10**9), (10**9, 10**6), (None, 10**6)])
def test_plan_says_where_rows_fit(free, disk, monkeypatch, capsys):
    monkeypatch.setattr(plan.sizes, "free", lambda device: free)
    monkeypatch.setattr(plan.shutil, "disk_usage", lambda path: SimpleNamespace(free=disk))
    assert main(["plan", "100_000", "x:float32:25"]) == 0
    *_, in_memory, in_files, _, _ = capsys.readouterr().out.splitlines()
    says = {10**6: "-  does not fit here", 10**9: "-          fits here", None: "-"}
    assert in_memory.endswith(says[free])
    assert in_files.endswith(says[disk].removeprefix("-"))


@pytest.mark.sweep
def test_it_is_a_program(tmp_path):
    """Both names of it; and one line that says what is wrong."""
    installed = shutil.which("fbuf", path=str(sys.prefix) + "/bin")
    commands = [[sys.executable, "-m", "fbuf"], *([[installed]] if installed else [])]
    for command in commands:
        done = subprocess.run(
            [*command, "verify", str(tmp_path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert done.stderr == f"fbuf: there is no checkpoint in {tmp_path}\n"


@pytest.mark.sweep
def test_a_queue_says_how_much_is_unread(tmp_path, capsys):
    state = fbuf.init(jnp.int32(0), 8, num_envs=2, sampler=fbuf.Fifo())
    state, _ = fbuf.pop(fbuf.add(state, jnp.zeros((2, 4), jnp.int32)), 1)
    fbuf.save(tmp_path, state)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "6 of 8 are unread" in capsys.readouterr().out


def test_inspect_shows_numbers_that_were_saved_with_a_buffer(tmp_path, capsys):
    extra = {"step": 3, "rate": 0.25, "params": jnp.ones(2), "of": {"a": 1}, "name": "x"}
    fbuf.save(tmp_path, fbuf.init(0.0, 8), extra=extra)
    assert main(["inspect", str(tmp_path)]) == 0
    assert "extra       name='x', of, params, rate=0.25, step=3\n" in capsys.readouterr().out


def test_inspect_names_what_was_saved_with_a_buffer_for_pytorch(tmp_path, capsys):
    torch = pytest.importorskip("torch")
    from fbuf_adapters.pytorch import ReplayBuffer

    for extra, words in (
        ({"step": 5, "network": {"w": torch.ones(2)}}, "step=5, network"),
        (None, "nothing"),
    ):
        buffer = ReplayBuffer(10)
        buffer.extend({"x": torch.ones(4, 2)})
        buffer.save(tmp_path / words, extra=extra)
        assert main(["inspect", str(tmp_path / words)]) == 0
        assert f"extra       {words}\n" in capsys.readouterr().out
