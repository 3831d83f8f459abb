"""Tables of other libraries, and arguments by their names there: messages say what to write."""

from __future__ import annotations

from typing import Any

_TABLES = ("pandas", "polars", "pyarrow", "cudf", "modin")
"""Libraries of tables."""

_NAMES = {
    **dict.fromkeys(
        ("done", "dones", "terminal", "terminals", "is_terminal", "termination", "terminations"),
        "give terminated=..., where the task itself ends, and truncated=... for limits of time",
    ),
    **dict.fromkeys(
        ("timeout", "timeouts", "truncation", "truncations", "is_last"),
        "give truncated=..., where an episode is cut off",
    ),
    **dict.fromkeys(
        ("next_obs", "next_observations", "next_state", "next_states", "final_observation"),
        "give next_observation=..., to a buffer made with next_of",
    ),
    **dict.fromkeys(
        ("priorities", "td_error", "td_errors", "td_priority"),
        "give priority=..., one for each row",
    ),
    **dict.fromkeys(("rng", "seed", "rng_key"), "give key=..., such as jax.random.key(0)"),
    "n": "give batch_size=...",
}
"""The arguments that other libraries have, and what to write."""


def of_table(argument: str, value: Any) -> str | None:
    """Return what to write in place of a table or a column of one; None for anything else."""
    if type(value).__module__.partition(".")[0] not in _TABLES:
        return None
    if not hasattr(value, "columns"):
        return f"{argument}.to_numpy(), and a dtype that the buffer has"
    call = "to_numpy()"
    return (
        f"a dict of arrays, one for each field: {{name: {argument}[name].{call} for name in "
        f"{argument}.columns}}; columns of one observation side by side are "
        f"{argument}[['x', 'y']].{call}"
    )


def of_object(argument: str) -> str:
    """Return what to write in place of an array of Python objects."""
    return (
        f"np.stack(list({argument})) for a column of arrays, {argument}.astype('float32') for one "
        "of numbers"
    )


def of_name(name: str, allowed: Any) -> str | None:
    """Return what to write in place of an argument that a function does not take, if it is known.

    Args:
        name: The argument.
        allowed: The arguments that the function takes.
    """
    instead = _NAMES.get(name)
    fits = instead is not None and instead.removeprefix("give ").partition("=")[0] in allowed
    return instead if fits else None
