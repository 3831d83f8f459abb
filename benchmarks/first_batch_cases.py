"""The programs of `benchmarks.first_batch`: each is one library, from its import to the tenth step.

A case is a generator function. It yields the name of a stage when that stage is done. All imports
are inside, for they are the first stage. A step adds rows of 8 environments, draws a batch of 256,
and with priorities gives new ones to the batch. The other stages are the first add and the first
batch, where they are apart.
"""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

ENVS, BATCH, CAPACITY, STEPS, ALPHA, BETA = 8, 256, 100_000, 10, 0.6, 0.4
IMPORT, ADD, DRAW, TENTH = "import", "first add", "first batch", "tenth step"
UNIFORM, PRIORITISED = "uniform", "prioritised"
FBUF, FLASHBAX, CPPRB, TORCHRL, SB3 = "fbuf", "flashbax", "cpprb", "TorchRL", "Stable-Baselines3"

Stages = Iterator[str]
Case = Callable[[pathlib.Path], Stages]

CASES: dict[tuple[str, str], Case] = {}
"""The programs, by what they do and by the library."""

PREPARED: dict[str, Callable[[pathlib.Path], None]] = {}
"""Programs that write files for a case into a folder, by what the case does."""


def case(what: str, library: str, **given: Any) -> Callable[[Any], Any]:
    """Enter a program into `CASES`, with some arguments given."""

    def enter(program: Any) -> Any:
        CASES[what, library] = functools.partial(program, **given)
        return program

    return enter


def rows(leads: tuple[int, ...] = (ENVS,)) -> dict[str, Any]:
    """Return rows of NumPy arrays."""
    import numpy as np

    return {
        "observation": np.ones((*leads, 17), np.float32),
        "action": np.ones((*leads, 6), np.float32),
        "reward": np.ones(leads, np.float32),
    }


def stepped(add: Callable[[], object], draw: Callable[[], object]) -> Stages:
    """Yield the stages of a loop of two calls."""
    add()
    yield ADD
    draw()
    yield DRAW
    for _ in range(STEPS - 1):
        add()
        draw()
    yield TENTH


# --- JAX ------------------------------------------------------------------------------------------


def fbuf_sampler(kind: str) -> Any:
    """Return a sampler of fbuf."""
    import fbuf

    return fbuf.Prioritized(alpha=ALPHA) if kind == PRIORITISED else fbuf.Uniform()


@case("scan, uniform", FBUF, kind=UNIFORM)
@case("scan, prioritised", FBUF, kind=PRIORITISED)
def _(folder: pathlib.Path, kind: str) -> Stages:
    import jax
    import jax.numpy as jnp

    import fbuf

    yield IMPORT
    items = {name: jnp.asarray(leaf) for name, leaf in rows().items()}

    @jax.jit
    def train(key: Any) -> Any:
        item = jax.tree.map(lambda leaf: leaf[0], items)
        state = fbuf.init(item, CAPACITY, sampler=fbuf_sampler(kind))

        def step(state: Any, key: Any) -> Any:
            state = fbuf.add(state, items)
            batch = fbuf.sample(state, key, BATCH)
            if kind == PRIORITISED:
                state = fbuf.update_priority(state, batch.ids, batch.data["reward"])
            return state, sum(leaf.sum() for leaf in jax.tree.leaves(batch.data))

        return jax.lax.scan(step, state, jax.random.split(key, STEPS))[1]

    jax.block_until_ready(train(jax.random.key(0)))
    yield TENTH


def flashbax_buffer(fbx: Any, kind: str) -> Any:
    """Return a buffer of flashbax, or of the module in its place."""
    make = fbx.make_prioritised_item_buffer if kind == PRIORITISED else fbx.make_item_buffer
    return make(CAPACITY, 1, BATCH, add_batches=True)


@case("scan, uniform", FLASHBAX, kind=UNIFORM)
@case("scan, prioritised", FLASHBAX, kind=PRIORITISED)
def _(folder: pathlib.Path, kind: str) -> Stages:
    import flashbax as fbx
    import jax
    import jax.numpy as jnp

    yield IMPORT
    items = {name: jnp.asarray(leaf) for name, leaf in rows().items()}
    buffer = flashbax_buffer(fbx, kind)

    @jax.jit
    def train(key: Any) -> Any:
        state = buffer.init(jax.tree.map(lambda leaf: leaf[0], items))

        def step(state: Any, key: Any) -> Any:
            state = buffer.add(state, items)
            batch = buffer.sample(state, key)
            if kind == PRIORITISED:
                reward = batch.experience["reward"].reshape(BATCH)
                state = buffer.set_priorities(state, batch.indices, reward)
            return state, sum(leaf.sum() for leaf in jax.tree.leaves(batch.experience))

        return jax.lax.scan(step, state, jax.random.split(key, STEPS))[1]

    jax.block_until_ready(train(jax.random.key(0)))
    yield TENTH


@case("calls, uniform", FBUF, kind=UNIFORM)
@case("calls, prioritised", FBUF, kind=PRIORITISED)
def _(folder: pathlib.Path, kind: str) -> Stages:
    import jax

    import fbuf

    yield IMPORT
    items = rows()
    item = {name: leaf[0] for name, leaf in items.items()}
    state = fbuf.init(item, CAPACITY, sampler=fbuf_sampler(kind))
    key = jax.random.key(0)

    def add() -> None:
        nonlocal state
        state = fbuf.add(state, items)
        jax.block_until_ready(state)

    def draw() -> None:
        nonlocal state
        batch = fbuf.sample(state, key, BATCH)
        if kind == PRIORITISED:
            state = fbuf.update_priority(state, batch.ids, batch.data["reward"])
        jax.block_until_ready((state, batch))

    yield from stepped(add, draw)


@case("calls, uniform", FLASHBAX, front=False, kind=UNIFORM)
@case("calls, prioritised", FLASHBAX, front=False, kind=PRIORITISED)
@case("flashbax's program, uniform", FBUF, front=True, kind=UNIFORM)
@case("flashbax's program, uniform", FLASHBAX, front=False, kind=UNIFORM)
@case("flashbax's program, prioritised", FBUF, front=True, kind=PRIORITISED)
@case("flashbax's program, prioritised", FLASHBAX, front=False, kind=PRIORITISED)
def _(folder: pathlib.Path, front: bool, kind: str) -> Stages:
    if front:
        import jax
        from fbuf_adapters import flashbax as fbx
    else:
        import flashbax as fbx
        import jax

    yield IMPORT
    items: Any = rows()
    buffer = flashbax_buffer(fbx, kind)
    state = buffer.init({name: leaf[0] for name, leaf in items.items()})
    jit_add, jit_draw = jax.jit(buffer.add, donate_argnums=0), jax.jit(buffer.sample)
    prioritised = kind == PRIORITISED
    update = jax.jit(buffer.set_priorities, donate_argnums=0) if prioritised else None
    key = jax.random.key(0)

    def add() -> None:
        nonlocal state
        state = jit_add(state, items)
        jax.block_until_ready(state)

    def draw() -> None:
        nonlocal state
        batch = jit_draw(state, key)
        if update is not None:
            state = update(state, batch.indices, batch.experience["reward"].reshape(BATCH))
        jax.block_until_ready((state, batch))

    yield from stepped(add, draw)


@case("calls, uniform", CPPRB, kind=UNIFORM)
@case("calls, prioritised", CPPRB, kind=PRIORITISED)
def _(folder: pathlib.Path, kind: str) -> Stages:
    import cpprb

    yield IMPORT
    items, prioritised = rows(), kind == PRIORITISED
    fields = {name: {"shape": leaf.shape[1:] or 1} for name, leaf in items.items()}
    made = (
        cpprb.PrioritizedReplayBuffer(CAPACITY, fields, alpha=ALPHA)
        if prioritised
        else cpprb.ReplayBuffer(CAPACITY, fields)
    )

    def draw() -> None:
        batch = made.sample(BATCH, **({"beta": BETA} if prioritised else {}))
        if prioritised:
            made.update_priorities(batch["indexes"], batch["reward"][:, 0])

    yield from stepped(lambda: made.add(**items), draw)


# --- PyTorch --------------------------------------------------------------------------------------


@case("ReplayBuffer, uniform", FBUF, kind=UNIFORM)
@case("ReplayBuffer, prioritised", FBUF, kind=PRIORITISED)
def _(folder: pathlib.Path, kind: str) -> Stages:
    import torch
    from fbuf_adapters.pytorch import ReplayBuffer

    yield IMPORT
    items = {name: torch.from_numpy(leaf) for name, leaf in rows().items()}
    buffer = ReplayBuffer(CAPACITY, sampler=fbuf_sampler(kind), batch_size=BATCH)

    def draw() -> None:
        batch = buffer.sample()
        if kind == PRIORITISED:
            buffer.update_priority(batch.ids, batch.data["reward"])

    yield from stepped(lambda: buffer.extend(items), draw)


def tensordicts(buffer: Any, kind: str) -> Stages:
    """Yield the stages of a buffer of TensorDicts, fbuf's or TorchRL's."""
    import torch
    from tensordict import TensorDict

    items = {name: torch.from_numpy(leaf) for name, leaf in rows().items()}
    items = TensorDict(items, batch_size=[ENVS])

    def draw() -> None:
        batch = buffer.sample()
        if kind == PRIORITISED:
            batch["td_error"] = batch["reward"]
            buffer.update_tensordict_priority(batch)

    yield from stepped(lambda: buffer.extend(items), draw)


@case("TensorDictReplayBuffer, uniform", FBUF, kind=UNIFORM)
@case("TensorDictReplayBuffer, prioritised", FBUF, kind=PRIORITISED)
def _(folder: pathlib.Path, kind: str) -> Stages:
    from fbuf_adapters.tensordict import TensorDictReplayBuffer

    yield IMPORT
    made = TensorDictReplayBuffer(CAPACITY, sampler=fbuf_sampler(kind), batch_size=BATCH)
    yield from tensordicts(made, kind)


@case("ReplayBuffer, uniform", TORCHRL, kind=UNIFORM)
@case("ReplayBuffer, prioritised", TORCHRL, kind=PRIORITISED)
@case("TensorDictReplayBuffer, uniform", TORCHRL, kind=UNIFORM)
@case("TensorDictReplayBuffer, prioritised", TORCHRL, kind=PRIORITISED)
@case("rows on the host", TORCHRL, kind=UNIFORM, files=True)
def _(folder: pathlib.Path, kind: str, files: bool = False) -> Stages:
    from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.data.replay_buffers.samplers import PrioritizedSampler

    yield IMPORT
    sampler = PrioritizedSampler(CAPACITY, alpha=ALPHA, beta=BETA) if kind == PRIORITISED else None
    storage = (
        LazyMemmapStorage(CAPACITY, scratch_dir=str(folder / "rows"))
        if files
        else LazyTensorStorage(CAPACITY)
    )
    made = TensorDictReplayBuffer(storage=storage, sampler=sampler, batch_size=BATCH)
    yield from tensordicts(made, kind)


@case("rows on the host", FBUF)
def _(folder: pathlib.Path) -> Stages:
    import jax

    from fbuf.host import HostStore

    yield IMPORT
    items = rows()
    store = HostStore({name: leaf[0] for name, leaf in items.items()}, CAPACITY)
    key = jax.random.key(0)

    def draw() -> None:
        jax.block_until_ready(store.sample(key, BATCH))

    yield from stepped(lambda: store.add(items), draw)


# --- Stable-Baselines3 ----------------------------------------------------------------------------

AGENT_STEPS, BEGIN = 200, 100


def learned(kind: Any, env: Any, policy: str = "MlpPolicy", **options: Any) -> Stages:
    """Yield the stages of an agent: its first 200 steps, of which the last 100 learn."""
    import torch

    torch.set_num_threads(1)
    model = kind(
        policy, env, buffer_size=CAPACITY, learning_starts=BEGIN, seed=0, device="cpu", **options
    )
    model.learn(AGENT_STEPS)
    yield TENTH


def goals() -> Any:
    """Return an environment with goals."""
    from stable_baselines3.common.envs import BitFlippingEnv

    return BitFlippingEnv(n_bits=8, continuous=False, max_steps=8)


@case("DQN of SB3", SB3)
@case("DQN of SB3, n-step", SB3, n_steps=3)
@case("DQN of SB3, priorities", SB3)
def _(folder: pathlib.Path, **options: Any) -> Stages:
    from stable_baselines3 import DQN

    yield IMPORT
    yield from learned(DQN, "CartPole-v1", **options)


@case("DQN of SB3", FBUF)
@case("DQN of SB3, n-step", FBUF, n_steps=3)
def _(folder: pathlib.Path, **options: Any) -> Stages:
    from fbuf_adapters.sb3 import ReplayBuffer
    from stable_baselines3 import DQN

    yield IMPORT
    more = {"n_steps": 3, "replay_buffer_kwargs": {"n_steps": 3, "gamma": 0.99}} if options else {}
    yield from learned(DQN, "CartPole-v1", replay_buffer_class=ReplayBuffer, **more)


@case("DQN of SB3, priorities", FBUF)
def _(folder: pathlib.Path) -> Stages:
    from fbuf_adapters.sb3 import PrioritizedDQN

    yield IMPORT
    yield from learned(PrioritizedDQN, "CartPole-v1")


@case("DQN of SB3, HER", SB3, ours=False)
@case("DQN of SB3, HER", FBUF, ours=True)
def _(folder: pathlib.Path, ours: bool) -> Stages:
    from stable_baselines3 import DQN

    if ours:
        from fbuf_adapters.sb3 import HerReplayBuffer
    else:
        from stable_baselines3 import HerReplayBuffer

    yield IMPORT
    given = {"n_sampled_goal": 4, "goal_selection_strategy": "future"}
    options = {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": given}
    yield from learned(DQN, goals(), "MultiInputPolicy", **options)


@case("frames of SB3", SB3)
@case("frames of SB3", FBUF, n_stack=4)
def _(folder: pathlib.Path, **options: int) -> Stages:
    import numpy as np
    from gymnasium import spaces

    if options:
        from fbuf_adapters.sb3 import ReplayBuffer
    else:
        from stable_baselines3.common.buffers import ReplayBuffer

    yield IMPORT
    space, action = spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6)
    buffer = ReplayBuffer(2000, space, action, "cpu", 1, **options)
    frames = np.zeros((1, 4, 84, 84), np.uint8)
    add = functools.partial(
        buffer.add, frames, frames, np.zeros((1, 1), np.int64), np.zeros(1), np.zeros(1), [{}]
    )
    yield from stepped(add, lambda: buffer.sample(32))


# --- collecting -----------------------------------------------------------------------------------


def environments() -> Any:
    """Return eight environments of Gymnasium's."""
    import gymnasium

    return gymnasium.make_vec("CartPole-v1", ENVS, vectorization_mode="sync")


@case("a collector", FBUF)
def _(folder: pathlib.Path) -> Stages:
    import jax
    from fbuf_adapters.gymnasium import Collector

    import fbuf

    yield IMPORT
    collector = Collector(environments(), lambda obs: no_actions(len(obs)), seed=0)
    state = fbuf.init(collector.item, CAPACITY, **collector.options)
    key = jax.random.key(0)

    def add() -> None:
        nonlocal state
        state = jax.block_until_ready(collector.collect(state, 16))

    yield from stepped(add, lambda: jax.block_until_ready(fbuf.sample(state, key, BATCH)))


def no_actions(count: int) -> Any:
    """Return an action for each environment."""
    import numpy as np

    return np.zeros(count, np.int64)


@case("a collector", TORCHRL)
def _(folder: pathlib.Path) -> Stages:
    from torchrl.collectors import Collector
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
    from torchrl.envs import GymEnv, SerialEnv

    yield IMPORT
    envs = SerialEnv(ENVS, lambda: GymEnv("CartPole-v1"))
    collector = Collector(envs, None, frames_per_batch=16 * ENVS, total_frames=-1)
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=BATCH)
    chunks = iter(collector)
    yield from stepped(lambda: buffer.extend(next(chunks).reshape(-1)), lambda: buffer.sample())
    collector.shutdown()


# --- going on -------------------------------------------------------------------------------------

SAVED = 20_000


@case("load", FBUF)
def _(folder: pathlib.Path) -> Stages:
    import jax

    import fbuf

    yield IMPORT
    items, state = rows(), fbuf.load(folder / "fbuf").state
    key = jax.random.key(0)

    def add() -> None:
        nonlocal state
        state = jax.block_until_ready(fbuf.add(state, items))

    yield from stepped(add, lambda: jax.block_until_ready(fbuf.sample(state, key, BATCH)))


@case("resume in PyTorch", FBUF)
def _(folder: pathlib.Path) -> Stages:
    import torch
    from fbuf_adapters.pytorch import ReplayBuffer

    yield IMPORT
    items = {name: torch.from_numpy(leaf) for name, leaf in rows().items()}
    buffer = ReplayBuffer(CAPACITY, batch_size=BATCH)
    buffer.load(folder / "torch")
    yield from stepped(lambda: buffer.extend(items), lambda: buffer.sample())


@case("load", TORCHRL)
@case("resume in PyTorch", TORCHRL)
def _(folder: pathlib.Path) -> Stages:
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    yield IMPORT
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=BATCH)
    buffer.loads(folder / "torchrl")
    yield from tensordicts(buffer, UNIFORM)


def prepare(folder: pathlib.Path) -> None:
    """Save the buffers that `load` and `resume` begin from."""
    import torch
    from fbuf_adapters.pytorch import ReplayBuffer
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

    import fbuf

    items = rows((SAVED,))
    state = fbuf.init({name: leaf[0] for name, leaf in items.items()}, CAPACITY)
    fbuf.save(folder / "fbuf", fbuf.add(state, items))
    tensors = {name: torch.from_numpy(leaf) for name, leaf in items.items()}
    ours = ReplayBuffer(CAPACITY, batch_size=BATCH)
    ours.extend(tensors)
    ours.save(folder / "torch")
    theirs = TensorDictReplayBuffer(storage=LazyTensorStorage(CAPACITY), batch_size=BATCH)
    theirs.extend(TensorDict(tensors, batch_size=[SAVED]))
    theirs.dumps(folder / "torchrl")
