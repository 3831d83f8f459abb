"""A check of a sampler against the contracts of all samplers, and against its law."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fbuf
from fbuf.samplers import Ask, Sampler
from fbuf.testing import forms, frequencies
from fbuf.testing.case import Case, check_static, draw, equal, histories, plain
from fbuf.testing.oracle import Oracle
from fbuf.testing.pair import Pair, rows

BATCH = 16
_FEW = 4
"""The draws of a batch, few enough for several batches in an epoch."""
_MANY = 2**14
"""The number of draws to compare with probabilities."""


def check_sampler(
    sampler: Sampler,
    *,
    law: Callable[[Oracle], Mapping[int, float]] | None = None,
    new_priority: Callable[[Oracle], float] | None = None,
    rows: Callable[[Any], Any] = rows,
    shapes: Sequence[Sequence[Any]] | None = None,
    seeds: Iterable[int] = range(3),
    operations: int = 12,
    in_place: bool = True,
) -> None:
    """Raise if a sampler breaks a contract, or does not draw as its law says.

    A buffer with the sampler goes through random histories of adds, ends of episodes, removals,
    updates of priorities and clears. After each operation it must hold:

    - drawn rows are stored: none was removed or overwritten. Ids and data belong to each other.
      `min_window` steps of its episode follow each, counting itself.
    - a draw changes nothing, and the same key gives the same batch.
    - `batch.probability` is what `fbuf.probability` says, and what `law` says.
    - a batch is masked where `fbuf.can_sample` says that there is nothing to draw.
    - weights lie between 0 and 1, and a likelier row of a batch has no larger weight.
    - no operation sets a fault.

    After each history, counts of draws fit the probabilities; with `without_replacement`, no row
    comes twice in an epoch. A saved and loaded buffer, and one of another capacity (`fbuf.resize`),
    draw as they should. Eager, in `jit`, `scan`, `cond` and under `vmap` a step does the same. No
    step copies an array of the buffer.

    Args:
        sampler: The sampler. Queues, and samplers that choose the slots of new rows, are refused.
        law: A function of the oracle of the buffer. It returns the probability of each slot in one
            draw; slots that it leaves out are never drawn. None checks the contracts alone.
        new_priority: For a law with priorities: a function of the oracle that returns the priority
            of a row that is added without one. It is called before such rows are added. Without it
            such a row has the priority None.
        rows: A function that turns integers of any shape into rows, leaves `[*shape, ...]`. Give
            your own if the sampler looks at a field.
        shapes: The shapes of the buffers, each the fields of a `fbuf.testing.Shape`. Those that
            `fbuf.init` refuses with a `ValueError` are left out; one must be accepted. None is one
            lane, three environments that step together, and three that do not.
        seeds: The seeds of the histories.
        operations: The operations of a history.
        in_place: Whether to look for copies. Give False for a sampler that reads all rows.

    Raises:
        AssertionError: If the sampler fails. The message says how, and with which shape and seed.
        ValueError: If this check is not for samplers of this kind.

    Cost: some 20 seconds, most of them for compiling.

    Examples:
        >>> import fbuf
        >>> from fbuf import testing
        >>> def evenly(oracle):
        ...     return dict.fromkeys(oracle.stored(), 1 / max(len(oracle.stored()), 1))
        >>> options = {"shapes": [(None, 6)], "seeds": [0], "operations": 4, "in_place": False}
        >>> testing.check_sampler(fbuf.Uniform(), law=evenly, **options)

        A sampler that does something else than the law says:

        >>> def newest(oracle):
        ...     return {slot: 1.0 for slot in oracle.stored() if oracle.age(slot) == 0}
        >>> try:
        ...     testing.check_sampler(fbuf.Uniform(), law=newest, **options)
        ... except AssertionError as error:
        ...     print(str(error).partition(". ")[0][-47:])
        probability 0.166667, and the law says 0.000000
    """
    if sampler.is_queue or sampler.places:
        kind = "a queue" if sampler.is_queue else "one that chooses the slots of new rows"
        raise ValueError(
            f"fbuf.testing.check_sampler: {type(sampler).__name__} is {kind}, which this check is "
            "not for; write a test of its own"
        )
    case = Case("check_sampler", sampler)
    check_static(case)
    wanted, first = list(seeds), True
    options = {"make": rows, "new_priority": new_priority}
    found = histories(case, sampler, shapes, wanted, operations, **options)
    for here, pair, rng in found:
        _agree(here, pair, rng, law)
        if len(here.done) <= operations:
            continue
        _counts(here, pair)
        _saved(here, pair)
        if first:  # slow to compile
            first = False
            forms.check_forms(here, pair.state, rows, fbuf.Item())
            if in_place:
                forms.check_in_place(here, pair.state, rows, fbuf.Item())
        if here.seed == wanted[0]:
            _resized(here, pair, rng, law)


@functools.partial(jax.jit, static_argnames=("batch_size",))
def _look(state: Any, key: Any, batch_size: int, step: Any = 0) -> Any:
    """Return a batch, the probabilities of slots, `can_sample` and the draw, from one program."""
    slots = jnp.arange(state.capacity, dtype=jnp.int32)
    likely = fbuf.probability(state, fbuf.ids_at(state, slots))
    given = (jnp.int32(0), jnp.int32(0)) if state.sampler.without_replacement else None
    own = state.sampler.draw(state.index, state.ring, Ask(key, batch_size, step=given))
    _, batch = draw(state, key, batch_size, step=step)
    return batch, likely, fbuf.can_sample(state), own


def _agree(
    case: Case,
    pair: Pair,
    rng: np.random.Generator,
    law: Callable[[Any], Mapping[int, float]] | None,
) -> None:
    """Require that a batch of the buffer is valid."""
    sampler, key = pair.sampler, jax.random.key(int(rng.integers(2**31)))
    before = [plain(leaf).tobytes() for leaf in jax.tree.leaves(pair.state)]
    with case.doing("a draw"):
        batch, likely, can_sample, own = jax.device_get(_look(pair.state, key, BATCH))
    after = [plain(leaf).tobytes() for leaf in jax.tree.leaves(pair.state)]
    case.require(before == after, "a draw has changed the state")
    again = jax.device_get(_look(pair.state, key, BATCH))
    case.close(again[0], batch, "the same key gives another batch")
    fault = fbuf.Fault(int(pair.state.fault)) & ~fbuf.Fault.NOTHING_TO_DRAW
    case.require(fault == pair.oracle.fault, f"the operations have set {fault!r}")
    _is_draw(case, own, pair.state.capacity)
    _drawn_rows(case, pair, batch)
    weight = np.asarray(batch.weight)
    case.require(
        np.isfinite(weight).all() and (weight >= 0).all() and (weight <= 1 + 1e-5).all(),
        "weights must lie between 0 and 1",
    )
    case.require(not weight[~batch.mask].any(), "masked draws must have the weight 0")
    case.require(
        bool(can_sample) or not batch.mask.any(),
        "fbuf.can_sample says that there is no row to draw, and one was drawn",
    )
    case.require((likely >= 0).all() and likely.sum() < 1.001, "probabilities sum to more than 1")
    if not sampler.notes_draws:  # a batch of such a one has rows that came for other reasons
        _importance(case, batch.probability[batch.mask], weight[batch.mask])
        for slot, p in zip(batch.ids.slot[batch.mask], batch.probability[batch.mask], strict=True):
            case.require(
                p > 0 and equal(p, likely[slot]),
                f"slot {slot} was drawn with batch.probability {p:.6f}, and fbuf.probability says "
                f"{likely[slot]:.6f}",
            )
    if law is not None:
        _by_law(case, pair, law(pair.oracle), likely, bool(can_sample), batch.mask)


def _importance(case: Case, probability: np.ndarray, weight: np.ndarray) -> None:
    """Require that the weights make up for the probabilities: no likelier row has a larger one."""
    least = np.minimum.accumulate(weight[np.argsort(probability)])
    above = np.maximum(weight[np.argsort(probability)] - least, 0)
    case.require(
        (above <= 1e-4 * least).all(), "a row that is likelier than another has a larger weight"
    )


def _is_draw(case: Case, drawn: Any, capacity: int) -> None:
    """Require that a draw of the sampler has the right dtypes, and slots in range."""
    dtypes = {"slots": "int32", "mask": "bool"}
    for name in ("slots", "probability", "weight", "log_weight", "mask"):
        leaf, dtype = np.asarray(getattr(drawn, name)), dtypes.get(name, "float32")
        case.require(
            leaf.dtype == dtype and leaf.shape == (BATCH,),
            f"{name} of its Draw must be {dtype}[{BATCH}], and is {leaf.dtype}{list(leaf.shape)}",
        )
    inside = (drawn.slots >= 0) & (drawn.slots < capacity)
    case.require(inside.all(), "slots of its Draw must be in range, also where they are masked")
    case.require(not np.isnan(drawn.log_weight).any(), "log_weight of its Draw is NaN")


def _drawn_rows(case: Case, pair: Pair, batch: Any) -> None:
    """Require that drawn rows are stored, and that ids, flags and data belong to each other."""
    oracle, stored, sampler = pair.oracle, set(pair.oracle.stored()), pair.sampler
    for at in np.flatnonzero(batch.mask):
        slot, row = int(batch.ids.slot[at]), oracle.at(int(batch.ids.slot[at]))
        case.require(row is not None, f"slot {slot} was drawn, and it holds no row")
        case.require(not row.removed, f"slot {slot} was drawn, and its row was removed")
        case.require(slot in stored, f"slot {slot} was drawn, and its row only reset an env")
        follow, least = len(oracle.ahead(slot, sampler.min_window)), sampler.min_window
        case.require(
            follow == least,
            f"slot {slot} was drawn, and {follow} steps follow in its episode, counting itself; "
            f"min_window says {least}",
        )
        same = batch.ids.generation[at] == row.generation
        data = jax.tree.map(lambda leaf, at=at: leaf[at], batch.data)
        made = pair.make(np.int32(row.number))
        leaves = zip(jax.tree.leaves(data), jax.tree.leaves(made), strict=True)
        case.require(
            same and all(equal(x, np.asarray(y)) for x, y in leaves),
            f"slot {slot} was drawn, and its id or its data is that of another row",
        )


def _by_law(
    case: Case,
    pair: Pair,
    law: Mapping[int, float],
    likely: np.ndarray,
    can_sample: bool,
    mask: np.ndarray,
) -> None:
    """Require that each row has the probability of the law."""
    for slot in pair.oracle.stored():
        wanted = law.get(slot, 0.0)
        case.require(
            abs(likely[slot] - wanted) <= 1e-6 + 1e-4 * wanted,
            f"slot {slot} (row {pair.oracle.at(slot).number}) has the probability "
            f"{likely[slot]:.6f}, and the law says {wanted:.6f}",
        )
    total = sum(law.values())
    case.require(
        can_sample == (total > 0),
        f"fbuf.can_sample is {can_sample}, and the probabilities of the law sum to {total:.4f}",
    )
    if total > 0.999 and not pair.sampler.without_replacement:
        case.require(mask.all(), "a draw is masked, although the law has rows to draw")


def _counts(case: Case, pair: Pair) -> None:
    """Require that counts of draws fit the probabilities."""
    if pair.sampler.notes_draws:
        return
    if pair.sampler.without_replacement:
        _epoch(case, pair)
        return
    with case.doing("a draw of many"):
        found = jax.device_get(_look(pair.state, jax.random.key(case.seed or 0), _MANY))
    batch, likely, can_sample, _ = found
    slots = batch.ids.slot[batch.mask]
    if not slots.size:
        case.require(
            not can_sample or not likely.sum(),
            f"fbuf.can_sample says that there is a row to draw, and none of {_MANY} draws had one",
        )
        return
    case.require(likely.sum() > 0, "rows are drawn, and fbuf.probability of all rows is 0")
    counts = np.bincount(slots, minlength=likely.size)
    off = frequencies.deviation(counts, likely / likely.sum())
    worst = int(np.argmax(np.abs(counts - slots.size * likely / likely.sum())))
    case.require(
        off < frequencies.MOST,
        f"rows are not drawn as often as fbuf.probability says, by {off:.0f} standard deviations; "
        f"slot {worst} came {counts[worst]} times in {slots.size} draws, with the probability "
        f"{likely[worst]:.6f}",
    )


def _epoch(case: Case, pair: Pair) -> None:
    """Require that an epoch repeats no row, and has the sampler's number of rows."""
    size = int(pair.sampler.epoch_size(pair.state.index, pair.state.ring))
    drawn: list[int] = []
    for step in range(-(-size // _FEW)):
        batch = jax.device_get(_look(pair.state, jax.random.key(0), _FEW, step))[0]
        drawn += batch.ids.slot[batch.mask].tolist()
    case.require(len(set(drawn)) == len(drawn), "a row comes twice in an epoch")
    case.require(len(drawn) == size, f"an epoch has {len(drawn)} rows, and epoch_size says {size}")


def _saved(case: Case, pair: Pair) -> None:
    """Require that a saved and loaded buffer has the same index, and draws the same."""
    with tempfile.TemporaryDirectory() as folder, case.doing("fbuf.save or fbuf.load"):
        pair.state = fbuf.save(folder, pair.state)
        item = pair.make(np.int32(0))
        loaded = fbuf.load(folder, item=item, sampler=pair.sampler, episodes="keep").state
    case.close(loaded.index, pair.state.index, "fbuf.load returns another index than was saved")
    key = jax.random.key(1)
    batches = [jax.device_get(_look(state, key, BATCH)) for state in (loaded, pair.state)]
    one, other = ((batch.ids.slot, batch.data, batch.mask) for batch, *_ in batches)
    case.close(one, other, "a loaded buffer draws another batch than the saved one")


def _resized(
    case: Case,
    pair: Pair,
    rng: np.random.Generator,
    law: Callable[[Any], Mapping[int, float]] | None,
) -> None:
    """Require that a buffer of twice the capacity draws with the right probabilities."""
    with case.doing("fbuf.resize"):
        pair.resize(2 * pair.oracle.length)
    case.done.append("resize")
    _agree(case, pair, rng, law)
