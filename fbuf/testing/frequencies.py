"""Counts of draws against probabilities."""

from __future__ import annotations

import numpy as np

MOST = 5.0
"""The most standard deviations that counts may be off; chance exceeds it once in 3 million."""

_FEWEST = 5.0
"""The least expected count of a separate row; rarer rows are counted together."""


def deviation(counts: np.ndarray, probability: np.ndarray) -> float:
    """Return the deviation of counts in standard deviations, by a chi-square test.

    Args:
        counts: The counts of the rows.
        probability: The probability of each row; they sum to 1.
    """
    if counts[probability == 0].any():
        return float("inf")
    expected = counts.sum() * probability
    rare = expected < _FEWEST
    expected = np.append(expected[~rare], expected[rare].sum())
    found = np.append(counts[~rare], counts[rare].sum())
    found, expected = found[expected > 0], expected[expected > 0]
    free = found.size - 1
    if free < 1:
        return 0.0
    chi = ((found - expected) ** 2 / expected).sum()
    # The third root is nearly normal (Wilson and Hilferty).
    spread = 2 / (9 * free)
    return float(((chi / free) ** (1 / 3) - (1 - spread)) / np.sqrt(spread))
