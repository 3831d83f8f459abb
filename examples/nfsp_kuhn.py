"""Fictitious self-play in poker: an average over all of training needs a reservoir, not a ring.

    python examples/nfsp_kuhn.py --help

Kuhn poker has three cards and two players. Each pays one chip and gets a card; then they pass or
bet one chip more. Good players bluff: they bet some hands by chance. The best response to any
policy does not, so learners that only respond to each other go around in circles. Their average
over all of training goes to an equilibrium: that is fictitious play.

In NFSP two networks learn from two memories. One network learns the best response by Q-learning,
from the newest steps: a ring. The other one, the average policy, copies what the best responses of
all times did. Its memory has room for a part of their steps alone. `fbuf.Reservoir` keeps a random
part, each step with the same probability. A ring, `fbuf.Uniform`, keeps the newest part, so the
average policy follows the circles.

The script trains with both memories, of several capacities, five seeds each. Nothing else differs.
How far a policy is from an equilibrium, its exploitability, is exact: all replies are tried.

Needs optax and matplotlib.

References:
    Heinrich and Silver, Deep Reinforcement Learning from Self-Play in Imperfect-Information Games,
    arXiv:1603.01121.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import sys
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax

import fbuf

# A player knows a card and a situation; both are one number, 4 * card + situation.
# The cards are 0, 1 and 2; the highest wins.
CARDS, SITUATIONS = 3, 4
# The second player is asked in the middle two.
FIRST, AFTER_PASS, AFTER_BET, ANSWER = range(SITUATIONS)
PASS, BET = 0, 1
OVER = -1  # in place of what the player knows next

HANDS = 64  # at once, in a round
RESPOND = 0.1  # the share of players that play the best response; the others play the average
EPSILON = 0.1  # of exploration, by those that play the best response
RECENT = 4_000  # steps, from which the best response is learned
BATCH_SIZE = 128
HIDDEN = 64
LEARNING_RATE = 3e-3

ROUNDS, QUICK_ROUNDS = 8_000, 2_500
SEEDS, QUICK_SEEDS = 5, 2
SHOWN, QUICK_SHOWN = 20_000, 2_000  # the capacity that is judged, and whose curves are drawn
CAPACITIES, QUICK_CAPACITIES = (200, 2_000, SHOWN, 200_000), (QUICK_SHOWN,)
EVALUATIONS = 40
BAR, QUICK_BAR = 0.04, 0.12  # an average policy from a reservoir is less exploitable than this
GAIN = 3.0  # and one from a ring at least so many times as exploitable

# The seeds of a training share the choice which steps to keep; the steps are their own.
MEMORIES = {"reservoir": fbuf.Reservoir(), "ring": fbuf.Uniform()}

Layers = list[tuple[jax.Array, jax.Array]]
Weights = dict[str, Layers]


class Training(NamedTuple):
    """Everything there is: the carry of the scan."""

    weights: Weights  # of both networks
    optimiser: Any
    recent: fbuf.State  # the newest steps of all players
    responses: fbuf.State  # what best responses did: the memory of the average policy
    key: jax.Array


# ---- the game --------------------------------------------------------------------------------


def payoff(sign: Any, first: Any, second: Any, answer: Any) -> Any:
    """The chips that the first player wins in a hand.

    Each action is 0 for a pass and 1 for a bet, or the probability of a bet: then it is the mean.
    `sign` is 1 if the first player has the higher card, and -1 otherwise.
    """
    after_bet = second * 2 * sign + (1 - second)
    after_pass = second * (answer * 2 * sign - (1 - answer)) + (1 - second) * sign
    return first * after_bet + (1 - first) * after_pass


def value(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    """The mean winnings of the first player over all deals.

    Both policies are probabilities of a bet, `[..., CARDS, 2]`: `one` at first and as an answer,
    `two` after a pass and after a bet.
    """
    won = []
    for mine, yours in itertools.permutations(range(CARDS), 2):
        sign = 1 if mine > yours else -1
        first, answer = one[..., mine, 0], one[..., mine, 1]
        after_pass, after_bet = two[..., yours, 0], two[..., yours, 1]
        betting, passing = payoff(sign, 1, after_bet, answer), payoff(sign, 0, after_pass, answer)
        won.append(first * betting + (1 - first) * passing)
    return np.mean(won, axis=0)


def exploitability(bet: np.ndarray) -> float:
    """The chips a hand that the best reply wins, the mean of both seats; 0 at an equilibrium.

    `bet` is the probability of a bet in each place, `[CARDS, SITUATIONS]`.
    """
    one, two = bet[:, [FIRST, ANSWER]], bet[:, [AFTER_PASS, AFTER_BET]]
    replies = np.array(list(itertools.product((0, 1), repeat=6))).reshape(-1, CARDS, 2)
    return (value(replies, two).max() - value(one, replies).min()) / 2


# ---- both networks ---------------------------------------------------------------------------


def initial_layers(key: jax.Array) -> Layers:
    sizes = (CARDS + SITUATIONS, HIDDEN, 2)
    keys = jax.random.split(key, 2)
    pairs = zip(keys, sizes[:-1], sizes[1:], strict=True)
    return [(jax.random.normal(k, (a, b)) * a**-0.5, jnp.zeros(b)) for k, a, b in pairs]


def network(layers: Layers, known: jax.Array) -> jax.Array:
    """Two numbers, for pass and bet: the Q-values, or the logits of the average policy."""
    card, situation = known // SITUATIONS, known % SITUATIONS
    x = jnp.concatenate([jax.nn.one_hot(card, CARDS), jax.nn.one_hot(situation, SITUATIONS)], -1)
    (weight, bias), (last_weight, last_bias) = layers
    return jax.nn.relu(x @ weight + bias) @ last_weight + last_bias


def best_response(weights: Weights, known: jax.Array) -> jax.Array:
    return network(weights["q"], known).argmax(-1).astype(jnp.int32)


def average_policy(weights: Weights, known: jax.Array) -> jax.Array:
    """The probability of a bet."""
    return jax.nn.softmax(network(weights["average"], known))[..., BET]


def loss(weights: Weights, recent: fbuf.Batch, responses: fbuf.Batch) -> jax.Array:
    """Q-learning from recent steps, and copying of all that best responses ever did."""
    step = recent.data
    later = network(weights["q"], step["next"]).max(-1)
    wanted = step["reward"] + jnp.where(step["next"] == OVER, 0, jax.lax.stop_gradient(later))
    said = network(weights["q"], step["known"])
    said = jnp.take_along_axis(said, step["action"][:, None], 1)[:, 0]

    copied = responses.data
    logits = network(weights["average"], copied["known"])
    surprise = optax.softmax_cross_entropy_with_integer_labels(logits, copied["action"])
    # In the first rounds there may be no response yet.
    return jnp.square(said - wanted).mean() + (surprise * responses.mask).mean()


# ---- training --------------------------------------------------------------------------------


def play(weights: Weights, key: jax.Array) -> tuple[dict[str, jax.Array], jax.Array, jax.Array]:
    """Deal hands and play them.

    Returns the three steps of each hand, `[3 * HANDS]`. The two masks say which of them took place,
    and which of them a best response made.
    """
    deal_key, role_key, *keys = jax.random.split(key, 5)
    cards = jnp.argsort(jax.random.uniform(deal_key, (HANDS, CARDS)), axis=1)
    mine, yours = cards[:, 0] * SITUATIONS, cards[:, 1] * SITUATIONS
    responds = jax.random.bernoulli(role_key, RESPOND, (2, HANDS))

    def act(known: jax.Array, responds: jax.Array, key: jax.Array) -> jax.Array:
        explore_key, random_key, average_key = jax.random.split(key, 3)
        explored = jax.random.bernoulli(random_key, 0.5, (HANDS,))
        explore = jax.random.bernoulli(explore_key, EPSILON, (HANDS,))
        best = jnp.where(explore, explored, best_response(weights, known) == BET)
        average = jax.random.bernoulli(average_key, average_policy(weights, known))
        return jnp.where(responds, best, average).astype(jnp.int32)

    first = act(mine + FIRST, responds[0], keys[0])
    reply = jnp.where(first == BET, yours + AFTER_BET, yours + AFTER_PASS)
    second = act(reply, responds[1], keys[1])
    answer = act(mine + ANSWER, responds[0], keys[2])
    asked = (first == PASS) & (second == BET)  # the first player has to answer

    won = payoff(jnp.sign(mine - yours), first, second, answer).astype(jnp.float32)
    over = jnp.full(HANDS, OVER)
    steps = {
        "known": jnp.concatenate([mine + FIRST, reply, mine + ANSWER]),
        "action": jnp.concatenate([first, second, answer]),
        "reward": jnp.concatenate([jnp.where(asked, 0, won), -won, won]),
        "next": jnp.concatenate([jnp.where(asked, mine + ANSWER, OVER), over, over]),
    }
    happened = jnp.concatenate([jnp.ones(2 * HANDS, bool), asked])
    return steps, happened, happened & jnp.concatenate([responds[0], responds[1], responds[0]])


def train_round(training: Training, _: None) -> tuple[Training, None]:
    """Play some hands, remember them, and learn from one batch of each memory."""
    weights, optimiser, recent, responses, key = training
    key, play_key, recent_key, responses_key = jax.random.split(key, 4)
    steps, happened, responded = play(weights, play_key)
    recent = fbuf.add(recent, steps, mask=happened)
    # The average policy copies the best response itself, without its exploration.
    copied = {"known": steps["known"], "action": best_response(weights, steps["known"])}
    responses = fbuf.add(responses, copied, mask=responded)

    recent_batch = fbuf.sample(recent, recent_key, BATCH_SIZE)
    responses_batch = fbuf.sample(responses, responses_key, BATCH_SIZE)
    recent = fbuf.after(recent, recent_batch)  # the next write waits for the batch
    responses = fbuf.after(responses, responses_batch)
    gradient = jax.grad(loss)(weights, recent_batch, responses_batch)
    updates, optimiser = optax.adam(LEARNING_RATE).update(gradient, optimiser)
    weights = optax.apply_updates(weights, updates)
    return Training(weights, optimiser, recent, responses, key), None


def start(key: jax.Array, sampler: Any, capacity: int) -> Training:
    """Two new networks and two empty memories."""
    q_key, average_key, key = jax.random.split(key, 3)
    weights = {"q": initial_layers(q_key), "average": initial_layers(average_key)}
    number = jnp.int32(0)
    step = {"known": number, "action": number, "reward": 0.0, "next": number}
    recent = fbuf.init(step, RECENT, sampler=fbuf.Uniform())
    responses = fbuf.init({"known": number, "action": number}, capacity, sampler=sampler)
    return Training(weights, optax.adam(LEARNING_RATE).init(weights), recent, responses, key)


@partial(jax.jit, static_argnames=("sampler", "capacity", "rounds"))
def train(
    keys: jax.Array, sampler: Any, capacity: int, rounds: int
) -> tuple[fbuf.State, jax.Array]:
    """Train from each key.

    Returns the memories of the average policies, and these policies on the way: the probabilities
    of a bet, `[seeds, EVALUATIONS, CARDS, SITUATIONS]`.
    """
    everything = jnp.arange(CARDS * SITUATIONS)

    def stretch(training: Training, _: None) -> tuple[Training, jax.Array]:
        training, _ = jax.lax.scan(train_round, training, None, length=rounds // EVALUATIONS)
        return training, average_policy(training.weights, everything)

    def one(key: jax.Array) -> tuple[fbuf.State, jax.Array]:
        begin = start(key, sampler, capacity)
        training, bet = jax.lax.scan(stretch, begin, None, length=EVALUATIONS)
        return training.responses, bet.reshape(EVALUATIONS, CARDS, SITUATIONS)

    return jax.vmap(one)(keys)


# ---- the run ---------------------------------------------------------------------------------


def late(curves: np.ndarray) -> np.ndarray:
    """The exploitability of each seed, as the mean over the last quarter of training."""
    return curves[:, -EVALUATIONS // 4 :].mean(axis=1)


def plot(
    found: dict[tuple[str, int], np.ndarray],
    shown: int,
    steps: float,
    rounds: int,
    path: pathlib.Path,
) -> None:
    """Save the curves from memories of one capacity, and what came of all capacities."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    capacities = sorted({capacity for _, capacity in found})
    hands = (1 + np.arange(EVALUATIONS)) * (rounds // EVALUATIONS) * HANDS / 1000
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True)
    for name, color in zip(MEMORIES, ("tab:blue", "tab:grey"), strict=True):
        curves = found[name, shown]
        left.plot(hands, curves.mean(axis=0), color=color, linewidth=2, label=name)
        left.fill_between(hands, curves.min(axis=0), curves.max(axis=0), color=color, alpha=0.2)
        ends = {capacity: late(found[name, capacity]) for capacity in capacities}
        right.plot(capacities, [end.mean() for end in ends.values()], color=color, linewidth=2)
        for capacity, end in ends.items():
            right.plot([capacity] * len(end), end, "o", color=color, alpha=0.5)
    marked = {"color": "black", "linewidth": 0.8, "linestyle": ":"}
    left.axvline(hands[-1] * shown / steps, label="the memory is full", **marked)
    left.set(
        xlabel="hands played (thousands)",
        ylabel="exploitability (chips a hand)",
        xlim=(0, hands[-1]),
        ylim=(0, 1.4 * left.get_ylim()[1]),  # room for the legends
        title=f"room for {shown:,} steps: mean and range",
    )
    right.axvline(steps, label="steps in all", **marked)
    right.set(
        xscale="log",
        xlabel="steps that the memory has room for",
        title="last quarter of training, each seed",
    )
    right.set_xticks(capacities, [f"{capacity:,}" for capacity in capacities])
    right.minorticks_off()
    for axes, corner in ((left, "upper right"), (right, "upper left")):
        axes.legend(frameon=False, loc=corner)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"picture               {path}")


def main() -> None:
    """Read the command line, train, and fail if the reservoir is not what brings the average."""
    parser = argparse.ArgumentParser(
        description="NFSP in Kuhn poker, whose average policy learns from a reservoir or from a "
        "ring, of several capacities. Prints the exploitability of the average policy, the mean "
        f"over the last quarter of training. With room for {SHOWN:,} steps, it has to be below "
        f"{BAR} from a reservoir, and at least {GAIN:.0f} times as high from a ring. If not, the "
        "script exits with an error.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0, help="of everything")
    parser.add_argument(
        "--rounds",
        type=int,
        default=ROUNDS,
        help=f"of each training; a round plays {HANDS} hands and learns once from each memory",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_ROUNDS} rounds, {QUICK_SEEDS} seeds, and room for {QUICK_SHOWN:,} steps "
        f"alone; an exploitability of {QUICK_BAR} will do",
    )
    parser.add_argument(
        "--plot",
        type=pathlib.Path,
        default="outputs/nfsp_kuhn.png",
        help="where the picture goes",
    )
    options = parser.parse_args()
    rounds, seeds = options.rounds, SEEDS
    capacities, shown, bar = CAPACITIES, SHOWN, BAR
    if options.quick:
        rounds, seeds = QUICK_ROUNDS, QUICK_SEEDS
        capacities, shown, bar = QUICK_CAPACITIES, QUICK_SHOWN, QUICK_BAR
    if rounds < EVALUATIONS:
        parser.error(f"there must be at least {EVALUATIONS} rounds")
    rounds -= rounds % EVALUATIONS  # as many as are made
    started = time.perf_counter()
    keys = jax.random.split(jax.random.key(options.seed), seeds)
    print("exploitability from a memory: the mean, and each seed")
    found, steps = {}, 0.0
    for capacity in capacities:
        for name, sampler in MEMORIES.items():
            memories, policies = train(keys, sampler, capacity, rounds)
            fbuf.raise_on_fault(memories)
            if name == "reservoir":  # a ring does not count
                steps = float(jax.vmap(fbuf.stats)(memories)["added"].mean())
            each = [[exploitability(bet) for bet in seed] for seed in np.asarray(policies)]
            found[name, capacity] = np.array(each)
            ends = late(found[name, capacity])
            seen = " ".join(f"{end:.3f}" for end in ends)
            print(f"  {name + f' of {capacity:,}':<22}{ends.mean():.3f}   {seen}", flush=True)
    print(f"steps to copy         {steps:,.0f} in all")
    print(f"seconds               {time.perf_counter() - started:.0f}")
    plot(found, shown, steps, rounds, options.plot)
    reservoir, ring = (float(late(found[name, shown]).mean()) for name in MEMORIES)
    if reservoir > bar:
        sys.exit(f"failed: {reservoir:.3f} from a reservoir is above {bar}")
    if ring < GAIN * reservoir:
        sys.exit(f"failed: {ring:.3f} from a ring is only {ring / reservoir:.1f} times as high")


if __name__ == "__main__":
    main()
