"""Targets by their definitions: lists, sums over all numbers of steps, and floats of 64 bits.

Each step is a dict, or None where there is none. Its keys are the arguments of the functions, and
`terminated` and `truncated`. A `next_value` may be None.
"""

from __future__ import annotations

import math


def run(steps, at):
    """Return the steps from one on that its target is made of, each with what it led to.

    Empty if the target is not known.
    """
    found = []
    for now, later in zip(steps[at:], [*steps[at + 1 :], None], strict=True):
        if now is None:
            break
        ended = now["terminated"] or now["truncated"]
        if now["terminated"]:
            found.append((now, 0.0))
        elif not ended and later is not None:
            found.append((now, later["value"]))
            continue
        elif now["next_value"] is not None:
            found.append((now, now["next_value"]))
        break
    return found


def product(numbers):
    return math.prod(numbers)


def lambda_return(path):
    """The mean of the returns of 1, 2, ... steps, each with its share."""
    returns, total, discount = [], 0.0, 1.0
    for now, after in path:
        total += discount * now["reward"]
        discount *= now["gamma"]
        returns.append(total + discount * after)
    kept = [now["lambda_"] for now, _ in path]
    shares = [product(kept[:n]) * (1 - kept[n]) for n in range(len(path) - 1)]
    shares.append(product(kept[: len(path) - 1]))
    assert abs(sum(shares) - 1) < 1e-9
    return sum(share * found for share, found in zip(shares, returns, strict=True))


def errors(path, of):
    """The one-step errors of some value."""
    return [now["reward"] + now["gamma"] * after - now[of] for now, after in path]


def advantage(path):
    decays = [now["gamma"] * now["lambda_"] for now, _ in path]
    return sum(product(decays[:n]) * error for n, error in enumerate(errors(path, "value")))


def ratio(now):
    return math.exp(now["log_prob"] - now["behavior_log_prob"])


def v_trace_error(path, rho_bar, c_bar):
    total = 0.0
    for n, error in enumerate(errors(path, "value")):
        traces = [now["gamma"] * now["lambda_"] * min(c_bar, ratio(now)) for now, _ in path[:n]]
        total += product(traces) * min(rho_bar, ratio(path[n][0])) * error
    return total


def v_trace(path, rho_bar=1.0, c_bar=1.0):
    """The target and the advantage of the first step."""
    now, after = path[0]
    target = now["value"] + v_trace_error(path, rho_bar, c_bar)
    behind = v_trace_error(path[1:], rho_bar, c_bar)
    q = now["reward"] + now["gamma"] * (after + now["lambda_"] * behind)
    return target, min(rho_bar, ratio(now)) * (q - now["value"])


def retrace(path):
    total = path[0][0]["q"]
    for n, error in enumerate(errors(path, "q")):
        traces = [
            path[k][0]["gamma"] * path[k + 1][0]["lambda_"] * min(1.0, ratio(path[k + 1][0]))
            for k in range(n)
        ]
        total += product(traces) * error
    return total
