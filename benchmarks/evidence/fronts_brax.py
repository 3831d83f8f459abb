"""brax's SAC with its own queue and with ours: time of a step, and returns.

    python -m benchmarks.evidence.fronts_brax            about 10 minutes on 2 cores
    python -m benchmarks.evidence.fronts_brax --quick    some minutes: small buffers, one seed

It needs brax and 3 GB of memory; `.venv-peers` has it.

"The replay alone" is one `insert` of the rows of a step and one `sample`, as brax's SAC has them.
Both are inside `lax.scan`, and the state is donated. The buffer is full, and a row is a
`Transition` with observations of 17 numbers and actions of 6 (those of HalfCheetah). The buffers
take turns in one process. Figures are medians over processes of medians over rounds.

"The whole of `sac.train`" is brax's own function on a pendulum, an environment of a few lines, with
`sac.replay_buffers` set to `fbuf_adapters.brax` or left alone. It fills the buffer, and then trains
for some epochs, whose speed it reports. The first epoch compiles, and is left out. Each buffer
trains in a process of its own, and the processes take turns. Returns are those of its evaluation
after training, of 32 episodes for each seed, for the same settings but a small buffer.

brax 0.14.2 calls `jax.device_put_replicated`, which JAX 0.10 has no more; the script adds it.
"""

from __future__ import annotations

from typing import Any

from benchmarks import harness, report
from benchmarks.harness import Box, Measured, Record, Task

FBUF, BRAX = "fbuf", "brax"
NAMES = (FBUF, BRAX)
CAPACITIES = (100_000, 1_000_000)
ENVS, BATCH, OBSERVATION, ACTION = 128, 256, 17, 6
SEEDS = 5
REPLAY, TRAIN, RETURN = "replay", "train", "return"
TITLES = {REPLAY: "the replay alone", TRAIN: "the whole of `sac.train`"}

Table = tuple[list[str], list[list[str]]]
"""The head and the rows."""


def module_of(name: str) -> Any:
    """The module of buffers: ours or brax's."""
    if name == FBUF:
        from fbuf_adapters import brax

        return brax
    from brax.training import replay_buffers

    return replay_buffers


# --- the replay alone -----------------------------------------------------------------------------


def transition(lead: tuple[int, ...]) -> Any:
    """Transitions as brax's SAC inserts them, of zeros."""
    import jax.numpy as jnp
    from brax.training.types import Transition

    return Transition(
        observation=jnp.zeros((*lead, OBSERVATION)),
        action=jnp.zeros((*lead, ACTION)),
        reward=jnp.zeros(lead),
        discount=jnp.zeros(lead),
        next_observation=jnp.zeros((*lead, OBSERVATION)),
        extras={"state_extras": {"truncation": jnp.zeros(lead)}, "policy_extras": {}},
    )


def replay(name: str, capacity: int, steps: int) -> harness.Run:
    """Return a run of inserts and samples, on a full buffer."""
    import jax

    queue = module_of(name).UniformSamplingQueue(capacity, transition(()), BATCH)
    fill = jax.jit(lambda key: queue.insert(queue.init(key), transition((capacity,))))
    state = fill(jax.random.PRNGKey(0))

    def step(carry: Any, number: Any) -> Any:
        state, used = carry
        rows = jax.tree.map(lambda leaf: leaf + number, transition((ENVS,)))
        state, batch = queue.sample(queue.insert(state, rows))
        return state, harness.use(used, batch)

    used = harness.zeros_like(jax.eval_shape(lambda: transition((BATCH,))))
    numbers = jax.numpy.arange(steps, dtype="float32")
    return harness.in_scan(step, Box(state), [used], numbers)[0]


# --- the whole of brax's SAC ----------------------------------------------------------------------


def pendulum() -> Any:
    """A pendulum to be swung up, as an environment of brax."""
    import jax
    import jax.numpy as jnp
    from brax.envs.base import Env, State

    def observed(place: Any) -> Any:
        return jnp.stack([jnp.cos(place[0]), jnp.sin(place[0]), place[1] / 8])

    class Pendulum(Env):
        def reset(self, rng: Any) -> State:
            place = jax.random.uniform(rng, (2,), minval=-1, maxval=1) * jnp.array([jnp.pi, 1.0])
            zero = jnp.zeros(())
            return State(place, observed(place), zero, zero, {}, {})

        def step(self, state: State, action: Any) -> State:
            angle, speed = state.pipeline_state
            force = 2 * jnp.clip(action[0], -1, 1)
            cost = (jnp.mod(angle + jnp.pi, 2 * jnp.pi) - jnp.pi) ** 2
            cost = cost + 0.1 * speed**2 + 0.001 * force**2
            speed = jnp.clip(speed + 0.05 * (15 * jnp.sin(angle) + 3 * force), -8, 8)
            place = jnp.stack([angle + 0.05 * speed, speed])
            return state.replace(pipeline_state=place, obs=observed(place), reward=-cost)

        @property
        def observation_size(self) -> int:
            return 3

        @property
        def action_size(self) -> int:
            return 1

        @property
        def backend(self) -> str:
            return "none"

    return Pendulum()


def trained(name: str, **options: Any) -> list[dict[str, float]]:
    """Return what brax's SAC reports after each of its epochs."""
    import jax
    from brax.training.agents.sac import train as sac

    if not hasattr(jax, "device_put_replicated"):
        jax.device_put_replicated = lambda tree, devices: jax.tree.map(
            lambda leaf: jax.numpy.stack([leaf] * len(devices)), tree
        )
    sac.replay_buffers = module_of(name)
    reports: list[dict[str, float]] = []
    sac.train(
        pendulum(),
        episode_length=200,
        num_eval_envs=32,
        batch_size=BATCH,
        discounting=0.97,
        learning_rate=1e-3,
        progress_fn=lambda _, metrics: reports.append(
            {key: float(value) for key, value in metrics.items()}
        ),
        **options,
    )
    return reports


def train_time(name: str, capacity: int, steps: int) -> float:
    """Microseconds of a step of `sac.train`, its environments and its learning, buffer full."""
    epochs = 3
    reports = trained(
        name,
        num_envs=ENVS,
        min_replay_size=capacity,
        max_replay_size=capacity,
        num_timesteps=-(-capacity // ENVS) * ENVS + epochs * steps * ENVS,
        num_evals=epochs + 1,
    )
    return harness.median([ENVS / one["training/sps"] * 1e6 for one in reports[2:]])


def final_return(name: str, seed: int, steps: int) -> float:
    """The return of an episode after so many steps of learning."""
    reports = trained(
        name,
        num_envs=4,
        min_replay_size=1000,
        max_replay_size=10_000,
        num_timesteps=1000 + 4 * steps,
        num_evals=2,
        seed=seed,
    )
    return reports[-1]["eval/episode_reward"]


# --- measuring ------------------------------------------------------------------------------------


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    processes = 1 if quick else 3
    capacities = CAPACITIES[:1] if quick else CAPACITIES
    found: list[Task] = []
    for process in range(processes):
        for capacity in capacities:
            about = f"{capacity:,} rows, process {process}"
            found.append({"label": f"replay, {about}", "what": REPLAY, "capacity": capacity})
            found += [
                {"label": f"{name}, {about}", "what": TRAIN, "capacity": capacity, "name": name}
                for name in NAMES
            ]
    return found + [
        {
            "label": f"{name}, seed {seed}",
            "what": RETURN,
            "seed": seed,
            "name": name,
            "quick": quick,
        }
        for seed in range(1 if quick else SEEDS)
        for name in NAMES
    ]


def measure(task: Task) -> Measured:
    """Do one task."""
    what = {"what": task["what"]}
    if task["what"] == RETURN:
        steps = 200 if task["quick"] else 4000
        value = final_return(task["name"], task["seed"], steps)
        return Measured([{**what, "name": task["name"], "seed": task["seed"], "return": value}])
    capacity = task["capacity"]
    what["capacity"] = capacity
    if task["what"] == TRAIN:
        us = train_time(task["name"], capacity, 100)
        return Measured([{**what, "name": task["name"], "us": us}])
    programs = {name: replay(name, capacity, 200 if name == FBUF else 20) for name in NAMES}
    taken = harness.alternate(programs, 9, 20)
    return Measured(
        [{**what, "name": name, "us": harness.median(times)} for name, times in taken.items()]
    )


def time_table(records: list[Record]) -> Table:
    """The time of a step, the replay alone and the whole of `sac.train`."""
    time, rows = report.Find(records), []
    for what, title in TITLES.items():
        for capacity in CAPACITIES:
            values = [time(what=what, capacity=capacity, name=name) for name in NAMES]
            if values[0] is not None:
                figures = [report.beside(value, values[0]) for value in values]
                rows.append([title, f"{capacity:,}", *figures])
    return ["microseconds a step", "rows", *NAMES], rows


def return_table(records: list[Record]) -> Table:
    """The returns of each seed."""
    found = {(one["name"], one["seed"]): one["return"] for one in records if "return" in one}
    seeds = sorted({seed for _, seed in found})
    rows = [[str(seed), *(f"{found[name, seed]:.0f}" for name in NAMES)] for seed in seeds]
    if len(seeds) > 1:
        means = [harness.mean_and_error([found[name, seed] for seed in seeds]) for name in NAMES]
        rows.append(["mean", *(f"{mean:.0f} ± {error:.0f}" for mean, error in means)])
    return ["seed", *NAMES], rows


def tables(records: list[Record]) -> list[str]:
    """Time of a step, and returns."""
    return report.section("Time of a step", *time_table(records)) + report.section(
        "Returns after training", *return_table(records)
    )


if __name__ == "__main__":
    report.script(
        title="brax's SAC with its own queue and with ours",
        packages=("fbuf", "jax", "jaxlib", "brax"),
        keys=("what", "capacity", "name", "seed"),
        figures=("us", "return"),
    )
