"""A collector that steps brax's environments, and adds the steps to a buffer."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import jax

from fbuf.adapter_api import check
from fbuf_adapters._scanned import ScanCollector, Stepped

_FINAL = "final_observation"


def _keep_final(env: Any) -> Any:
    """Wrap the environment so that info keeps the observations before resets."""
    # brax is no extra of fbuf, so pyright may find neither it nor the type of its classes.
    from brax.envs.base import Wrapper  # pyright: ignore[reportMissingImports]

    class KeepFinal(Wrapper):  # pyright: ignore[reportUntypedBaseClass]
        """A wrapper that keeps the observation before the reset of a step."""

        def reset(self, rng: jax.Array) -> Any:
            return _with_final(self.env.reset(rng))

        def step(self, state: Any, action: Any) -> Any:
            return _with_final(self.env.step(state, action))

    return KeepFinal(env)


def _with_final(env_state: Any) -> Any:
    env_state.info[_FINAL] = env_state.obs
    return env_state


class Collector(ScanCollector):
    """Steps environments of brax with a policy, and adds the steps to a buffer: one program.

    It is `fbuf_adapters.gymnax.Collector` for brax: the same rows, the same methods. It wraps the
    environment itself, because brax's own way to reset loses the final observation of an episode.

    Args:
        env: The environment as `brax.envs.get_environment` returns it, not wrapped for training.
        policy: As for gymnax: `policy(params, observation, key)`.
        params: The initial weights.
        num_envs: The number of environments.
        key: The random key of the environments and the policy.
        episode_length: The number of steps after which an episode is cut off.
        action_repeat: The number of times that each action is done.
        blank: As for gymnax.

    Raises:
        ValueError: If the environment resets itself, if an argument is out of range, or if the
            policy returns something of another shape.
        ImportError: If brax is not installed.

    Cost: that of the environments and the policy.

    Examples:
        >>> import fbuf, jax
        >>> from brax import envs
        >>> from fbuf_adapters.brax import Collector
        >>> env = envs.get_environment("fast")
        >>> policy = lambda params, observation, key: jax.random.normal(key, (8, env.action_size))
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
        episode_length: int = 1000,
        action_repeat: int = 1,
        blank: dict[str, Any] | None = None,
    ) -> None:
        if importlib.util.find_spec("brax") is None:
            raise ImportError('Collector needs brax: pip install "fbuf[brax]"')
        # Imported only now: an import of this module must not make JAX look for its devices.
        from brax.envs.base import Wrapper  # pyright: ignore[reportMissingImports]
        from brax.envs.wrappers import training  # pyright: ignore[reportMissingImports]

        own = (training.AutoResetWrapper, training.EpisodeWrapper, training.VmapWrapper)
        inner = env
        while isinstance(inner, Wrapper):
            if isinstance(inner, own):
                raise ValueError(
                    f"Collector: the environment is wrapped in a {type(inner).__name__}, and the "
                    "collector wraps it itself, so that final observations are kept; give "
                    "brax.envs.get_environment(...), and episode_length and action_repeat"
                )
            inner = inner.env
        check.integer("Collector", "episode_length", episode_length)
        check.integer("Collector", "action_repeat", action_repeat)
        whole = training.VmapWrapper(training.EpisodeWrapper(env, episode_length, action_repeat))
        whole = training.AutoResetWrapper(_keep_final(whole))

        def reset(key: jax.Array) -> tuple[Any, Any]:
            env_state = whole.reset(jax.random.split(key, num_envs))
            return env_state, env_state.obs

        def step(key: jax.Array, env_state: Any, action: Any) -> Stepped:
            del key  # brax's steps take no key
            after = whole.step(env_state, action)
            truncated = after.info["truncation"] == 1
            terminated = (after.done == 1) & ~truncated
            final = after.info[_FINAL]
            return Stepped(after, after.obs, after.reward, terminated, truncated, final)

        super().__init__(reset, step, policy, params, num_envs, key, blank)


Collector.__module__ = "fbuf_adapters.brax"  # its public module
