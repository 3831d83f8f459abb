"""A collector that steps gymnax's environments, and adds the steps to a buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from fbuf_adapters._scanned import ScanCollector, Stepped


class Collector(ScanCollector):
    """Steps environments of gymnax with a policy, and adds the steps to a buffer: one program.

    Rows have the fields `observation`, `action`, `reward`, and the policy's output beside the
    action. A buffer may leave some out, and may have a field `next_observation`, the true one at
    ends too. For a buffer made with `next_of="observation"` the collector gives `fbuf.add` the next
    observations.

    Behind rows that others have added to the buffer since, and in another buffer, it truncates the
    open episodes first.

    `collect` is for calls from Python. In your own `jit`, and for many seeds at once by `vmap`,
    carry the result of `begin(key)` through `scan(carry, state, params, steps)`.

    Args:
        env: The environment, of gymnax 1.0 or newer: its `step` returns six values.
        policy: `policy(params, observation, key) -> action`, or `-> (action, extras)`, all of them
            of shape `[num_envs, ...]`; the extras are a dict.
        params: The initial weights, any tree; `publish` replaces them.
        num_envs: The number of environments.
        key: The random key of the environments and the policy.
        env_params: The parameters of the environment; None is its default.
        blank: More fields of the rows, for you to `fbuf.write` later, such as
            `{"advantage": jnp.zeros(())}`. Give one row, of which only shapes and dtypes are read.
            The fields are stored as zeros.

    Raises:
        ValueError: If an argument is out of range, or if the policy returns something of another
            shape.

    Cost: that of the environments and the policy. The add in the loop takes next to no time.

    Examples:
        >>> import fbuf, gymnax, jax
        >>> from fbuf_adapters.gymnax import Collector
        >>> env, env_params = gymnax.make("CartPole-v1")
        >>> policy = lambda params, observation, key: jax.random.randint(key, (8,), 0, 2)
        >>> collector = Collector(env, policy, None, num_envs=8, key=jax.random.key(0))
        >>> state = fbuf.init(collector.item, 800, next_of="observation", **collector.options)
        >>> collector.collect(state, 50)
        State(Uniform, 400 of 800 rows, 8 environments)
    """

    def __init__(
        self,
        env: Any,
        policy: Callable[[Any, Any, jax.Array], Any],
        params: Any,
        *,
        num_envs: int,
        key: jax.Array,
        env_params: Any = None,
        blank: dict[str, Any] | None = None,
    ) -> None:
        settings = env.default_params if env_params is None else env_params

        def reset(key: jax.Array) -> tuple[Any, Any]:
            keys = jax.random.split(key, num_envs)
            observation, env_state = jax.vmap(env.reset, in_axes=(0, None))(keys, settings)
            return env_state, observation

        def step(key: jax.Array, env_state: Any, action: Any) -> Stepped:
            keys = jax.random.split(key, num_envs)
            every = jax.vmap(env.step, in_axes=(0, 0, 0, None))
            stepped = every(keys, env_state, action, settings)
            if len(stepped) != 6:
                raise ValueError(
                    f"Collector: {type(env).__name__}.step returns {len(stepped)} values, and "
                    "that of gymnax 1.0 six; before, a truncation could not be told from an end. "
                    "Use gymnax 1.0 or newer"
                )
            observation, env_state, reward, terminated, truncated, info = stepped
            final = info["final_observation"]
            return Stepped(env_state, observation, reward, terminated, truncated, final)

        super().__init__(reset, step, policy, params, num_envs, key, blank)


Collector.__module__ = "fbuf_adapters.gymnax"  # its public module
