"""The check of views: those of fbuf and of users pass it, and each kind of mistake is found."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from support.own import Surprise, Surprising

import fbuf
from fbuf import testing
from fbuf.testing import ANY, rows
from fbuf.testing.case import SHAPES
from fbuf.views import Reading, Request, View, following

GAMMA = 0.5
QUICK = {"shapes": [(None, 12)], "seeds": [0, 1], "in_place": False}


def the_row(oracle, slot):
    return rows(oracle.at(slot).number)


def steps(oracle, slot):
    """Three steps, and zeros behind the end of the episode."""
    ahead = oracle.ahead(slot, 3)
    valid = np.arange(3) < len(ahead)
    found = rows([row.number for row in ahead])
    padded = lambda leaf: np.concatenate([leaf, np.zeros_like(leaf, shape=(3, *leaf.shape[1:]))])
    item = {name: padded(leaf)[:3] for name, leaf in found.items()}
    return fbuf.SequenceSteps(item, valid, valid, ANY, None)


def returns(oracle, slot):
    ahead = oracle.ahead(slot, 3)
    found = sum(GAMMA**n * float(rows(row.number)["reward"]) for n, row in enumerate(ahead))
    last = ahead[-1]
    discount = 0.0 if last.terminated else GAMMA ** len(ahead)
    led_to = rows(last.leads_to)["observation"]
    return fbuf.NStepTransition(the_row(oracle, slot), found, led_to, discount, len(ahead))


def led_to(oracle, slot):
    following = rows(oracle.at(slot).leads_to)["observation"]
    return fbuf.TransitionStep(the_row(oracle, slot), following)


def surprises(oracle, slot):
    """The reward of the row before in the lane, whatever became of the row."""
    lane, at = oracle.place(slot)
    number = next(number for number, rows in enumerate(oracle.lanes) if rows is lane)
    before = at - 1 if at - 1 in oracle.there(number) else at
    reward = lambda number: float(rows(number)["reward"])
    return Surprise(the_row(oracle, slot), reward(lane[at].number) - reward(lane[before].number))


NEXT = {"next_of": "observation"}
CASES = {
    "surprise": (Surprising(), {"expected": surprises}),
    "n_step": (fbuf.NStep(3, gamma=GAMMA), {"expected": returns, **NEXT}),
    "item": (fbuf.Item(), {"expected": the_row, "ends": lambda *row: ends(*row)}),
    "sequence": (fbuf.Sequence(3, boundary="pad"), {"expected": steps}),
    "transition": (fbuf.Transition(), {"expected": led_to, **NEXT}),
    "time_major": (fbuf.Sequence(3, boundary="pad", time_major=True), {}),
    "frames": (fbuf.FrameStack(3, field="observation"), {}),
    "window": (fbuf.Window({"observation": (-1, 0, 2)}), {}),
    "return": (fbuf.ReturnToGo(0.9), {}),
    "n_steps": (fbuf.NStep((1, 3), gamma=GAMMA), NEXT),
    "windows": (fbuf.Sequence(3), {"sampler": fbuf.Prioritized(window=3)}),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("name", CASES)
def test_views_of_fbuf_and_of_users(name):
    view, options = CASES[name]
    if number := list(CASES).index(name):  # the first one has all shapes
        options = {"shapes": [SHAPES[number % 3]], "seeds": [0, 1], **options}
    testing.check_view(view, **options)


@dataclasses.dataclass(frozen=True)
class Reward(View[Any]):
    """The reward some steps later, and whether the episode goes on for so long."""

    steps: int = 2

    def request(self, reader, slots, key):
        steps = following(reader, slots, self.steps + 1)
        at = self.place(steps.slots)
        wanted = {"reward": reader.field(at, "reward", "reward")}
        return Request(wanted, (steps.same_episode[:, -1], steps.flags[:, 0]))

    def place(self, slots):
        return slots[:, -1]

    def build(self, layout, rows, seen):
        return Reading({"reward": rows["reward"], "valid": seen[0]}, seen[1])


def rewards(oracle, slot):
    ahead = oracle.ahead(slot, 3)
    valid = len(ahead) == 3
    return {"reward": rows(ahead[-1].number)["reward"] if valid else ANY, "valid": valid}


class StepBefore(Reward):
    """It reads the step before the right one."""

    def place(self, slots):
        return slots[:, -2]


class OverEnds(Reward):
    """It takes the next episode for the same one."""

    def build(self, layout, rows, seen):
        made = super().build(layout, rows, seen)
        return dataclasses.replace(
            made, data={**made.data, "valid": jnp.ones_like(made.data["valid"])}
        )


class OfTheBatch(Reward):
    """The result of a row depends on the rows that were read beside it."""

    def build(self, layout, rows, seen):
        made = super().build(layout, rows, seen)
        summed = jnp.cumsum(made.data["reward"])
        return dataclasses.replace(made, data={**made.data, "reward": summed})


class WithoutAxis(Reward):
    """A result for the whole batch."""

    def build(self, layout, rows, seen):
        made = super().build(layout, rows, seen)
        return dataclasses.replace(made, data={**made.data, "reward": made.data["reward"].mean()})


class PastTheReader(Reward):
    """It reads rows from the storage, which is not there if the rows lie on the host."""

    def request(self, reader, slots, key):
        asked = super().request(reader, slots, key)
        reward = reader._state.storage.read(slots)["reward"]
        return Request(asked.rows, (*asked.seen, reward))

    def build(self, layout, rows, seen):
        return super().build(layout, {"reward": seen[2]}, seen[:2])


class Masks(Reward):
    """It has no result where it should have one."""

    def build(self, layout, rows, seen):
        made = super().build(layout, rows, seen)
        return dataclasses.replace(made, known=made.data["valid"])


class NeverEqual(Reward):
    """It is no dataclass that equals a copy of itself."""

    def __eq__(self, other):
        return False

    __hash__ = Reward.__hash__


class NeverEnds(Reward):
    """Its flags say that no episode ends."""

    def build(self, layout, rows, seen):
        made = super().build(layout, rows, seen)
        return dataclasses.replace(made, flags=jnp.zeros_like(made.flags))


class OneFlag(Reward):
    """Its flags are those of one row."""

    def build(self, layout, rows, seen):
        made = super().build(layout, rows, seen)
        return dataclasses.replace(made, flags=made.flags[0])


def ends(oracle, slot):
    return oracle.at(slot).terminated, oracle.at(slot).truncated


MODEL = {"expected": rewards}
MISTAKES = {
    NeverEnds: ({"ends": ends}, "has terminated = False, and expected is True"),
    OneFlag: ({}, "has another result if it is read again beside other rows"),
    StepBefore: (MODEL, r"has data\['reward'\] = .*, and expected is"),
    OverEnds: (MODEL, r"has data\['valid'\] = True, and expected is False"),
    OfTheBatch: ({}, "has another result if it is read again beside other rows"),
    WithoutAxis: ({}, r"a leaf of its data is float32\[\], and axis 0"),
    PastTheReader: ({}, "a read of rows on the host raises"),
    Masks: (MODEL, "is masked, and should not be"),
    NeverEqual: ({}, "not equal to a copy of itself"),
}
QUICKLY = (NeverEnds, StepBefore, OfTheBatch, NeverEqual)


@pytest.mark.sweep
def test_the_view_without_a_mistake():
    testing.check_view(Reward(), expected=rewards, ends=ends, **{**QUICK, "in_place": True})


@pytest.mark.parametrize(
    "kind",
    [kind if kind in QUICKLY else pytest.param(kind, marks=pytest.mark.sweep) for kind in MISTAKES],
)
def test_a_mistake_is_found(kind):
    options, sentence = MISTAKES[kind]
    with pytest.raises(AssertionError, match=f"(?s)^fbuf.testing.check_view: .*{sentence}"):
        testing.check_view(kind(), **QUICK, **options)


def test_a_random_view_has_no_model():
    with pytest.raises(ValueError, match="the view is random; leave expected out"):
        testing.check_view(fbuf.NStep((1, 3), gamma=GAMMA), expected=rewards)


def test_a_model_of_another_tree_is_said_to_be_one():
    wrong = lambda oracle, slot: {"reward": 0.0}
    with pytest.raises(AssertionError, match="is another tree than the expected one"):
        testing.check_view(fbuf.Item(), expected=wrong, **QUICK)


def test_anything_says_its_name():
    assert repr(ANY) == "fbuf.testing.ANY"
