"""Every sampler and every verb under 64-bit types, strict dtypes and strict ranks at once.

`make switches` runs all of it, in a process that has 64-bit types from its start.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import meshes

import fbuf
from fbuf import sharded, targets

UNDER_SWITCHES = "JAX_ENABLE_X64" in os.environ
NUMBER, TASK, VERSION, ENVS = 24, "task", "version", 2
ITEM = {
    "observation": jnp.zeros(2, jnp.float32),
    "reward": jnp.float32(0),
    "task": jnp.int32(0),
    "version": jnp.int32(0),
    "pixels": jnp.zeros((3, 3), jnp.uint8),
    "goal": jnp.zeros(2, jnp.float32),
}
SAMPLERS: dict[str, fbuf.samplers.Sampler] = {
    "uniform": fbuf.Uniform(),
    "windows": fbuf.Uniform(window=3, strict=False),
    "stride": fbuf.Uniform(window=2, stride=2),
    "first": fbuf.Uniform(window=2, first_only=True),
    "episode": fbuf.Uniform(window=2, by="episode"),
    "prioritized": fbuf.Prioritized(normalize="buffer"),
    "stratified": fbuf.Prioritized(draws="stratified", new_priority="largest_ever", floor=0.1),
    "priority_windows": fbuf.Prioritized(window=2),
    "mixture": fbuf.Mixture(0.5, recent=0.2, recent_rows=4),
    "shuffled": fbuf.Shuffled(),
    "shuffled_episode": fbuf.Shuffled(window=2, by="episode"),
    "grouped": fbuf.Grouped(TASK, 3, shares=(1.0, 2.0, 0.5)),
    "group_windows": fbuf.Grouped(TASK, 3, window=2),
    "fresh": fbuf.FreshFirst(),
    "fresh_priorities": fbuf.FreshFirst(fbuf.Prioritized(window=2), most=2, every=2),
    "fresh_groups": fbuf.FreshFirst(fbuf.Grouped(TASK, 3)),
    "uses": fbuf.Limited(max_uses=2),
    "limits": fbuf.Limited(fbuf.Prioritized(window=2), max_uses=3, max_age=4, version=VERSION),
    "fresh_limits": fbuf.Limited(fbuf.FreshFirst(), max_uses=2, max_age=4),
    "fifo": fbuf.Fifo(),
    "reservoir": fbuf.Reservoir(),
    "evict": fbuf.EvictLowest(),
    "evict_ever": fbuf.EvictLowest(fbuf.Prioritized(new_priority="largest_ever")),
}
VIEWS: dict[str, fbuf.View[Any]] = {
    "item": fbuf.Item(),
    "transition": fbuf.Transition(),
    "n_step": fbuf.NStep(2, gamma=0.9, next_of="observation"),
    "sequence": fbuf.Sequence(2, burn_in=1, boundary="pad", next_of="observation"),
    "frames": fbuf.FrameStack(3, field="pixels"),
    "window": fbuf.Window({"reward": (-1, 0, 1)}, pad="zero"),
    "return": fbuf.ReturnToGo(0.9),
}


def rows(count: int) -> dict[str, jax.Array]:
    number = np.arange(count)
    made = {
        "observation": np.stack([number, number + 0.5], -1),
        "reward": number / 4,
        "task": number % 4 - 1,
        "version": number // 4,
        "pixels": np.broadcast_to(number[:, None, None], (count, 3, 3)),
        "goal": np.stack([number, number], -1),
    }
    return {name: jnp.asarray(made[name].astype(ITEM[name].dtype)) for name in ITEM}


def of_envs(leaf: Any) -> Any:
    return leaf.reshape(ENVS, -1, *leaf.shape[1:])


class Played:
    """A history of one sampler, with the results of all verbs, by name."""

    def __init__(self, name: str, lockstep: bool) -> None:
        self.sampler, self.results = SAMPLERS[name], dict[str, Any]()
        self.key = jax.random.key(3)
        ordered = not self.sampler.places
        self.envs = ENVS if ordered else None
        self.options: dict[str, Any] = {"next_of": "observation"} if ordered else {}
        self.lockstep = lockstep

    def init(self) -> Any:
        envs = {"num_envs": self.envs, "lockstep": self.lockstep} if self.envs else {}
        return fbuf.init(ITEM, 16, sampler=self.sampler, **envs, **self.options)

    def given(self, count: int) -> tuple[Any, dict[str, Any]]:
        """Rows and all that may come with them."""
        new = rows(count)
        given: dict[str, Any] = {"mask": jnp.arange(count) % 5 != 3}
        given["terminated"] = jnp.arange(count) % 6 == 4
        given["truncated"] = jnp.arange(count) % 7 == 5
        if self.options:
            given["next_observation"] = new["observation"] + 1
        if self.sampler.keeps_priorities:
            given["priority"] = new["reward"] + 1
        if self.envs:
            new, given = jax.tree.map(of_envs, (new, given))
            if self.lockstep:
                del given["mask"]
        return new, given

    def draw(self, state: Any, verbs: Any = fbuf, view: Any = None, **more: Any) -> Any:
        view = fbuf.Item() if view is None else view
        if self.sampler.without_replacement:
            more["step"] = jnp.int32(1)
        if self.sampler.keeps_priorities:
            more["beta"] = 0.5
        if self.sampler.notes_draws:
            return verbs.draw(state, self.key, 6, view=view, donate=False, **more)
        return state, verbs.sample(state, self.key, 6, view=view, **more)

    def trace(self) -> dict[str, Any]:
        """Trace every verb of a plain buffer that a program can have; return specs."""
        return jax.eval_shape(lambda: self.play(None))

    def play(self, path: Any) -> dict[str, Any]:
        """Run every verb of a plain buffer; without a path those that a program can have."""
        state, found = self.init(), self.results
        for count in (4, 8, 8):
            new, given = self.given(count)
            alpha = {"alpha": 0.7} if self.sampler.keeps_priorities else {}
            state = fbuf.add(state, new, donate=False, **given, **alpha)
        found["added"] = state.index, state.ring, state.fault
        if self.sampler.is_queue:
            return self._popped(state, path is None)
        state, batch = self.draw(state)
        found["drawn"] = batch
        if not self.sampler.places:
            for name, view in VIEWS.items():
                found[name] = self.draw(state, view=view)[1]
            found["targets"] = self._targets(found["sequence"])
        found["thin"] = fbuf.thin(batch, self.key, 3, jnp.arange(6, dtype=jnp.float32))
        found["after"] = fbuf.after(state, batch).fault
        if not (self.sampler.notes_draws or self.sampler.without_replacement):
            found["mixed"] = fbuf.sample_mixed([(state, 0.5), (state, 0.5)], self.key, 4)
        found["probability"] = fbuf.probability(state, batch.ids)
        found["read"] = fbuf.read(state, batch.ids)
        if self.sampler.keeps_priorities:
            errors = jnp.arange(6, dtype=jnp.float32)
            state = fbuf.update_priority(state, batch.ids, errors, donate=False)
            masked = jnp.arange(6) < 4
            state = fbuf.update_priority(
                state, batch.ids, errors, mask=masked, alpha=0.3, donate=False
            )
        state = fbuf.write(state, batch.ids, {"task": jnp.ones(6, jnp.int32)}, donate=False)
        if VERSION in self.sampler.fields:
            state = fbuf.expire(state, 1, donate=False)
        if isinstance(self.sampler, fbuf.Limited) and self.sampler.max_uses:
            found["uses"] = fbuf.uses(state, batch.ids)
        gone = jax.tree.map(lambda leaf: leaf[:2], batch.ids)
        state = fbuf.remove(state, gone, donate=False)
        if TASK in self.sampler.fields:
            found["groups"] = fbuf.group_sizes(state), fbuf.group_ids(state, 1, 3)
        found["stats"] = fbuf.stats(state, detailed=True)
        found["sizes"] = fbuf.size(state), fbuf.can_sample(state)
        found["ids"] = fbuf.ids_at(state, jnp.arange(3, dtype=jnp.int32)), fbuf.no_ids(2)
        found["rows"] = fbuf.rows(state)
        if not self.sampler.places:
            found |= self._in_order(state, path is None)
        found["cleared"] = fbuf.clear(state, donate=False).index
        if path is None:
            return found
        found["report"] = str(fbuf.report(state, reward="reward"))
        found["finite"] = fbuf.check_finite(state)
        saved = fbuf.save(path, state)
        loaded = fbuf.load(path, sampler=self.sampler).state
        found["loaded"] = saved.index, loaded.index, self.draw(loaded)[1]
        return found

    def _in_order(self, state: Any, is_traced: bool) -> dict[str, Any]:
        """Run the verbs of rows that lie in the order of time."""
        found: dict[str, Any] = {"newest": fbuf.newest_ids(state, 3)}
        ids = jax.tree.map(lambda leaf: leaf[0], found["newest"])
        found["rollout"] = fbuf.rollout(state)
        found["neighbours"] = fbuf.neighbours(state, ids, (-1, 1))
        state = fbuf.end_episode(state, donate=False)
        found["resized"] = fbuf.resize(state, 32).index
        found["extended"] = fbuf.extend(self.init(), state).index
        if not is_traced and not self.sampler.is_queue:
            found["split"] = [part.index for part in fbuf.split(state, self.key, 0.5)]
        return found

    def _popped(self, state: Any, is_traced: bool) -> dict[str, Any]:
        found = self.results
        found["unread"] = fbuf.unread(state), fbuf.space(state)
        state, found["popped"] = fbuf.pop(state, 2, donate=False)
        found["stats"], found["rows"] = fbuf.stats(state), fbuf.rows(state)
        return found | self._in_order(state, is_traced)

    def _targets(self, batch: Any) -> Any:
        steps = batch.terminated.shape
        value = jnp.ones(steps, jnp.float32)
        priority = fbuf.sequence_priority(value, batch.data.loss_mask)
        given = (batch, batch.data.item["reward"], value)
        return priority, targets.gae(*given, gamma=0.9, lambda_=0.8)

    def play_over_mesh(self) -> dict[str, Any]:
        """Run the verbs of a buffer over shards."""
        given: dict[str, Any] = {"mesh": meshes.mesh(1), "shards": 2, "sampler": self.sampler}
        if self.envs:
            given |= {"num_envs": self.envs} | self.options
        state, found = sharded.init(ITEM, 16, **given), dict[str, Any]()
        self.lockstep = True
        for count in (4, 8, 8):
            new, of_rows = self.given(count)
            of_rows.pop("mask", None)
            state = sharded.add(state, new, donate=False, **of_rows)
        state, batch = self.draw(state, sharded)
        found["drawn"], found["stats"] = batch, sharded.stats(state)
        found["thin"] = sharded.thin(state, batch, self.key, 2, batch.weight)
        if self.sampler.keeps_priorities:
            state = sharded.update_priority(state, batch.ids, batch.weight, donate=False)
        state = sharded.write(state, batch.ids, {"task": jnp.ones(6, jnp.int32)}, donate=False)
        if VERSION in self.sampler.fields:
            state = sharded.expire(state, 1, donate=False)
        state = sharded.remove(state, batch.ids, donate=False)
        found["state"] = state.blocks.index
        return found


def same(one: Any, other: Any) -> None:
    """Assert that no leaf has become wider, and that all are equal."""
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        if isinstance(a, str):
            assert a == b
            continue
        assert (jnp.result_type(a), jnp.shape(a)) == (jnp.result_type(b), jnp.shape(b))
        if not isinstance(a, jax.ShapeDtypeStruct):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def compared(play: Any) -> None:
    """Assert that a history is the same with all three switches and without 64-bit types."""
    with jax.enable_x64(False):
        plain = play("plain")
    strict = jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise")
    with jax.enable_x64(True), strict[0], strict[1]:
        switched = play("switched")
    assert plain.keys() == switched.keys()
    for name in plain:
        try:
            same(plain[name], switched[name])
        except AssertionError as error:
            raise AssertionError(f"{name} is another one under the switches") from error


def cases(names: Any, quick: Any = ()) -> list[Any]:
    """Return names; outside of `make switches` most are for the sweep."""
    marks = () if UNDER_SWITCHES else pytest.mark.sweep
    return [pytest.param(name, marks=() if name in quick else marks) for name in names]


@pytest.mark.parametrize("name", cases(SAMPLERS, quick=("evict",)))
@pytest.mark.parametrize("lockstep", [True, False])
def test_every_verb_is_traced_to_the_same_types(name: str, lockstep: bool) -> None:
    if not lockstep and SAMPLERS[name].places:
        return  # it has no environments
    if not lockstep and getattr(SAMPLERS[name], "recent", 0):
        return  # refused
    compared(lambda part: Played(name, lockstep).trace())


@pytest.mark.parametrize("name", cases(SAMPLERS))
def test_every_verb_over_a_mesh_is_traced_to_the_same_types(name: str) -> None:
    if not SAMPLERS[name].is_queue:  # refused there
        compared(lambda part: jax.eval_shape(Played(name, lockstep=True).play_over_mesh))


@pytest.mark.parametrize("name", cases(["evict", "limits", "fresh_groups", "shuffled", "fifo"]))
def test_every_verb_returns_the_same_numbers(name: str, tmp_path: Any) -> None:
    compared(lambda part: Played(name, lockstep=True).play(tmp_path / part))


@pytest.mark.parametrize("name", cases(["evict", "limits"]))
def test_every_verb_over_a_mesh_returns_the_same_numbers(name: str) -> None:
    compared(lambda part: Played(name, lockstep=True).play_over_mesh())
