"""Rewards and actions of another row: a regression on that row explains them better.

The observation, the action and the next observation of a row explain its reward. The observation
and the action explain the change of the observation. If those of another row explain it better,
fields were joined wrongly. In some tasks a regression with such simple terms explains nothing; then
there is no finding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fbuf.doctor.finding import Finding
from fbuf.doctor.leaves import Leaf
from fbuf.doctor.look import Found
from fbuf.doctor.stretches import ACTIONS, Stretch, named
from fbuf.storage.ring import TERMINATED

_FEW = 200
"""The fewest rows of all environments for a regression."""

_WIDE = 24
"""The most numbers of a row; with more, a regression would need too many rows."""

_SQUARED = 10
"""The most numbers whose products are terms of their own."""

_KINDS = 16
"""The most values of a discrete action."""

_BETTER = 4.0
"""The factor by which the error with another row must be smaller."""

_GOOD = 0.5
"""The least share of the variance that the other row must explain."""

_DISCOUNTS = (0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.997, 0.999)
"""Discounts that may have been multiplied into rewards, once for each step."""

_REMEDY = (
    "Put into a row what one step was given and returned: observation, action, then its reward. "
)

Rows = np.ndarray[Any, Any]


def find(found: Found, leaves: Mapping[str, Leaf]) -> Iterator[Finding]:
    """Yield the findings."""
    stretches = [of for of in found.stretches if of.flags.size >= 8]
    width = max((of.observation.shape[1] + of.action.shape[1] for of in stretches), default=0)
    rows = sum(of.flags.size for of in stretches)
    if not 0 < width <= _WIDE or rows < _FEW:
        return
    discrete = [list(leaves.values())[n].dtype.kind for n in named(leaves, ACTIONS)]
    actions = _actions(stretches, bool(discrete) and not set(discrete) - {"i", "u", "b"})
    if all(of.reward is not None for of in stretches):
        yield from _rewards(stretches, actions)
    if actions[0].shape[1]:
        yield from _moves(stretches, actions)


def _actions(stretches: Sequence[Stretch], discrete: bool) -> list[Rows]:
    """Return the actions as numbers; a discrete action with few values as one-hot numbers."""
    each = [of.action for of in stretches]
    if discrete and each[0].shape[1] == 1:
        values = np.unique(np.concatenate(each))
        if values.size <= _KINDS:
            return [(of == values).astype(np.float64) for of in each]
    return each


def _rewards(stretches: Sequence[Stretch], actions: Sequence[Rows]) -> Iterator[Finding]:
    """Find rewards of another row."""
    steps = [_step(of, action) for of, action in zip(stretches, actions, strict=True)]
    rewards = [np.asarray(of.reward) for of in stretches]
    there = [np.pad(of.there, 1) for of in stretches]  # a row and both rows beside it
    beside = [of[:-2] & of[1:-1] & of[2:] for of in there]
    good = [np.isfinite(of) & ok for of, ok in zip(rewards, beside, strict=True)]
    target = np.concatenate([of[1:-1][ok[1:-1]] for of, ok in zip(rewards, good, strict=True)])
    if target.size < _FEW or not target.std():
        return

    def error(given: Sequence[Rows], shift: int) -> float:
        """Return the error of rewards by the steps some rows later, or before."""
        parts = [
            step[1 + shift : len(step) - 1 + shift][ok[1:-1]]
            for step, ok in zip(given, good, strict=True)
        ]
        return unexplained(np.concatenate(parts), target)

    own = error(steps, 0)
    turned = _turned(stretches, steps)
    others = {"late": error(steps, -1), "early": error(steps, 1)}
    if turned is not None:
        others["of_another_environment"] = error(turned, 0)
    name = min(others, key=lambda name: others[name])
    if _is_better(others[name], own):
        yield _reward(name, own, others[name])
        return
    yield from _discounted(stretches, steps, rewards, own)


def _step(of: Stretch, action: Rows) -> Rows:
    """Return observation, action, change and termination of each step: `[n, numbers]`."""
    later = np.concatenate([of.observation[1:], of.observation[-1:]])
    if of.following is not None:
        later = np.where(of.known[:, None], of.following, of.observation)
    later = np.where(of.ends[:, None], of.observation, later)
    end = (of.flags & TERMINATED > 0).astype(np.float64)
    return np.concatenate([of.observation, action, later - of.observation, end[:, None]], axis=1)


def _turned(stretches: Sequence[Stretch], steps: Sequence[Rows]) -> list[Rows] | None:
    """Return the steps of the previous environment; None unless several have equally many rows."""
    sizes = {of.flags.size for of in stretches}
    return None if len(stretches) < 2 or len(sizes) > 1 else [*steps[-1:], *steps[:-1]]


def _reward(name: str, own: float, other: float) -> Finding:
    """Return the finding that rewards belong to another row."""
    whose, where = {
        "late": ("the row before", "one row late"),
        "early": ("the row after", "one row early"),
        "of_another_environment": ("another environment", "in rows of another environment"),
    }[name]
    return Finding(
        "warning",
        f"rewards_{name}",
        f"Rewards fit the steps of {whose}: these explain {1 - other:.0%} of their variance, and "
        f"the steps of their own rows {max(1 - own, 0):.0%}. They seem to be stored {where}.",
        _REMEDY + "If the task itself rewards an earlier step, all is well.",
    )


def _discounted(
    stretches: Sequence[Stretch], steps: Sequence[Rows], rewards: Sequence[Rows], own: float
) -> Iterator[Finding]:
    """Find rewards that were multiplied by a discount for each step of their episode."""
    ages = [_age(of) for of in stretches]
    known = [(age >= 0) & np.isfinite(of) for age, of in zip(ages, rewards, strict=True)]
    pick = lambda each: np.concatenate([of[ok] for of, ok in zip(each, known, strict=True)])
    age, reward, terms = pick(ages), pick(rewards), pick(steps)
    if age.size < _FEW:
        return
    same = (age[1:] == age[:-1] + 1) & (reward[:-1] != 0) & (reward[1:] != 0)
    shares = reward[1:][same] / reward[:-1][same]
    usual = [float(np.median(shares))] if shares.size >= _FEW // 2 else []
    own = unexplained(terms, reward)
    for gamma in (*(of for of in usual if 0.5 < of < 0.9999), *_DISCOUNTS):
        undone = reward / np.maximum(gamma**age, 1e-6)
        size = float(np.abs(undone).max())
        constant = size > 0 and undone.std() <= 1e-3 * size
        if constant or (own > 0.02 and _is_better(unexplained(terms, undone), own, 0.9)):
            yield Finding(
                "warning",
                "rewards_discounted",
                f"Rewards shrink by a factor of {gamma:.4g} with each step of their episode, as if "
                "a discount had been multiplied in. A target that discounts does it twice.",
                "Store the reward of each step as the environment returns it. The discount is for "
                "targets.",
            )
            return


def _age(of: Stretch) -> Rows:
    """Return the number of steps of the episode before each row; -1 where it is not known."""
    age, at = np.full(of.flags.size, -1), -1
    for row in range(of.flags.size):
        age[row] = at
        at = 0 if of.ends[row] else at + 1 if at >= 0 else -1
    return np.where(of.there, age, -1)


def _moves(stretches: Sequence[Stretch], actions: Sequence[Rows]) -> Iterator[Finding]:
    """Find actions of another row, by the change of the observation."""
    inner = [of.inner[1:-1] & of.inner[:-2] & of.inner[2:] for of in stretches]
    if sum(int(of.sum()) for of in inner) < _FEW:
        return
    pick = lambda each: np.concatenate([of[ok] for of, ok in zip(each, inner, strict=True)])
    before = pick([of.observation[1:-2] for of in stretches])
    change = pick([of.observation[2:-1] for of in stretches]) - before
    by_row = {
        name: pick([action[1 + shift : len(action) - 2 + shift] for action in actions])
        for name, shift in (("own", 0), ("early", -1), ("late", 1))
    }
    errors = {
        name: unexplained(np.concatenate([before, action], axis=1), change)
        for name, action in by_row.items()
    }
    if unexplained(before, by_row["own"]) < 0.5:
        # The next action of the policy reveals the next state, so it is no evidence.
        del errors["late"]
    own = errors.pop("own")
    name = min(errors, key=lambda name: errors[name])
    if _is_better(errors[name], own):
        whose = "after" if name == "late" else "before"
        yield Finding(
            "warning",
            f"actions_{name}",
            f"Observations change by the action of the row {whose}: it explains "
            f"{1 - errors[name]:.0%} of the change, and the action of the row itself "
            f"{max(1 - own, 0):.0%}. Actions seem to be stored one row {name}.",
            _REMEDY + "If the task acts with a delay, all is well.",
        )


def _is_better(other: float, own: float, good: float = _GOOD) -> bool:
    """Tell whether another row explains enough, and much more than the own row."""
    return other <= 1 - good and own >= _BETTER * (other + 1e-3)


def unexplained(given: Rows, target: Rows) -> float:
    """Return the share of the variance that a regression leaves unexplained on held-out rows.

    Args:
        given: `[rows, numbers]`.
        target: `[rows]` or `[rows, numbers]`.
    """
    rows = np.random.default_rng(0).permutation(len(given))
    terms = _terms(given)[rows]
    target = target.reshape(len(target), -1)[rows]
    scale = target.std(axis=0)
    target = (target - target.mean(axis=0))[:, scale > 0] / scale[scale > 0]
    half = len(rows) // 2
    if not target.size or terms.shape[1] > half // 2:
        return 1.0
    seen, unseen = terms[:half], terms[half:]
    ridge = seen.T @ seen + 1e-6 * half * np.eye(terms.shape[1])
    found = np.linalg.solve(ridge, seen.T @ target[:half])
    left = target[half:] - unseen @ found
    return float(np.mean(left**2) / max(float(np.mean(target[half:] ** 2)), 1e-12))


def _terms(given: Rows) -> Rows:
    """Return the terms of a regression: 1, the numbers, and their squares or products."""
    scale = given.std(axis=0)
    given = np.clip((given - given.mean(axis=0))[:, scale > 0] / scale[scale > 0], -6, 6)
    count = given.shape[1]
    left, right = np.triu_indices(count) if count <= _SQUARED else (np.arange(count),) * 2
    return np.concatenate(
        [np.ones((len(given), 1)), given, given[:, left] * given[:, right]], axis=1
    )
