"""Whole agents all in JAX, with fbuf and with flashbax: a DQN on CartPole inside one `lax.scan`.

    python -m benchmarks.agents            about 5 minutes on 2 cores
    python -m benchmarks.agents --quick    about 2 minutes, 10,000 rows alone

It needs fbuf and the packages of `benchmarks/requirements.lock`; `make bench` sees to that.

The agent is put together as purejaxrl's: gymnax's CartPole, ten environments, two hidden layers of
120 and 84, Adam, batches of 128. An iteration takes a step in every environment and adds the ten
transitions. The library of the buffer is all that differs.

- "Every iteration": there is no `lax.cond`, and every iteration learns.
- "In cond": one of 4 iterations learns. The whole of it (draw, gradient, new priorities) is inside
  `lax.cond`, as in purejaxrl. A prioritised buffer then goes through the branch: XLA copies all of
  flashbax's tree, and nothing of fbuf's.
- "Outside": one of 4 iterations learns, but every iteration draws a batch and updates priorities,
  if only with what they were. The gradient alone is inside `lax.cond`. fbuf is given a mask;
  flashbax has none, and is given the old priorities, found from the probabilities.

Times are of an iteration, environments and learning included, with a full buffer. They are medians
over processes of medians over rounds, in which all programs take turns. Returns are those of the
program "in cond" from an empty buffer on, where both buffers are used as they are meant to be. A
return is the mean over all episodes that ended in the last quarter, with the standard error over
seeds.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from benchmarks import harness, report
from benchmarks.harness import Measured, Record, Task
from benchmarks.report import Find

PACKAGES = ("fbuf", "jax", "jaxlib", "flashbax", "gymnax", "optax", "numpy")
NAMES = FBUF, FLASHBAX = "fbuf", "flashbax"
KINDS = {False: "uniform", True: "prioritised"}
WAYS = ALWAYS, IN_COND, OUTSIDE = "every iteration", "in cond", "outside"
SIZES = (10_000, 1_000_000)

ENVS, BATCH, EVERY = 10, 128, 4
HIDDEN = (120, 84)
GAMMA, LEARNING_RATE, TARGET_RATE, EPS = 0.99, 3e-3, 0.03, 1e-3
REWARD = 0.02
"""The weight of a reward, so that values are of the order of 1, too."""
SCALE = (2.4, 2.0, 0.21, 2.0)
"""Observations are divided by it, which brings them to the order of 1."""
WARM_UP = 100
"""Iterations before the first that learns."""
STEPS = 500
"""Iterations in one call of a program."""
CALLS, SEEDS = 40, (0, 1, 2)
"""Calls of a program in a training, and the seeds of the trainings."""


class Agent(NamedTuple):
    """Everything there is: the carry of the scan."""

    weights: Any
    target: Any
    optimiser: Any
    buffer: Any
    env_state: Any
    observation: Any
    score: Any
    key: Any
    iteration: Any


def item() -> dict[str, Any]:
    """A transition."""
    import jax
    import jax.numpy as jnp

    spec = jax.ShapeDtypeStruct
    return {
        "observation": spec((4,), jnp.float32),
        "action": spec((), jnp.int32),
        "reward": spec((), jnp.float32),
        "next_observation": spec((4,), jnp.float32),
        "terminated": spec((), jnp.bool_),
    }


@functools.cache
def environment() -> Any:
    """CartPole, and its parameters."""
    import gymnax

    return gymnax.make("CartPole-v1")


@functools.cache
def optimiser() -> Any:
    """Adam."""
    import optax

    return optax.adam(LEARNING_RATE)


def q_values(weights: Any, observation: Any) -> Any:
    """A network of two hidden layers."""
    import jax
    import jax.numpy as jnp

    x = observation / jnp.array(SCALE)
    for weight, bias in weights[:-1]:
        x = jax.nn.relu(x @ weight + bias)
    return x @ weights[-1][0] + weights[-1][1]


def start(key: Any, buffer: Any) -> Agent:
    """A new agent in new environments."""
    import jax
    import jax.numpy as jnp

    env, parameters = environment()
    key, reset_key, *layer_keys = jax.random.split(key, 5)
    sizes = (4, *HIDDEN, env.num_actions)
    weights = [
        (jax.random.normal(k, (i, o)) * i**-0.5, jnp.zeros(o))
        for k, i, o in zip(layer_keys, sizes[:-1], sizes[1:], strict=True)
    ]
    observation, env_state = jax.vmap(env.reset, (0, None))(
        jax.random.split(reset_key, ENVS), parameters
    )
    return Agent(
        weights,
        jax.tree.map(jnp.copy, weights),
        optimiser().init(weights),
        buffer,
        env_state,
        observation,
        jnp.zeros(ENVS),
        key,
        jnp.int32(0),
    )


def act(agent: Agent) -> tuple[Agent, Any, Any]:
    """One step in every environment: the transitions, and the scores of episodes that ended."""
    import jax
    import jax.numpy as jnp

    env, parameters = environment()
    key, explore_key, action_key, step_key = jax.random.split(agent.key, 4)
    greedy = q_values(agent.weights, agent.observation).argmax(-1)
    some = jax.random.randint(action_key, (ENVS,), 0, env.num_actions)
    epsilon = jnp.maximum(0.05, 1 - agent.iteration / (STEPS * CALLS / 4))
    explore = jax.random.uniform(explore_key, (ENVS,)) < epsilon
    action = jnp.where(explore, some, greedy).astype(jnp.int32)
    observation, env_state, reward, terminated, truncated, info = jax.vmap(
        env.step, (0, 0, 0, None)
    )(jax.random.split(step_key, ENVS), agent.env_state, action, parameters)
    rows = {
        "observation": agent.observation,
        "action": action,
        "reward": reward.astype(jnp.float32),
        "next_observation": info["final_observation"],
        "terminated": terminated,
    }
    ended, score = terminated | truncated, agent.score + reward
    finished = jnp.array([jnp.sum(score * ended), jnp.sum(ended)])
    agent = agent._replace(
        env_state=env_state,
        observation=observation,
        score=score * ~ended,
        key=key,
        iteration=agent.iteration + 1,
    )
    return agent, rows, finished


def learn(agent: Agent, data: Any, weight: Any) -> tuple[Agent, Any]:
    """A step of the optimiser, and the new priorities."""
    import jax
    import jax.numpy as jnp
    import optax

    then = q_values(agent.target, data["next_observation"]).max(-1)
    wanted = REWARD * data["reward"] + GAMMA * then * ~data["terminated"]

    def loss(weights: Any) -> tuple[Any, Any]:
        values = q_values(weights, data["observation"])
        said = jnp.take_along_axis(values, data["action"][:, None], 1)[:, 0]
        return jnp.mean(weight * optax.huber_loss(said, wanted)), said - wanted

    gradient, error = jax.grad(loss, has_aux=True)(agent.weights)
    updates, state = optimiser().update(gradient, agent.optimiser)
    weights = optax.apply_updates(agent.weights, updates)
    target = optax.incremental_update(weights, agent.target, TARGET_RATE)
    agent = agent._replace(weights=weights, target=target, optimiser=state)
    return agent, jnp.abs(error) + EPS


def iteration(peer: Any, way: str, agent: Agent) -> tuple[Agent, Any]:
    """Act, add, and now and then learn."""
    import jax
    import jax.numpy as jnp

    agent, rows, finished = act(agent)
    agent = agent._replace(buffer=peer.add(agent.buffer, rows))
    key, sample_key = jax.random.split(agent.key)
    agent = agent._replace(key=key)
    now = (agent.iteration % EVERY == 0) & (agent.iteration > WARM_UP)

    def draw(buffer: Any) -> tuple[Any, Any]:
        _, drawn = peer.sample(buffer, sample_key)
        return drawn, peer.importance(buffer, drawn) if peer.prioritized else jnp.ones(BATCH)

    def learning(agent: Agent) -> Agent:
        drawn, weight = draw(agent.buffer)
        agent, priority = learn(agent, peer.data(drawn), weight)
        if peer.prioritized:
            buffer = peer.update(agent.buffer, peer.ids(drawn), priority)
            agent = agent._replace(buffer=buffer)
        return agent

    if way == ALWAYS:
        return learning(agent), finished
    if way == IN_COND:
        if peer.prioritized:
            return jax.lax.cond(now, learning, lambda agent: agent, agent), finished
        # As in purejaxrl, a buffer that is only read does not come back out of the branch.
        buffer = agent.buffer
        rest = jax.lax.cond(
            now,
            lambda rest: learning(rest._replace(buffer=buffer))._replace(buffer=None),
            lambda rest: rest,
            agent._replace(buffer=None),
        )
        return rest._replace(buffer=buffer), finished

    drawn, weight = draw(agent.buffer)
    data, buffer = peer.data(drawn), agent.buffer
    rest, priority = jax.lax.cond(
        now,
        lambda rest: learn(rest, data, weight),
        lambda rest: (rest, jnp.ones(BATCH)),
        agent._replace(buffer=None),
    )
    if peer.prioritized:
        buffer = peer.update_if(buffer, drawn, priority, now)
    return rest._replace(buffer=buffer), finished


# --- one process that measures -------------------------------------------------------------------


class Program:
    """The training of one library, kind of buffer, size and way, compiled for some iterations."""

    def __init__(self, peer: Any, way: str) -> None:
        import jax

        self.peer = peer
        example = jax.eval_shape(lambda: start(jax.random.key(0), peer.init()))

        def run(agent: Agent) -> tuple[Agent, Any]:
            return jax.lax.scan(lambda a, _: iteration(peer, way, a), agent, None, STEPS)

        self.call = jax.jit(run, donate_argnums=0).lower(example).compile()
        self.temp_bytes = self.call.memory_analysis().temp_size_in_bytes

    def timed(self) -> harness.Run:
        """Iterations with a full buffer."""
        import jax

        from benchmarks import peers

        buffer = peers.filled(self.peer, min(100_000, self.peer.capacity // 10))
        agent = start(jax.random.key(1), buffer)
        agent = agent._replace(iteration=agent.iteration + WARM_UP)

        def run() -> int:
            nonlocal agent
            agent, _ = jax.block_until_ready(self.call(agent))
            return STEPS

        return run

    def returns(self, seed: int) -> float:
        """The mean return in the last quarter of a training."""
        import jax
        import numpy as np

        fresh = jax.tree.map(lambda x: jax.numpy.array(x, copy=True), self.peer.init())
        agent = start(jax.random.key(seed), fresh)
        finished = []
        for _ in range(CALLS):
            agent, found = self.call(agent)
            finished.append(np.asarray(found))
        total, count = np.concatenate(finished[-(CALLS // 4) :]).sum(0)
        return float(total / count)


def measure(task: Task) -> Measured:
    """All programs of one size."""
    import gc

    from benchmarks import peers

    found = Measured()
    for prioritized in KINDS:
        programs: dict[Any, Program] = {}
        for cls in (peers.Fbuf, peers.Flashbax):
            for way in WAYS:
                peer = cls(item(), task["n"], BATCH, prioritized)
                programs[cls.name, way] = Program(peer, way)
        runs = {key: program.timed() for key, program in programs.items()}
        taken = harness.alternate(runs, 3 if task["quick"] else 7, 1.0)
        for (name, way), rounds in taken.items():
            record: Record = {
                "peer": name,
                "way": way,
                "n": task["n"],
                "prioritized": prioritized,
                "us": harness.median(rounds),
                "rounds": rounds,
                "temp_bytes": programs[name, way].temp_bytes,
            }
            if way == IN_COND and task["seeds"]:
                record["returns"] = [programs[name, way].returns(seed) for seed in task["seeds"]]
            found.records.append(record)
        del programs, runs
        gc.collect()
    return found


# --- the report ----------------------------------------------------------------------------------


def tasks(quick: bool) -> list[Task]:
    """The small size with the trainings, the large one twice, each in a process of its own."""
    found = []
    for n in SIZES[:1] if quick else (*SIZES, SIZES[1]):
        train = n == SIZES[0]
        seeds = list(SEEDS[:1] if quick else SEEDS) if train else []
        label = f"N = {n:,}{', and trainings' if train else ''}"
        found.append({"label": label, "n": n, "seeds": seeds, "quick": quick})
    return found


def returns_text(record: Record) -> str:
    """The mean over seeds and its standard error."""
    mean, error = harness.mean_and_error(record["returns"])
    return f"{mean:.0f} ± {error:.0f}"


def tables(records: list[Record]) -> list[str]:
    """The tables, as lines of Markdown."""
    us, temporary = Find(records), Find(records, "temp_bytes")
    rows, learned = [], []
    for prioritized, kind in KINDS.items():
        for n in SIZES:
            for way in WAYS:
                where: dict[str, Any] = {"prioritized": prioritized, "n": n, "way": way}
                ours, theirs = (us(peer=name, **where) for name in NAMES)
                if ours and theirs:
                    megabytes = [f"{temporary(peer=name, **where) / 1e6:.1f}" for name in NAMES]
                    row = [kind, f"{n:,}", way, report.number(ours), report.number(theirs)]
                    rows.append([*row, f"{ours / theirs:.2f}", *megabytes])
            of = [r for r in records if (r["n"], r["prioritized"]) == (n, prioritized)]
            texts = {r["peer"]: returns_text(r) for r in of if r.get("returns")}
            if texts:
                learned.append([kind, f"{n:,}", *(texts.get(name, "-") for name in NAMES)])
    head = ["buffer", "N", "learning", "fbuf, us", "flashbax, us", "fbuf to flashbax"]
    head += [f"temporary MB, {name}" for name in NAMES]
    lines = report.table(head, rows)
    title = f"Mean return after {STEPS * CALLS * ENVS:,} steps"
    return lines + report.section(title, ["buffer", "N", *NAMES], learned)


def bars(records: list[Record]) -> list[str]:
    """Return the promises of the project, and whether each was held."""
    us = Find(records)
    found = []
    for prioritized, kind in KINDS.items():
        for n in SIZES:
            for way in WAYS:
                most = 0.3 if prioritized and n == SIZES[-1] and way == ALWAYS else 1.0
                where: dict[str, Any] = {"prioritized": prioritized, "n": n, "way": way}
                ours, theirs = (us(peer=name, **where) for name in NAMES)
                if ours and theirs:
                    text = f"{kind}, {way}, N = {n:,}: {ours / theirs:.2f} of flashbax's time"
                    text += f", at most {most} wanted"
                    least = us(peer=FBUF, prioritized=False, way=way, n=SIZES[0])
                    cause = (
                        "With the agent and a small uniform buffer alone it would be "
                        f"{(least or 0) / theirs:.2f}"
                    )
                    found.append(report.bar(text, ours <= most * theirs, cause))
    return found


if __name__ == "__main__":
    report.script(
        title="Whole agents in JAX, beside flashbax",
        packages=PACKAGES,
        keys=("peer", "way", "n", "prioritized"),
    )
