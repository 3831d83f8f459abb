"""Batches that NumPy makes: those of `fbuf.sample`, in memory of their own."""

from __future__ import annotations

import threading
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import ReplayBuffer, to_torch  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.batches import _numpy_draws  # noqa: E402 (after the skip)
from fbuf_adapters.pytorch.batches._drawer import Numbered  # noqa: E402 (after the skip)
from support.buffers import assert_same  # noqa: E402 (after the skip)

import fbuf  # noqa: E402 (after the skip)
from fbuf.host import uniform_rows  # noqa: E402 (after the skip)

SEED, CAPACITY, ENVS = 5, 24, 3


def rows(*lead: int, **fields: tuple[Any, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """Rows of random bits, in fields of these dtypes and shapes."""
    random = np.random.default_rng(0)

    def field(dtype: Any, shape: tuple[int, ...]) -> torch.Tensor:
        numbers = torch.from_numpy(random.integers(0, 100, (*lead, *shape)))
        return numbers > 50 if dtype is torch.bool else numbers.to(dtype)

    return {name: field(*form) for name, form in fields.items()}


DTYPES = {
    name: (getattr(torch, name), (2,))
    for name in ("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64")
} | {name: (getattr(torch, name), ()) for name in ("float16", "float32", "complex64")}

ITEMS = {
    "every_dtype": DTYPES,
    "wide": {
        "x": (torch.float32, (300,)),
        "frame": (torch.uint8, (9, 9)),
        "h": (torch.half, (65,)),
    },
    "wide_alone": {"x": (torch.float32, (16, 20))},
    "none": {"x": (torch.float32, (0,)), "y": (torch.int32, ())},
    "small_words": {"x": (torch.uint8, (3,)), "y": (torch.bool, ())},
    **{f"{n}_leaves": {f"x{i}": (torch.float32, (i,)) for i in range(n)} for n in (1, 4, 5, 8)},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "int64": {"int64": True},
    "removable": {"removable": False},
    "num_envs": {"num_envs": ENVS},
    "next_step": {"num_envs": ENVS, "autoreset": "next_step"},
    "next_of": {"next_of": "x"},
    "fields": {"view": fbuf.Item(("x",))},
    "batch_size": {"batch_size": 5},
    "prefetch": {"batch_size": 5, "prefetch": 2},
    "per_draw": {"batch_size": 5, "batches_per_draw": 3},
}
BY_PROGRAM = {"per_draw": [], "next_step": [False]}
"""The options with which NumPy makes no batch: a reset leaves a removed row."""
TABLE = [(item, "plain") for item in ITEMS] + [("wide", o) for o in OPTIONS if o != "plain"]


@pytest.fixture
def drawn(monkeypatch):
    """A list with an entry for each batch that NumPy has made."""
    made: list[bool] = []
    draw = uniform_rows.UniformRows.draw

    def noting(self: Any, *given: Any) -> Any:
        found = draw(self, *given)
        made.append(found is not None)
        return found

    monkeypatch.setattr(uniform_rows.UniformRows, "draw", noting)
    return made


def expected(buffer: ReplayBuffer, state: Any, turn: int, size: int) -> Any:
    """The batch of a turn, by `fbuf.sample`."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(SEED), 0), turn)
    options = buffer.contents.spec
    batch = to_torch(fbuf.sample(state, key, size, view=options.view))
    if not options.int64:
        return batch
    short = (torch.int32, torch.uint32)
    return jax.tree.map(lambda x: x.long() if x.dtype in short else x, batch)


def extended(buffer: ReplayBuffer, number: int, item: dict[str, Any]) -> None:
    """Add some rows, with flags."""
    envs = buffer.contents.spec.buffer.num_envs
    lead = (7,) if envs is None else (envs, 3)
    flags = torch.from_numpy(np.random.default_rng(number).random((2, *lead)) < 0.3)
    items = rows(*lead, **item)
    following = items["x"] + 1 if buffer.contents.spec.buffer.next_of else None
    buffer.extend(items, terminated=flags[0], truncated=flags[1], next_observation=following)


@pytest.mark.parametrize(("item", "option"), TABLE)
def test_batches_are_those_of_sample(item, option, drawn):
    options = OPTIONS[option]
    buffer = ReplayBuffer(CAPACITY, seed=SEED, **options)
    size, ahead = options.get("batch_size", 5), options.get("prefetch", 0)
    states: list[Any] = []
    for turn in range(9):  # goes around the end, and on in a buffer that is full
        if turn < 7 and not (option == "per_draw" and turn % 3):
            extended(buffer, turn, ITEMS[item])
        # The first call draws the batches ahead, too.
        states += [jax.tree.map(jnp.copy, buffer.state)] * (1 + (turn == 0) * ahead)
        assert_same(buffer.sample(size), expected(buffer, states[turn], turn, size))
    assert sorted(set(drawn)) == BY_PROGRAM.get(option, [True])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2])
def test_dtypes_that_numpy_lacks_are_drawn_by_the_program(dtype, drawn):
    buffer = ReplayBuffer(CAPACITY, seed=SEED)
    buffer.extend(rows(7, x=(dtype, (2,))))
    assert_same(buffer.sample(5), expected(buffer, buffer.state, 0, 5))
    assert not drawn


OTHERS = {
    "sampler": {"sampler": fbuf.Uniform(window=2)},
    "view": {"view": fbuf.Transition(), "next_of": "x"},
    "heads": {"num_envs": ENVS, "lockstep": False},
}


@pytest.mark.parametrize("option", OTHERS)
def test_all_else_is_drawn_by_the_program(option, drawn):
    buffer = ReplayBuffer(CAPACITY, seed=SEED, **OTHERS[option])
    extended(buffer, 0, {"x": (torch.float32, ())})
    assert_same(buffer.sample(5), expected(buffer, buffer.state, 0, 5))
    assert not drawn


def test_the_program_draws_after_a_removal_and_of_no_row(drawn):
    buffer = ReplayBuffer(CAPACITY, seed=SEED)
    buffer.extend(rows(7, x=(torch.float32, ())))
    batch = buffer.sample(5)
    buffer.remove(batch.ids)
    assert_same(buffer.sample(5), expected(buffer, buffer.state, 1, 5))
    buffer.state = fbuf.clear(buffer.state)
    assert_same(buffer.sample(5), expected(buffer, buffer.state, 2, 5))
    assert drawn == [True, False, False]
    buffer.extend(rows(7, x=(torch.float32, ())))
    assert_same(buffer.sample(5), expected(buffer, buffer.state, 3, 5))
    assert drawn[3:] == [True]


@pytest.mark.parametrize("int64", [False, True])
def test_any_order_of_sizes(int64, monkeypatch, drawn):
    """Also with the program in between, which takes over the turn and hands it back."""
    monkeypatch.setattr(_numpy_draws, "_MOST", 64)
    buffer = ReplayBuffer(CAPACITY, seed=SEED, int64=int64)
    buffer.extend(rows(20, **DTYPES))
    sizes = [5, 70, 5, 5, 9, 3, 70, 64, 9, 5]
    for turn, size in enumerate(sizes):
        batch, known = buffer.sample(size), buffer.contents.stream.drawer.sizes.own["sample"]
        fitting = size if size in known[:-1] else {3: 16, 9: 16, 64: 64, 70: 256}[size]
        whole = expected(buffer, buffer.state, turn, fitting)
        assert_same(batch, jax.tree.map(lambda leaf, size=size: leaf[:size], whole))
    assert len(drawn) == sum(size != 70 for size in sizes)


@pytest.mark.parametrize("first", [0, 2**32 - 2, 2**64 - 2])
def test_bits_of_batches_in_turn(first):
    """The number of a batch goes on from its lower word to the higher one."""
    key, turn = jax.random.key(SEED), Numbered(first)
    program = _numpy_draws._drawing_bits(str(jax.random.key_impl(key)), 6, 4)
    made = np.asarray(program(jax.random.key_data(key), turn.words()))
    for number in range(4):
        high, low = turn.words()
        assert Numbered.of(jnp.asarray(turn.words())).number == turn.number % 2**64
        assert [high, low] == [*divmod((first + number) % 2**64, 2**32)]
        one = jax.random.fold_in(jax.random.fold_in(key, high), low)
        np.testing.assert_array_equal(made[:, number], jax.random.bits(one, (2, 6)))
        turn = Numbered(turn.number + 1)


@pytest.mark.parametrize("total", [1, 3, 2**16 + 1, 2**31 - 1])
def test_below_is_the_high_word_of_a_product(total):
    words = np.random.default_rng(0).integers(0, 2**32, (2, 50), np.uint64)
    words[:, :4] = [[0, 0, 2**32 - 1, 2**32 - 1], [0, 2**32 - 1, 0, 2**32 - 1]]
    whole = [(high << 32 | low) * total >> 64 for high, low in words.T.tolist()]
    assert uniform_rows.below(words, total).tolist() == whole


def test_generations_wrap_around():
    buffer = ReplayBuffer(CAPACITY, seed=SEED)
    buffer.extend(rows(CAPACITY + 5, x=(torch.float32, ())))
    state = buffer.state
    cursor = state.ring.cursor.at[1].set(2**31 - 1 - state.ring.tag)
    buffer.state = fbuf.add(
        jax.tree.map(lambda x: cursor if x is state.ring.cursor else x, state),
        {"x": jnp.ones(CAPACITY)},
    )
    batch = buffer.sample(32)
    assert set(batch.ids.generation.tolist()) == {2**31 - 1, -(2**31)}
    assert_same(batch, expected(buffer, buffer.state, 0, 32))


def of_words(buffer: ReplayBuffer) -> int:
    return buffer.state.storage.words.unsafe_buffer_pointer()


def test_a_batch_is_its_own_and_the_buffer_is_written_in_place(monkeypatch):
    buffer = ReplayBuffer(CAPACITY, seed=SEED)
    buffer.extend(rows(7, **ITEMS["wide"]))
    place = of_words(buffer)
    batch = buffer.sample(5)
    before = jax.tree.map(torch.clone, batch)
    for _ in range(4):
        buffer.extend(rows(7, **ITEMS["wide"]))
        buffer.sample(5)
    assert_same(batch, before)
    leaves = jax.tree.leaves((batch, buffer.sample(5), buffer.sample(5)))
    storages = [leaf.untyped_storage() for leaf in leaves]
    assert len({storage.data_ptr() for storage in storages}) == len(storages)
    for leaf, storage in zip(leaves, storages, strict=True):
        assert storage.nbytes() == leaf.nbytes
    failed = RuntimeError("no memory")

    def fail(*_: Any) -> Any:
        raise failed

    with monkeypatch.context() as patch:
        patch.setattr(uniform_rows.Rows, "take", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            buffer.sample(5)
    assert failed.__traceback__ is not None  # whose frames keep nothing of the buffer
    buffer.extend(rows(7, **ITEMS["wide"]))
    assert of_words(buffer) == place


def test_a_saved_run_goes_on_amid_the_bits():
    buffer, other = ReplayBuffer(CAPACITY, seed=SEED), ReplayBuffer(CAPACITY, seed=SEED + 1)
    buffer.extend(rows(20, **DTYPES))
    for _ in range(3):
        buffer.sample(5)
    saved = buffer.state_dict()
    wanted = [buffer.sample(5).data for _ in range(3)]
    other.extend(rows(3, **DTYPES))
    other.sample(5)
    other.load_state_dict(saved, episodes="keep")
    for data in wanted:
        assert_same(other.sample(5).data, data)


def test_another_key_has_bits_of_its_own():
    """The objects of a loaded run may share the draws of the run before."""
    draws = object.__new__(_numpy_draws.NumpyDraws)
    draws._kind, draws._bits = "threefry2x32", {}
    draws._calls = lambda program, call: call()
    one, other = (
        types.SimpleNamespace(batch_size=5, key=jax.random.key_data(jax.random.key(seed)))
        for seed in (0, 1)
    )
    slots = [
        draws._bits_of(asked, Numbered(3)).slots(3, 5, 1000).tolist() for asked in (one, other, one)
    ]
    assert slots[0] == slots[2] != slots[1]


def test_rows_are_whole_while_another_thread_writes():
    buffer = ReplayBuffer(64, seed=SEED)
    fill = lambda n: buffer.extend({"a": torch.full((16, 4), n), "w": torch.full((16, 300), n)})
    fill(0.0)
    ended = threading.Event()

    def write() -> None:
        number = 1.0
        while not ended.is_set():
            fill(number)
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(200):
            data = buffer.sample(32).data
            assert torch.equal(data["a"], data["a"][:, :1].expand(-1, 4))
            assert torch.equal(data["w"], data["a"][:, :1].expand(-1, 300))
    finally:
        ended.set()
        thread.join()


def test_a_handler_that_adds_amid_the_draw_changes_nothing(monkeypatch):
    """The draw begins again if a signal handler has consumed the state that it reads."""
    buffer = ReplayBuffer(CAPACITY, seed=SEED)
    buffer.extend(rows(7, x=(torch.float32, ())))
    seen, calls = uniform_rows.seen, iter(range(100))

    def seen_amid(array: Any) -> Any:
        if next(calls) == 2:  # after the cursor was read, before the rows
            buffer.extend(rows(7, x=(torch.float32, ())))
        return seen(array)

    monkeypatch.setattr(uniform_rows, "seen", seen_amid)
    batch = buffer.sample(5)
    assert next(calls) > 4
    assert_same(batch, expected(buffer, buffer.state, 0, 5))
