"""Programs for flashbax, run with flashbax, and with `fbuf_adapters.flashbax` in its place.

    python -m benchmarks.evidence.fronts_flashbax            about 5 minutes on 2 cores
    python -m benchmarks.evidence.fronts_flashbax --quick    about a minute: too short to learn

It needs fbuf and the packages of `benchmarks/requirements.lock`; `make bench` sees to that.

A step adds one row of each of 16 environments, 88 bytes each, and draws 256 rows: items, pairs, or
32 windows of 8 steps. Windows begin at every step, or at every eighth ("period 8"), which makes
flashbax's tree smaller. "64 of 27" draws 64 windows of 27 steps, as a recurrent agent does, which
begin at every fourth. With priorities a step also gives new ones to what it drew: how far the
rewards are from given numbers. "in scan" is a step within one program. "in scan, under cond" puts
all but the add into `jax.lax.cond(can_sample, ...)`, as most programs of flashbax do; "all under
cond" puts the add there, too. "four seeds, under cond" is the first of these under `vmap`, with
buffers that begin empty: making them counts, too. "calls" is a step of separate calls from Python,
each of a `jax.jit` that donates the state.

The agents learn CartPole of gymnax, with ten seeds each. "DQN" is written like that of PureJaxRL:
a flat buffer, and a branch that learns. "prioritised DQN" is written like that of Stoix: windows of
3 steps by priority, double Q-learning, and importance weights. The programs are the same for both;
the module with the buffers is their argument. The return is the mean of the last 100 episodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks import harness, report
from benchmarks.harness import Measured, Record, Task
from benchmarks.report import Find

ENVS, BATCH, LENGTH, TURNS, CALLS = 16, 256, 8, 1000, 200
SIZES = (10_000, 1_000_000)
KINDS = ("item", "flat", "trajectory", "prioritised item", "prioritised flat",
         "prioritised trajectory", "prioritised trajectory, period 8",
         "prioritised trajectory, 64 of 27")  # fmt: skip
PERIODS = {"period 8": 8, "64 of 27": 4}
MODULES = THEIRS, OURS = ("flashbax", "fbuf")
FORMS = IN_SCAN, UNDER_COND, ALL_UNDER_COND, SEEDS_UNDER_COND, CALLS_ALONE = (
    "in scan", "in scan, under cond", "in scan, all under cond", "four seeds, under cond", "calls"
)  # fmt: skip
AGENTS = ("DQN", "prioritised DQN")
SEEDS = 10
ITEM = {"obs": jnp.zeros(20), "action": jnp.int32(0), "reward": jnp.float32(0)}


def module(name: str) -> Any:
    """Return flashbax, or the module in its place."""
    if name == THEIRS:
        import flashbax

        return flashbax
    from fbuf_adapters import flashbax as front

    return front


# --- a step ---------------------------------------------------------------------------------------


def windows_of(kind: str) -> tuple[int, int]:
    """Return how many windows are drawn, and of how many steps."""
    return (64, 27) if kind.endswith("64 of 27") else (BATCH // LENGTH, LENGTH)


def buffer_of(fbx: Any, kind: str, n: int) -> Any:
    """Return a buffer of a kind for `n` rows."""
    windows, length = windows_of(kind)
    sizes = {
        "add_batch_size": ENVS,
        "sample_batch_size": windows,
        "sample_sequence_length": length,
        "period": PERIODS.get(kind.partition(", ")[2], 1),
        "min_length_time_axis": length,
        "max_length_time_axis": n // ENVS,
    }
    makes: dict[str, Callable[[], Any]] = {
        "item": lambda: fbx.make_item_buffer(n, 1, BATCH, add_batches=True),
        "flat": lambda: fbx.make_flat_buffer(n, 1, BATCH, add_batch_size=ENVS),
        "trajectory": lambda: fbx.make_trajectory_buffer(**sizes),
        "prioritised item": lambda: fbx.make_prioritised_item_buffer(n, 1, BATCH, add_batches=True),
        "prioritised flat": lambda: fbx.make_prioritised_flat_buffer(
            n, 1, BATCH, add_batch_size=ENVS
        ),
        "prioritised trajectory": lambda: fbx.make_prioritised_trajectory_buffer(**sizes),
    }
    return makes[kind.split(",")[0]]()


def runs(fbx: Any, kind: str, n: int) -> dict[str, harness.Run]:
    """Return a program of many steps of a full buffer, in each form."""
    buffer, prioritised = buffer_of(fbx, kind, n), kind.startswith("prioritised")
    lead = (ENVS, 1) if "trajectory" in kind else (ENVS,)
    row = jax.tree.map(lambda leaf: jnp.ones((*lead, *leaf.shape), leaf.dtype), ITEM)
    drawn = windows_of(kind)[0] if "trajectory" in kind else BATCH

    def filled() -> Any:
        add = lambda _, state: buffer.add(state, row)
        return jax.lax.fori_loop(0, n // ENVS + 3, add, buffer.init(ITEM))

    def learn(state: Any, given: Any) -> tuple[Any, Any]:
        key, target = given
        batch = buffer.sample(state, key)
        used = sum(leaf.sum() for leaf in jax.tree.leaves(batch.experience))
        if prioritised:
            rows = getattr(batch.experience, "first", batch.experience)
            error = jnp.abs(rows["reward"].reshape(drawn, -1)[:, 0] - target)
            state = buffer.set_priorities(state, batch.indices, error)
        return state, used

    def under(state: Any, given: Any) -> tuple[Any, Any]:
        skip = lambda state, _: (state, jnp.float32(0))
        return jax.lax.cond(buffer.can_sample(state), learn, skip, state, given)

    def all_under(state: Any, given: Any) -> tuple[Any, Any]:
        skip = lambda state, _: (state, jnp.float32(0))
        both = lambda state, given: learn(buffer.add(state, row), given)
        return jax.lax.cond(buffer.can_sample(state), both, skip, state, given)

    keys = jax.random.split(jax.random.key(0), TURNS)
    given = keys, jax.random.normal(jax.random.key(2), (TURNS, drawn))
    add, sample = jax.jit(buffer.add, donate_argnums=0), jax.jit(buffer.sample)
    update = jax.jit(buffer.set_priorities, donate_argnums=0) if prioritised else None
    some, error = list(keys[:CALLS]), jax.random.uniform(jax.random.key(1), (drawn,))
    box = harness.Box(jax.jit(filled)())

    def behind_an_add(state: Any, given: Any) -> tuple[Any, Any]:
        return under(buffer.add(state, row), given)

    def scan(step: Callable[[Any, Any], tuple[Any, Any]]) -> harness.Run:
        scanned: Any = jax.jit(lambda state: jax.lax.scan(step, state, given), donate_argnums=0)

        def run() -> int:
            box.state, _ = jax.block_until_ready(scanned(box.state))
            return TURNS

        return run

    def train(key: Any) -> Any:
        of_seed = jax.random.split(key, TURNS), given[1]
        return jax.lax.scan(behind_an_add, buffer.init(ITEM), of_seed)[1].sum()

    seeded = jax.jit(jax.vmap(train))

    def seeds() -> int:
        jax.block_until_ready(seeded(keys[:4]))
        return TURNS

    def calls() -> int:
        for key in some:
            box.state = add(box.state, row)
            batch = jax.block_until_ready(sample(box.state, key))
            if update is not None:
                box.state = update(box.state, batch.indices, error)
        return CALLS

    return {
        IN_SCAN: scan(lambda state, given: learn(buffer.add(state, row), given)),
        UNDER_COND: scan(behind_an_add),
        ALL_UNDER_COND: scan(all_under),
        SEEDS_UNDER_COND: seeds,
        CALLS_ALONE: calls,
    }


# --- agents ---------------------------------------------------------------------------------------


def network(sizes: tuple[int, ...], key: Any) -> list[Any]:
    """Return the weights of a network."""
    keys = jax.random.split(key, len(sizes) - 1)
    shapes = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [(jax.random.normal(k, (a, b)) * (2 / a) ** 0.5, jnp.zeros(b)) for k, a, b in shapes]


def values(params: list[Any], obs: Any) -> Any:
    """Return the value of each action."""
    for weight, bias in params[:-1]:
        obs = jax.nn.relu(obs @ weight + bias)
    return obs @ params[-1][0] + params[-1][1]


def learn_dqn(fbx: Any, envs: int) -> tuple[Any, Any, Any]:
    """Return the buffer of the DQN, its loss, and the form of a batch that it adds."""
    buffer = fbx.make_flat_buffer(
        max_length=10_000, min_length=500, sample_batch_size=64, add_batch_size=envs
    )

    def loss(params: Any, target: Any, batch: Any) -> tuple[Any, Any]:
        first, second = batch.experience.first, batch.experience.second
        best = values(target, second["obs"]).max(axis=-1)
        goal = first["reward"] + 0.99 * (1 - first["done"]) * best
        q = jnp.take_along_axis(values(params, first["obs"]), first["action"][:, None], 1)[:, 0]
        return jnp.square(q - goal).mean(), None

    return buffer, loss, lambda step: step


def learn_prioritised(fbx: Any, envs: int) -> tuple[Any, Any, Any]:
    """Return the buffer of the prioritised DQN, its loss, and the form of a batch that it adds."""
    buffer = fbx.make_prioritised_trajectory_buffer(
        add_batch_size=envs,
        sample_batch_size=64,
        sample_sequence_length=3,
        period=1,
        min_length_time_axis=500 // envs,
        max_size=envs * (10_000 // envs),
        priority_exponent=0.6,
    )

    def loss(params: Any, target: Any, batch: Any) -> tuple[Any, Any]:
        rows = batch.experience
        going = jnp.cumprod(1 - rows["done"][:, :2], axis=1)
        reward = rows["reward"][:, 0] + 0.99 * going[:, 0] * rows["reward"][:, 1]
        best = values(params, rows["obs"][:, 2]).argmax(axis=-1)[:, None]
        next_value = jnp.take_along_axis(values(target, rows["obs"][:, 2]), best, 1)[:, 0]
        goal = jax.lax.stop_gradient(reward + 0.99**2 * going[:, 1] * next_value)
        action = rows["action"][:, 0, None]
        q = jnp.take_along_axis(values(params, rows["obs"][:, 0]), action, 1)[:, 0]
        weight = (1 / jnp.maximum(batch.probabilities, 1e-8)) ** 0.4
        return (weight / weight.max() * jnp.square(q - goal)).mean(), jnp.abs(q - goal) + 1e-6

    return buffer, loss, lambda step: jax.tree.map(lambda leaf: leaf[:, None], step)


def trained(fbx: Any, agent: str, iterations: int) -> Callable[[Any], Any]:
    """Return a compiled program of a key that trains an agent, and returns its mean return."""
    import gymnax
    import optax

    envs = 8
    env, env_params = gymnax.make("CartPole-v1")
    make = learn_dqn if agent == "DQN" else learn_prioritised
    buffer, loss, form = make(fbx, envs)
    optimiser = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(1e-3))

    def learned(carry: tuple[Any, ...], key: Any) -> tuple[Any, ...]:
        params, target, moments, state, number = carry
        batch = buffer.sample(state, key)
        (_, errors), gradient = jax.value_and_grad(loss, has_aux=True)(params, target, batch)
        if errors is not None:
            state = buffer.set_priorities(state, batch.indices, errors)
        change, moments = optimiser.update(gradient, moments)
        params = optax.apply_updates(params, change)
        target = optax.incremental_update(params, target, 0.01)
        return params, target, moments, state, number

    def iteration(carry: Any, key: Any) -> tuple[Any, Any]:
        (params, target, moments, state, number), env_state, obs, episode = carry
        act_key, step_key, learn_key, explore_key = jax.random.split(key, 4)
        best = values(params, obs).argmax(axis=-1)
        epsilon = jnp.maximum(0.05, 1 - number / 1000)
        random = jax.random.randint(act_key, (envs,), 0, 2)
        action = jnp.where(jax.random.uniform(explore_key, (envs,)) < epsilon, random, best)
        keys = jax.random.split(step_key, envs)
        stepped = jax.vmap(env.step, (0, 0, 0, None))(keys, env_state, action, env_params)
        new_obs, env_state, reward, terminated, truncated, _ = stepped
        done = terminated | truncated
        row = {"obs": obs, "action": action, "reward": reward, "done": done.astype(jnp.float32)}
        state = buffer.add(state, form(row))
        agent = (params, target, moments, state, number + 1)
        ready = buffer.can_sample(state)
        agent = jax.lax.cond(ready, learned, lambda agent, _: agent, agent, learn_key)
        episode = episode + reward
        ended = jnp.where(done, episode, jnp.nan)
        return (agent, env_state, new_obs, jnp.where(done, 0.0, episode)), ended

    def train(key: Any) -> Any:
        params_key, reset_key, run_key = jax.random.split(key, 3)
        params = network((4, 64, 64, 2), params_key)
        keys = jax.random.split(reset_key, envs)
        obs, env_state = jax.vmap(env.reset, (0, None))(keys, env_params)
        row = {"obs": obs[0], "action": jnp.int32(0), "reward": jnp.float32(0),
               "done": jnp.float32(0)}  # fmt: skip
        agent = (params, params, optimiser.init(params), buffer.init(row), jnp.int32(0))
        carry = (agent, env_state, obs, jnp.zeros(envs))
        return jax.lax.scan(iteration, carry, jax.random.split(run_key, iterations))[1]

    return jax.jit(train)


def measure(task: Task) -> Measured:
    """Time the steps of one kind and size, or train one agent."""
    names, quick = MODULES, task["quick"]
    if "agent" in task:
        import numpy as np

        records: list[Record] = []
        programs = {name: trained(module(name), task["agent"], 500 if quick else 10_000)
                    for name in names}  # fmt: skip
        for seed in range(2 if quick else SEEDS):
            for name, program in programs.items():
                ended = np.asarray(program(jax.random.key(seed))).ravel()
                last = ended[~np.isnan(ended)][-100:]
                found = {"agent": task["agent"], "what": name, "seed": seed}
                records.append(found | {"return": float(last.mean())})
        return Measured(records)
    figures: dict[tuple[str, str], Any] = {}
    for name in names:
        for form, run in runs(module(name), task["kind"], task["n"]).items():
            figures[name, form] = harness.timed(run)
    taken = harness.by_turns(figures, 3 if quick else 15)
    key = {"kind": task["kind"], "n": task["n"]}
    return Measured(
        [
            key | {"what": name, "form": form, "us": harness.median(rounds), "rounds": rounds}
            for (name, form), rounds in taken.items()
        ]
    )


def tasks(quick: bool) -> list[Task]:
    """Return the task of each process."""
    steps = [
        {"label": f"{kind}, N = {n:,}", "kind": kind, "n": n, "quick": quick}
        for n in SIZES
        for kind in KINDS
    ]
    return steps + [{"label": agent, "agent": agent, "quick": quick} for agent in AGENTS]


def tables(records: list[Record]) -> list[str]:
    """The tables, as lines of Markdown."""
    us, lines = Find([record for record in records if "us" in record]), []
    for form in FORMS:
        rows: list[list[str]] = []
        for kind in KINDS:
            for n in SIZES:
                ours, theirs = (us(kind=kind, n=n, what=w, form=form) for w in (OURS, THEIRS))
                cells = [report.number(ours), report.beside(theirs, ours)]
                rows.append([kind, f"{n:,}", *cells])
        head = ["buffer", "N", "fbuf", "flashbax"]
        lines += report.section(f"A step, {form}: microseconds", head, rows)
    rows = []
    for agent in AGENTS:
        for name in MODULES:
            found = [r["return"] for r in records if (r.get("agent"), r["what"]) == (agent, name)]
            if found:
                mean, error = harness.mean_and_error(found)
                each = ", ".join(f"{value:.0f}" for value in found)
                rows.append([agent, name, f"{mean:.0f} ± {error:.0f}", each])
    head = ["agent", "buffer", "return, and its standard error", "of each seed"]
    return lines + report.section("Agents: the return of the last 100 episodes", head, rows)


if __name__ == "__main__":
    report.script(
        title="flashbax's programs, with flashbax and with fbuf",
        packages=("fbuf", "jax", "jaxlib", "flashbax", "gymnax", "numpy"),
        keys=("kind", "n", "what", "form", "agent", "seed"),
    )
