"""Learning every k-th step, in six ways: what each costs.

    python benchmarks/learn_every_k.py            some minutes on 2 cores
    python benchmarks/learn_every_k.py --quick    less of everything

Writes `results/learn_every_k.json` and `learn_every_k.md`, and the table in
`docs/learning_every_k_steps.md`.

Every program is one `lax.scan` whose carry, the buffer and a network, is donated. Each step adds 16
rows; at every k-th step a batch of 256 is drawn, the network learns from it, and the priorities of
the batch are updated. The network has two hidden layers of 128. The programs take turns, round by
round, in one process; figures are medians of rounds.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import timing

import fbuf

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "learning_every_k_steps.md"
ADDED, BATCH, WIDTH, OBSERVATION = 16, 256, 128, 20
ITEM = {"observation": jnp.zeros(OBSERVATION), "reward": 0.0}


def network(key: jax.Array) -> list[jax.Array]:
    """The weights of three layers."""
    sizes = (OBSERVATION, WIDTH, WIDTH, 1)
    keys = jax.random.split(key, 3)
    return [
        jax.random.normal(k, (a, b)) * a**-0.5
        for k, a, b in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def learn(params: list[jax.Array], batch: fbuf.Sample) -> tuple[list[jax.Array], jax.Array]:
    """One step of gradient descent, and the TD errors."""

    def loss(params: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
        x = batch.data["observation"]
        for weights in params[:-1]:
            x = jax.nn.relu(x @ weights)
        error = batch.data["reward"] - (x @ params[-1])[:, 0]
        return jnp.mean(batch.weight * error**2), jnp.abs(error)

    gradient, error = jax.grad(loss, has_aux=True)(params)
    return [p - 1e-3 * g for p, g in zip(params, gradient, strict=True)], error


def act(key: jax.Array) -> Any:
    """Made-up rows."""
    observation = jax.random.uniform(key, (ADDED, OBSERVATION))
    return {"observation": observation, "reward": observation[:, 0]}


Carry = tuple[fbuf.State, list[jax.Array], jax.Array]


def every_step(carry: Carry, key: jax.Array, k: int) -> Carry:
    """Learn at every step; k plays no part."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)
    state = fbuf.add(state, act(act_key))
    batch = fbuf.sample(state, sample_key, BATCH)
    params, error = learn(params, batch)
    return fbuf.update_priority(state, batch.ids, error), params, number + 1


def two_loops(carry: Carry, key: jax.Array, k: int) -> Carry:
    """Add k times in a loop of its own, then learn once."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)

    def add(state: fbuf.State, key: jax.Array) -> tuple[fbuf.State, None]:
        return fbuf.add(state, act(key)), None

    state, _ = jax.lax.scan(add, state, jax.random.split(act_key, k))
    batch = fbuf.sample(state, sample_key, BATCH)
    params, error = learn(params, batch)
    return fbuf.update_priority(state, batch.ids, error), params, number + k


def gradient_in_cond(carry: Carry, key: jax.Array, k: int) -> Carry:
    """Draw and update at every step, and put only the gradient into the branch."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)
    state = fbuf.add(state, act(act_key))
    batch = fbuf.sample(state, sample_key, BATCH)
    due = number % k == 0
    params, error = jax.lax.cond(due, learn, lambda p, _: (p, jnp.zeros(BATCH)), params, batch)
    return fbuf.update_priority(state, batch.ids, error, mask=due), params, number + 1


def weights_zeroed(carry: Carry, key: jax.Array, k: int) -> Carry:
    """No branch: learn at every step, and throw away what is not due."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)
    state = fbuf.add(state, act(act_key))
    batch = fbuf.sample(state, sample_key, BATCH)
    due = number % k == 0
    new, error = learn(params, batch)
    params = jax.tree.map(lambda a, b: jnp.where(due, a, b), new, params)
    return fbuf.update_priority(state, batch.ids, error, mask=due), params, number + 1


def read_in_cond(carry: Carry, key: jax.Array, k: int) -> Carry:
    """Draw in the branch, too: the buffer goes in, and does not come out."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)
    state = fbuf.add(state, act(act_key))
    due = number % k == 0

    def draw(state: fbuf.State, params: Any) -> Any:
        batch = fbuf.sample(state, sample_key, BATCH)
        return *learn(params, batch), batch.ids

    shapes = jax.eval_shape(draw, state, params)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes[1:])
    params, error, ids = jax.lax.cond(due, draw, lambda _, p: (p, *nothing), state, params)
    return fbuf.update_priority(state, ids, error, mask=due), params, number + 1


def buffer_in_cond(carry: Carry, key: jax.Array, k: int) -> Carry:
    """Everything in the branch, the buffer too: what not to do."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)
    state = fbuf.add(state, act(act_key))

    def due(state: fbuf.State, params: Any) -> tuple[fbuf.State, Any]:
        batch = fbuf.sample(state, sample_key, BATCH)
        params, error = learn(params, batch)
        return fbuf.update_priority(state, batch.ids, error), params

    state, params = jax.lax.cond(
        number % k == 0, due, lambda state, params: (state, params), state, params
    )
    return state, params, number + 1


def add_in_cond(carry: Carry, key: jax.Array, k: int) -> Carry:
    """Adding in the branch: only its memory is looked at."""
    state, params, number = carry
    act_key, sample_key = jax.random.split(key)
    rows = act(act_key)
    state = jax.lax.cond(
        number % k != 0, lambda state: fbuf.add(state, rows), lambda state: state, state
    )
    batch = fbuf.sample(state, sample_key, BATCH)
    params, error = learn(params, batch)
    return fbuf.update_priority(state, batch.ids, error), params, number + 1


WAYS: dict[str, Callable[[Carry, jax.Array, int], Carry]] = {
    "two loops: add k times, then learn": two_loops,
    "gradient in `cond`, buffer outside": gradient_in_cond,
    "no branch: learn, and throw away": weights_zeroed,
    "drawing and gradient in `cond`, writing outside": read_in_cond,
    "all of it in `cond`, the buffer too": buffer_in_cond,
    "learn at every step, for comparison": every_step,
}


MEMORY = {
    "gradient in `cond`, buffer outside": gradient_in_cond,
    "drawing and gradient in `cond`, writing outside": read_in_cond,
    "all of it in `cond`, the buffer too": buffer_in_cond,
    "adding in `cond`": add_in_cond,
}
"""The ways whose memory is looked at."""


def temporary(step: Callable[[Carry, jax.Array, int], Carry], capacity: int) -> list[int]:
    """Temporary bytes of the compiled program: of one buffer, and of two under `vmap`.

    Under `vmap` each buffer has a step counter of its own, and so a condition of its own.
    """
    keys = jax.random.split(jax.random.key(1), 16)

    def start() -> Carry:
        state = fbuf.init(ITEM, capacity, sampler=fbuf.Prioritized())
        return state, network(jax.random.key(2)), jnp.int32(0)

    one = jax.eval_shape(start)
    two = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape), x.dtype), one)
    found = []
    for carry, body in (
        (one, lambda c, key: step(c, key, 4)),
        (two, lambda c, key: jax.vmap(lambda c: step(c, key, 4))(c)),
    ):
        _, memory = timing.scanned(body, carry, keys)
        found.append(memory.temp_size_in_bytes)
    return found


def program(
    step: Callable[[Carry, jax.Array, int], Carry], capacity: int, k: int, steps: int
) -> timing.Run:
    """A run of so many steps."""
    state = fbuf.init(ITEM, capacity, sampler=fbuf.Prioritized())
    rows = {
        "observation": jax.random.uniform(jax.random.key(0), (capacity, OBSERVATION)),
        "reward": jnp.ones(capacity),
    }
    state = fbuf.add(state, rows)
    calls = steps // k if step is two_loops else steps
    keys = jax.random.split(jax.random.key(1), calls)
    carry: Carry = (state, network(jax.random.key(2)), jnp.int32(0))
    compiled, _ = timing.scanned(lambda c, key: step(c, key, k), carry, keys)

    def run() -> int:
        nonlocal carry
        carry = jax.block_until_ready(compiled(carry, keys))
        return steps

    return run


def main() -> None:
    """Measure, and write the report and the table of the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="less of everything")
    parser.add_argument("--out", type=pathlib.Path, default=timing.RESULTS)
    options = parser.parse_args()
    sizes = (10_000, 1_000_000)
    every = (4, 32)
    rounds, steps = (5, 128) if options.quick else (9, 256)

    records: list[timing.Record] = []
    for capacity in sizes:
        for k in every:
            made = {name: program(step, capacity, k, steps) for name, step in WAYS.items()}
            taken = timing.alternate(made, rounds, 60)
            records += [
                {
                    "way": name,
                    "capacity": capacity,
                    "k": k,
                    "us": timing.median(times),
                    "rounds": times,
                }
                for name, times in taken.items()
            ]
            del made
            jax.clear_caches()

    head = ["", *(f"k = {k}, {capacity:,} rows" for capacity in sizes for k in every)]
    found = {(r["way"], r["capacity"], r["k"]): r for r in records}
    lines = [
        [
            name,
            *(f"{found[name, capacity, k]['us']:,.1f}" for capacity in sizes for k in every),
        ]
        for name in WAYS
    ]
    memory = [
        [name, *(f"{size / 2**20:,.1f}" for size in temporary(step, sizes[-1]))]
        for name, step in MEMORY.items()
    ]
    about = timing.about("fbuf", "jax", "jaxlib")
    table = [
        f"Microseconds a step, on {about['processor']}, with jax {about['jax']}:",
        "",
        *timing.render(head, lines),
        "",
        f"Temporary memory of the compiled program in MiB, for {sizes[-1]:,} rows:",
        "",
        *timing.render(["", "one buffer", "two, each with a condition of its own"], memory),
    ]
    report = ["# Learning every k-th step", "", (__doc__ or "").strip(), "", *table, ""]
    report.append(", ".join(f"{name} {value}" for name, value in about.items()))
    timing.write_report("learn_every_k", options.out, about, records, report)
    if options.out == timing.RESULTS and PAGE.exists():
        before, _, rest = PAGE.read_text().partition("<!-- figures:begin -->\n")
        _, end, after = rest.partition("<!-- figures:end -->")
        PAGE.write_text(
            "\n".join([before + "<!-- figures:begin -->", *table, end + after]) if end else before
        )


if __name__ == "__main__":
    main()
