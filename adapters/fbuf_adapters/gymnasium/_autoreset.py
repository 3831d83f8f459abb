"""What environments do at the end of an episode."""

from __future__ import annotations

from typing import Any, Literal, get_args

from gymnasium.vector import AutoresetMode

Autoreset = Literal["same_step", "next_step", "disabled"]
"""As `fbuf.init` calls the modes."""


def autoreset(envs: Any) -> Autoreset:
    """Which mode environments have.

    Raises:
        ValueError: If they do not say it. A wrong guess would store wrong transitions silently.
    """
    # Gymnasium's own vector environments write their mode into metadata that all environments of a
    # class share, so the last one made would speak for all. Their attribute is their own.
    mode = getattr(envs.unwrapped, "autoreset_mode", None)
    if mode is None:
        mode = (envs.metadata or {}).get("autoreset_mode")
    name = mode.name if isinstance(mode, AutoresetMode) else str(mode)
    name = name.lower().replace("nextstep", "next_step").replace("samestep", "same_step")
    for known in get_args(Autoreset):
        if name == known:
            return known
    said = "does not say" if mode is None else f"says {mode!r}"
    raise ValueError(
        f"Collector: {type(envs.unwrapped).__name__}.metadata['autoreset_mode'] {said} what the "
        "environments do at the end of an episode; set it to one of "
        "gymnasium.vector.AutoresetMode: SAME_STEP if the step that ends an episode returns the "
        "first observation of the next one (and info['final_obs']), NEXT_STEP if the step after it "
        "does, DISABLED if reset(options={'reset_mask': ...}) does"
    )
