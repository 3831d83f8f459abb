"""Environments whose every step is known beforehand, for the tests of collectors."""

import dataclasses

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

MODES = {mode.name.lower(): mode for mode in AutoresetMode}


def length(env, episode):
    """Return the number of steps of an episode."""
    return 1 + (3 * env + 5 * episode) % 7


@dataclasses.dataclass(frozen=True)
class Step:
    """A transition of an environment."""

    env: int
    episode: int
    step: int
    action: float
    reward: float
    following: int
    terminated: bool
    truncated: bool


class Walk(gymnasium.Env):
    """Observes who it is, the episode, and the step. Ends by turns by itself and cut off."""

    def __init__(self, env, kind="array", action="discrete", fails_at=None):
        self.metadata = {}  # its own: a vector writes its mode into it
        self.env, self.kind, self.episode, self.fails_at = env, kind, -1, fails_at
        self.made = 0
        box = spaces.Box(-1, 1e6, (3,), np.float32)
        self.observation_space = {
            "array": box,
            "dict": spaces.Dict({"place": box, "deep": spaces.Dict({"env": spaces.Discrete(99)})}),
            "tuple": spaces.Tuple((box, spaces.Discrete(10**10))),
            "float64": spaces.Box(-1, 1e6, (3,), np.float64),
        }[kind]
        self.action_space = {
            "discrete": spaces.Discrete(1000),
            "continuous": spaces.Box(-1e6, 1e6, (2,), np.float32),
            "multi": spaces.MultiDiscrete([1000, 5]),
        }[action]

    def observation(self):
        place = np.array([self.env, self.episode, self.at], np.float32)
        return {
            "array": place,
            "dict": {"place": place, "deep": {"env": self.env}},
            "tuple": (place, self.env),
            "float64": place.astype(np.float64),
        }[self.kind]

    def reset(self, *, seed=None, options=None):
        self.episode, self.at = self.episode + 1, 0
        return self.observation(), {}

    def step(self, action):
        self.made += 1
        if self.made == self.fails_at:
            raise ZeroDivisionError("as told")
        self.at += 1
        ended = self.at == length(self.env, self.episode)
        by_itself = ended and self.episode % 2 == 0
        reward = float(np.ravel(action)[0]) / 4 + 0.1
        return self.observation(), reward, by_itself, ended and not by_itself, {}


class Make:
    """Makes an environment, also in another process."""

    def __init__(self, env, options):
        self.env, self.options = env, options

    def __call__(self):
        return Walk(self.env, **self.options)


def vector(count, mode="same_step", asynchronous=False, fails=None, **options):
    """So many environments; `fails` says which one raises at which step."""
    makes = []
    for env in range(count):
        more = {"fails_at": fails[1]} if fails and fails[0] == env else {}
        makes.append(Make(env, {**options, **more}))
    kind = AsyncVectorEnv if asynchronous else SyncVectorEnv
    more = {"context": "spawn"} if asynchronous else {}
    return kind(makes, autoreset_mode=MODES[mode], **more)


def place_of(observation):
    """Return the array `[E, 3]` of any kind of observation."""
    if isinstance(observation, dict):
        return observation["place"]
    return observation[0] if isinstance(observation, tuple) else observation


def chosen(place):
    """Return the actions of the policy there."""
    return (place[..., 0] * 7 + place[..., 1] * 3 + place[..., 2]) % 1000


def policy(observation):
    return chosen(place_of(observation)).astype(np.int64)


def steps_of(env, count, dummies=False):
    """The first so many steps of an environment; with dummies, as many calls of its vector."""
    found, episode, at = [], 0, 0
    for _ in range(count):
        if at == length(env, episode):
            episode, at = episode + 1, 0
            if dummies:
                continue
        ended = at + 1 == length(env, episode)
        action = float(chosen(np.array([env, episode, at])))
        found.append(
            Step(
                env,
                episode,
                at,
                action,
                float(np.float32(action / 4 + 0.1)),
                at + 1,
                ended and episode % 2 == 0,
                ended and episode % 2 == 1,
            )
        )
        at += 1
    return found


def steps_in(batch, data, following):
    """The steps in what was read of a buffer, in order."""
    place, following = np.asarray(place_of(data["observation"])), np.asarray(place_of(following))
    action, reward = np.asarray(data["action"]), np.asarray(data["reward"])
    found = []
    for row in zip(*np.nonzero(np.asarray(batch.mask)), strict=True):
        assert (place[row][:2] == following[row][:2]).all(), "that of another episode"
        found.append(
            Step(
                *(int(number) for number in place[row]),
                float(np.ravel(action[row])[0]),
                float(reward[row]),
                int(following[row][2]),
                bool(batch.terminated[row]),
                bool(batch.truncated[row]),
            )
        )
    return sorted(found, key=lambda step: (step.env, step.episode, step.step))
