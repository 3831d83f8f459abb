"""PPO all in JAX: acting, advantages and learning in one program, eight seeds.

    python examples/ppo_jax.py --help

All of training is one `jax.jit`, `vmap`ped over seeds. One iteration, and what the buffer does:

1. A `lax.scan` takes some steps in all environments. `fbuf.add` stores them in one go.
2. `fbuf.rollout` reads them in the order of time. Each row comes with the observation that its step
   led to, also at the end of an episode and of the rollout. Nothing is stored twice.
   `fbuf.targets.gae` bootstraps truncated episodes and the last rows from it.
3. `fbuf.write` puts advantages next to the rows they belong to.
4. `fbuf.Shuffled` draws minibatches: in each epoch every row once, in a new order.
5. `fbuf.clear` empties the buffer.

PPO in one program can do without a buffer: the results of a `lax.scan` are arrays, too. A buffer
has the code that you would write for steps 2 and 4. The learner stays as it is when the rows come
from elsewhere (see ppo_torch.py).

Needs gymnax>=1.0 (and six, which gymnax does not declare), optax, matplotlib and tqdm.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from functools import partial
from typing import Any, NamedTuple

import gymnax
import jax
import jax.numpy as jnp
import matplotlib as mpl
import optax
from tqdm import tqdm

import fbuf

ENV, ENV_PARAMS = gymnax.make("CartPole-v1")

NUM_ENVS = 16
STEPS = 64  # of each environment, in a rollout
ROWS = STEPS * NUM_ENVS
EPOCHS = 4
BATCH_SIZE = 256  # divides ROWS, so that no minibatch has empty places
HIDDEN = 64
SCALE = (1 / 2.4, 1 / 2, 1 / 0.21, 1 / 2)  # brings what is observed to the order of 1
GAMMA, DECAY = 0.99, 0.95  # of rewards, and of generalised advantages
REWARD_SCALE = 0.05  # and with it the values, which are sums of up to 100 rewards
CLIP = 0.2  # how far a policy may move from the one that acted
ENTROPY = 0.005
LEARNING_RATE = 2.5e-3  # falls to 0 over the run
SHORTEST = 8  # steps; no episode of this task is shorter

ITERATIONS, QUICK_ITERATIONS = 100, 20
EVALUATIONS = 10  # the last one is of the agent as it is in the end
SOLVED = 450.0
QUICK_BAR = 350.0  # eight new networks get from 50 to 280 on average: some balance by luck

Layers = list[tuple[jax.Array, jax.Array]]


class Weights(NamedTuple):
    """Two networks."""

    policy: Layers
    critic: Layers


class Training(NamedTuple):
    """Everything there is: the carry of the scan."""

    weights: Weights
    optimiser: Any
    buffer: fbuf.State
    env_state: Any
    observation: jax.Array
    key: jax.Array


# ---- the networks ------------------------------------------------------------------------------


def forward(layers: Layers, observation: jax.Array) -> jax.Array:
    """A network of two hidden layers."""
    x = observation * jnp.array(SCALE)
    for weight, bias in layers[:-1]:
        x = jnp.tanh(x @ weight + bias)
    return x @ layers[-1][0] + layers[-1][1]


def value_of(weights: Weights, observation: jax.Array) -> jax.Array:
    """Return the critic's estimate of the sum of discounted rewards."""
    return forward(weights.critic, observation)[..., 0]


def initial_layers(key: jax.Array, outputs: int) -> Layers:
    """Hidden layers keep the size of what comes in. All actions are almost as likely at first."""
    sizes = ((4, HIDDEN, 1.0), (HIDDEN, HIDDEN, 1.0), (HIDDEN, outputs, 0.01))
    return [
        (scale * before**-0.5 * jax.random.normal(layer, (before, after)), jnp.zeros(after))
        for (before, after, scale), layer in zip(sizes, jax.random.split(key, 3), strict=True)
    ]


def optimiser(iterations: int) -> optax.GradientTransformation:
    """Adam, with a learning rate that falls to 0."""
    rate = optax.linear_schedule(LEARNING_RATE, 0.0, iterations * EPOCHS * (ROWS // BATCH_SIZE))
    return optax.chain(optax.clip_by_global_norm(0.5), optax.adam(rate, eps=1e-5))


# ---- one iteration -----------------------------------------------------------------------------


def start(key: jax.Array, iterations: int) -> Training:
    """A new agent, its environments and an empty buffer."""
    policy_key, critic_key, reset_key, key = jax.random.split(key, 4)
    weights = Weights(initial_layers(policy_key, ENV.num_actions), initial_layers(critic_key, 1))
    observation, env_state = jax.vmap(ENV.reset, in_axes=(0, None))(
        jax.random.split(reset_key, NUM_ENVS), ENV_PARAMS
    )
    item = {
        "observation": jnp.zeros(4),
        "action": jnp.int32(0),
        "reward": 0.0,
        "log_prob": 0.0,
        "value": 0.0,
        "advantage": 0.0,
    }
    buffer = fbuf.init(
        item,
        ROWS,
        num_envs=NUM_ENVS,
        sampler=fbuf.Shuffled(),
        next_of="observation",
        max_ends=ROWS // SHORTEST + NUM_ENVS,
    )
    state = optimiser(iterations).init(weights)
    return Training(weights, state, buffer, env_state, observation, key)


def collect(training: Training) -> Training:
    """Take the steps of a rollout in every environment, and add them to the buffer."""
    key, act_key = jax.random.split(training.key)

    def step(carry: tuple[Any, jax.Array], key: jax.Array) -> tuple[Any, Any]:
        env_state, observation = carry
        action_key, step_key = jax.random.split(key)
        logits = forward(training.weights.policy, observation)
        action = jax.random.categorical(action_key, logits).astype(jnp.int32)
        following, env_state, reward, terminated, truncated, info = jax.vmap(
            ENV.step, in_axes=(0, 0, 0, None)
        )(jax.random.split(step_key, NUM_ENVS), env_state, action, ENV_PARAMS)
        row = {
            "observation": observation,
            "action": action,
            "reward": REWARD_SCALE * reward,
            "log_prob": log_prob(logits, action),
            "value": value_of(training.weights, observation),
            "advantage": jnp.zeros(NUM_ENVS),  # known only when the rollout is there
        }
        # Not `following`: at the end of an episode that is the first one of the next episode.
        return (env_state, following), (row, terminated, truncated, info["final_observation"])

    (env_state, observation), (rows, terminated, truncated, following) = jax.lax.scan(
        step, (training.env_state, training.observation), jax.random.split(act_key, STEPS)
    )
    buffer = fbuf.add(
        training.buffer,
        rows,
        terminated=terminated,
        truncated=truncated,
        next_observation=following,
        time_major=True,
    )
    return training._replace(buffer=buffer, env_state=env_state, observation=observation, key=key)


def log_prob(logits: jax.Array, action: jax.Array) -> jax.Array:
    """The logarithm of how likely the actions are."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), action[..., None], -1)[..., 0]


def advantages(weights: Weights, batch: fbuf.Rollout) -> jax.Array:
    """Return the generalised advantages of the actions: `[num_envs, steps]`."""
    rows = batch.data.item
    following = value_of(weights, batch.data.next_observation)
    return fbuf.targets.gae(
        batch, rows["reward"], rows["value"], following, gamma=GAMMA, lambda_=DECAY
    ).advantage


def loss(weights: Weights, rows: dict[str, jax.Array]) -> jax.Array:
    """Return the loss of PPO on a minibatch."""
    logits = forward(weights.policy, rows["observation"])
    advantage = rows["advantage"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = jnp.exp(log_prob(logits, rows["action"]) - rows["log_prob"])
    gain = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage)
    likely = jax.nn.log_softmax(logits)
    entropy = -(jnp.exp(likely) * likely).sum(-1)
    wanted = rows["value"] + rows["advantage"]
    error = value_of(weights, rows["observation"]) - wanted
    return (-gain - ENTROPY * entropy + 0.5 * error**2).mean()


def iteration(training: Training, _: None, iterations: int) -> tuple[Training, None]:
    """Collect a rollout, learn from it for some epochs, and forget it."""
    training = collect(training)
    key, sample_key = jax.random.split(training.key)
    batch = fbuf.rollout(training.buffer, view=fbuf.Transition())
    advantage = advantages(training.weights, batch)
    buffer = fbuf.write(training.buffer, batch.ids, {"advantage": advantage})

    def learn(carry: tuple[Weights, Any], number: jax.Array) -> tuple[Any, None]:
        weights, state = carry
        batch = fbuf.sample(buffer, sample_key, BATCH_SIZE, step=number)
        gradient = jax.grad(loss)(weights, batch.data)
        updates, state = optimiser(iterations).update(gradient, state)
        return (optax.apply_updates(weights, updates), state), None

    (weights, state), _ = jax.lax.scan(
        learn,
        (training.weights, training.optimiser),
        jnp.arange(EPOCHS * (ROWS // BATCH_SIZE)),
    )
    buffer = fbuf.clear(buffer)
    after = training._replace(weights=weights, optimiser=state, buffer=buffer, key=key)
    return after, None


# ---- the run -----------------------------------------------------------------------------------


def evaluate(weights: Weights, key: jax.Array) -> jax.Array:
    """The mean return of the greedy policy over 100 whole episodes."""
    reset_key, step_key = jax.random.split(key)
    begin = jax.vmap(ENV.reset, in_axes=(0, None))(jax.random.split(reset_key, 100), ENV_PARAMS)

    def step(carry: Any, key: jax.Array) -> tuple[Any, None]:
        observation, env_state, playing, score = carry
        action = forward(weights.policy, observation).argmax(-1).astype(jnp.int32)
        observation, env_state, reward, terminated, truncated, _ = jax.vmap(
            ENV.step, in_axes=(0, 0, 0, None)
        )(jax.random.split(key, 100), env_state, action, ENV_PARAMS)
        score += jnp.where(playing, reward, 0)
        return (observation, env_state, playing & ~(terminated | truncated), score), None

    keys = jax.random.split(step_key, ENV_PARAMS.max_steps_in_episode)
    carry = (*begin, jnp.ones(100, bool), jnp.zeros(100))
    return jax.lax.scan(step, carry, keys)[0][-1].mean()


@partial(jax.jit, static_argnames=("iterations", "report"))
def train(keys: jax.Array, iterations: int, report: Any) -> tuple[fbuf.State, jax.Array]:
    """Train an agent for each key; returns their buffers, and returns `[evaluations, seeds]`.

    `report` is called with the mean of them after each evaluation.
    """

    def stretch(training: Training, number: jax.Array) -> tuple[Training, jax.Array]:
        body = partial(iteration, iterations=iterations)
        training, _ = jax.lax.scan(body, training, None, length=iterations // EVALUATIONS)
        return training, evaluate(training.weights, jax.random.fold_in(training.key, number))

    def reported(trainings: Training, number: jax.Array) -> tuple[Training, jax.Array]:
        trainings, returns = jax.vmap(stretch, in_axes=(0, None))(trainings, number)
        jax.debug.callback(report, returns.mean())
        return trainings, returns

    trainings = jax.vmap(partial(start, iterations=iterations))(keys)
    trainings, returns = jax.lax.scan(reported, trainings, jnp.arange(EVALUATIONS))
    return trainings.buffer, returns


def plot(returns: jax.Array, iterations: int, path: pathlib.Path) -> None:
    """Save the learning curve of every seed."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    each = iterations // EVALUATIONS * ROWS / 1000
    steps = [(number + 1) * each for number in range(EVALUATIONS)]
    figure, axes = plt.subplots(figsize=(6, 3.5))
    axes.axhline(SOLVED, color="grey", linewidth=0.8, linestyle="--")
    axes.plot(steps, returns, color="tab:blue", alpha=0.3, linewidth=1)
    axes.plot(steps, returns.mean(axis=1), color="tab:blue", linewidth=2.5)
    axes.set(
        xlabel="environment steps of a seed (thousands)",
        ylabel="mean return of 100 episodes",
        xlim=(0, None),
        ylim=(0, 520),
        yticks=(0, 100, 200, 300, 400, SOLVED, 500),
        title=f"CartPole-v1, PPO in JAX: {returns.shape[1]} seeds and their mean",
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"learning curves     {path}")


def main() -> None:
    """Read the command line, train, and fail if an agent did not learn."""
    parser = argparse.ArgumentParser(
        description="PPO on CartPole-v1, all in JAX: many agents at once, each with its own "
        "buffer, in one compiled program. Prints what each agent gets in 100 episodes, and exits "
        "with an error if they did not learn.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything, for all agents")
    parser.add_argument("--seeds", type=int, default=8, help="how many agents to train at once")
    parser.add_argument(
        "--steps",
        type=int,
        default=ITERATIONS * ROWS,
        help=f"environment steps of each agent; each iteration takes {ROWS} of them. The mean "
        f"return over the agents must then be {SOLVED:.0f}",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a check that everything runs and learns, not that it solves the task: "
        f"{QUICK_ITERATIONS * ROWS} steps, and a mean return of {QUICK_BAR:.0f} will do",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default="outputs/ppo_jax.png",
        help="where the picture of the learning curves goes",
    )
    options = parser.parse_args()
    iterations, bar = (
        (QUICK_ITERATIONS, QUICK_BAR) if options.quick else (options.steps // ROWS, SOLVED)
    )
    if iterations < EVALUATIONS or options.seeds < 1:
        parser.error(f"there must be at least {EVALUATIONS * ROWS} steps and one agent")
    iterations -= iterations % EVALUATIONS  # as many as are made
    started = time.perf_counter()
    keys = jax.random.split(jax.random.key(options.seed), options.seeds)
    progress = tqdm(total=EVALUATIONS, unit=" evaluations", disable=None)

    def report(mean_return: Any) -> None:
        progress.set_postfix_str(f"return {float(mean_return):.1f}", refresh=False)
        progress.update()

    program = train.lower(keys, iterations, report).compile()
    compiled = time.perf_counter()
    progress.write(f"compiled in {compiled - started:.0f} s; training {options.seeds} agents")
    buffers, returns = jax.block_until_ready(program(keys))
    seconds = time.perf_counter() - compiled
    jax.effects_barrier()
    progress.close()
    fbuf.raise_on_fault(buffers)
    final = returns[-1]
    print(f"evaluation returns  {' '.join(f'{value:.1f}' for value in final)}")
    print(f"their mean          {final.mean():.1f}, and it decides; the least {final.min():.1f}")
    steps = iterations * ROWS * options.seeds
    print(f"environment steps   {steps / seconds:,.0f} a second, {seconds:.0f} s in all")
    plot(returns, iterations, options.plot)
    if float(final.mean()) < bar:
        sys.exit(f"failed: a mean return of {final.mean():.1f}, below {bar:.0f}")


if __name__ == "__main__":
    main()
