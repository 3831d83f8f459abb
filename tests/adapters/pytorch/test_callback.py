"""Functions of tensors inside compiled functions of JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fbuf

torch = pytest.importorskip("torch")

from fbuf_adapters.pytorch import InteropError, callback  # noqa: E402 (after the skip)
from support.buffers import EXACT, priorities, stored  # noqa: E402 (after the skip)

FLOAT8 = ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]
NAMES = [
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"),
    *("float16", "bfloat16", "float32", "complex64", *FLOAT8),
]


def spec(shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


X = np.arange(6, dtype=np.float32).reshape(2, 3)
SAME = spec((2, 3))


def double(x):
    return x * 2


both = pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eagerly", "compiled"])


def finished(function, *arguments):
    """Return its result, once that is there, or its error."""
    return jax.block_until_ready(function(*arguments))


@functools.cache
def well():
    """A program that calls back, and works."""
    return jax.jit(callback(double, SAME))


def fails(match, function, *arguments):
    """The program fails, and says what was the matter; afterwards all is well again."""
    # The latter is what JAX raises if the same program has run well before.
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=match) as caught:
        finished(function, *arguments)
    np.testing.assert_array_equal(finished(well(), X), X * 2)
    assert "Error when calling buffer callback" in str(caught.value)
    return str(caught.value)


# Where it is called from.


def test_eagerly_and_in_compiled_functions():
    inside = callback(double, SAME)
    np.testing.assert_array_equal(inside(X), X * 2)
    np.testing.assert_array_equal(jax.jit(inside)(X), X * 2)
    np.testing.assert_array_equal(jax.jit(lambda x: inside(x + 1) - 1)(X), X * 2 + 1)


def test_it_runs_whenever_the_program_does():
    def count(x):
        calls.append(x.clone())
        return x + len(calls)

    calls = []
    step = jax.jit(callback(count, SAME))
    for number in range(1, 4):
        np.testing.assert_array_equal(finished(step, X + number), X + 2 * number)
        assert len(calls) == number
        assert calls[-1].tolist() == (X + number).tolist()


def test_in_a_loop():
    def body(carry, x):
        carry = inside(carry, x)
        return carry, carry[0]

    inside = callback(lambda carry, x: carry * 0.5 + x, spec((3,)))
    last, firsts = jax.jit(lambda: jax.lax.scan(body, jnp.zeros(3), X))()
    assert last.tolist() == [3, 4.5, 6]
    assert firsts.tolist() == [0, 3]


def test_in_a_branch():
    def choose(which, x):
        return jax.lax.cond(which, callback(double, SAME), lambda x: x, x)

    for which in (True, False):
        np.testing.assert_array_equal(jax.jit(choose)(which, X), X * 2 if which else X)


@pytest.mark.parametrize(
    ("method", "shapes"),
    [("sequential", [(3,), (3,)]), ("expand_dims", [(2, 3)]), ("broadcast_all", [(2, 3)])],
)
def test_vmap(method, shapes):
    def fn(x):
        seen.append(tuple(x.shape))
        return x * 2

    seen = []
    given = {} if method == "sequential" else {"vmap_method": method}  # which is the default
    inside = callback(fn, spec((3,)), **given)
    for function in (jax.vmap(inside), jax.jit(jax.vmap(inside))):
        seen.clear()
        np.testing.assert_array_equal(finished(function, X), X * 2)
        assert seen == shapes


def test_vmap_over_some_arguments():
    inside = callback(lambda x, y: x + y, spec((3,)))
    together = jax.vmap(inside, in_axes=(0, None))(X, X[1])
    np.testing.assert_array_equal(together, X + X[1])


# Arguments and results.


def test_trees_go_in_and_come_out():
    def fn(batch, scale):
        assert set(batch) == {"pair", "none"}
        left, right = batch["pair"]
        return {"sum": left + right * scale["by"], "rest": [left.int(), (right.sum(),)]}

    result = {"sum": spec((3,)), "rest": [spec((3,), jnp.int32), (spec(()),)]}
    batch = {"pair": (jnp.arange(3.0), jnp.ones(3)), "none": None}
    for wrap in (lambda f: f, jax.jit):
        out = wrap(callback(fn, result))(batch, {"by": jnp.float32(2)})
        assert jax.tree.structure(out) == jax.tree.structure(result)
        assert out["sum"].tolist() == [2, 3, 4]
        assert out["rest"][0].tolist() == [0, 1, 2]
        assert out["rest"][0].dtype == jnp.int32
        assert float(out["rest"][1][0]) == 3


def test_a_result_may_be_told_by_arrays():
    inside = callback(double, jnp.zeros((2, 3)))
    np.testing.assert_array_equal(inside(X), X * 2)
    inside = callback(double, np.zeros((2, 3), np.float32))
    np.testing.assert_array_equal(inside(X), X * 2)


def test_nothing_goes_in():
    assert callback(lambda: torch.arange(3.0), spec((3,)))().tolist() == [0, 1, 2]


def test_values_are_bound_beforehand():
    inside = callback(functools.partial(torch.add, alpha=3), SAME)
    np.testing.assert_array_equal(inside(X, X), X * 4)


@both
def test_every_dtype_goes_in_and_comes_out(wrap):
    """All in one program."""

    def fn(arrays):
        seen.update(
            (name, (str(x.dtype), x.contiguous().view(torch.uint8).tolist()))
            for name, x in arrays.items()
        )
        return {name: x.clone() for name, x in arrays.items()}

    seen, patterns, arrays = {}, {}, {}
    for name in NAMES:
        dtype = jnp.dtype(name)
        pattern = np.arange(12 * dtype.itemsize, dtype=np.uint8).reshape(4, -1)
        patterns[name] = pattern % 2 if name == "bool" else pattern
        arrays[name] = jnp.asarray(patterns[name].view(dtype))
    specs = {name: spec(x.shape, x.dtype) for name, x in arrays.items()}
    out = finished(wrap(callback(fn, specs)), arrays)
    for name, pattern in patterns.items():
        assert (out[name].dtype, out[name].shape) == (arrays[name].dtype, arrays[name].shape)
        np.testing.assert_array_equal(np.asarray(out[name]).view(np.uint8), pattern, name)
        assert seen[name] == (f"torch.{name}", pattern.tolist())


def test_64_bits_when_jax_has_them():
    with jax.enable_x64(True):
        array = jnp.arange(3, dtype=jnp.int64) + 2**40
        out = callback(lambda x: x.double() / 2, spec((3,), jnp.float64))(array)
        assert out.dtype == jnp.float64
        assert out.tolist() == [2**39, 2**39 + 0.5, 2**39 + 1]


@both
def test_arrays_of_few_elements(wrap):
    def fn(arrays, y):
        seen.extend((tuple(x.shape), x.dtype) for x in arrays)
        return [x.clone() for x in arrays], y + 1

    seen = []
    kinds = [(shape, name) for shape in ((0,), (3, 0, 2), ()) for name in ("float32", "bool")]
    inside = wrap(callback(fn, ([spec(*kind) for kind in kinds], spec((2,)))))
    out, other = finished(inside, [jnp.asarray(np.ones(*kind)) for kind in kinds], jnp.zeros(2))
    assert [(x.shape, x.dtype.name) for x in out] == kinds
    assert all(bool((np.asarray(x) == 1).all()) for x in out)
    assert other.tolist() == [1, 1]
    assert seen == [(shape, getattr(torch, name)) for shape, name in kinds]


LAYOUTS = {
    "transposed": (torch.t, X.T),
    "stepped": (lambda x: x[:, ::2], X[:, ::2]),
    "expanded": (lambda x: x[:, :1].expand(2, 3), np.tile(X[:, :1], (1, 3))),
    "offset": (lambda x: x[1:], X[1:]),
    "conjugated": (lambda x: torch.complex(x, x).conj(), X - X * np.complex64(1j)),
}


def test_what_is_returned_may_have_any_layout():
    wanted = {name: np.ascontiguousarray(array) for name, (_, array) in LAYOUTS.items()}
    out = callback(lambda x: {name: make(x) for name, (make, _) in LAYOUTS.items()}, wanted)(X)
    for name, array in wanted.items():
        np.testing.assert_array_equal(out[name], array, name)


def test_arguments_may_be_returned():
    inside = callback(lambda x, y: (y, x, x[::1]), (SAME, SAME, SAME))
    swapped = jax.jit(lambda x, y: inside(x, y), donate_argnums=(0, 1))
    for function in (inside, swapped):
        out = finished(function, X + 1, X + 2)
        for array, wanted in zip(out, (X + 2, X + 1, X + 1), strict=True):
            np.testing.assert_array_equal(array, wanted)


# Memory.


def test_arguments_are_not_copied():
    def fn(*tensors):
        seen.extend(tensor.data_ptr() for tensor in tensors)
        return tensors[0].sum()

    seen = []
    arrays = [jnp.ones((64, 64)), jnp.arange(5), jnp.zeros(7, jnp.bool_)]
    arrays += [jnp.ones(3, jnp.bfloat16)]
    finished(callback(fn, spec(())), *arrays)
    assert seen == [array.unsafe_buffer_pointer() for array in arrays]


KEEPING = {
    "itself": lambda x: x,
    "a view": lambda x: x[0],
    "detached": lambda x: x.detach(),
    "as NumPy's": lambda x: x.numpy(),
    "its storage": lambda x: x.untyped_storage(),
    "in a list": lambda x: [{"x": x.t()}],
}


@pytest.mark.on_cpu
@pytest.mark.parametrize("how", KEEPING)
def test_an_argument_that_is_kept_is_an_error(how):
    def fn(x, y):
        kept.append(KEEPING[how](y))
        return x * 2

    kept = []
    wrap = jax.jit if how == "a view" else lambda f: f
    message = fails("InteropError", wrap(callback(fn, SAME)), X, X + 1)
    assert "kept one of its arguments" in message
    assert "clone()" in message
    assert len(kept) == 1


def test_a_clone_may_be_kept():
    def fn(x):
        kept.append(x.clone())
        return x * 2

    kept = []
    inside = jax.jit(callback(fn, SAME))
    for number in range(3):
        finished(inside, X + number)
    assert [tensor.tolist() for tensor in kept] == [(X + number).tolist() for number in range(3)]


def test_what_only_waits_for_the_garbage_collector_is_not_kept():
    def fn(x):
        def power(n):  # which refers to itself, and to x
            return x if n == 1 else x * power(n - 1)

        return power(3)

    inside = jax.jit(callback(fn, SAME))
    for _ in range(3):
        np.testing.assert_array_equal(finished(inside, X), X**3)


# Errors.


MISMATCHES = {
    "shape": (
        lambda x: x.t(),
        "must return .*float32 of shape .2, 3., it returned .*of shape .3, 2",
    ),
    "fewer": (lambda x: x[0], r"it returned torch.float32 of shape \(3,\)"),
    "dtype": (lambda x: x.double(), r"it returned torch.float64 of shape \(2, 3\)"),
    "bool": (lambda x: x > 1, r"it returned torch.bool of shape"),
    "none": (lambda x: None, "it returned NoneType"),
    "number": (lambda x: 1.0, "it returned float"),
    "array": (lambda x: x.numpy() * 2, "it returned float32 of shape"),
    "tuple": (lambda x: (x * 2,), "it returned"),
}


@pytest.mark.on_cpu
@pytest.mark.parametrize("name", MISMATCHES)
def test_another_result_than_was_told(name):
    fn, words = MISMATCHES[name]
    wrap = jax.jit if name == "shape" else lambda f: f
    message = fails(words, wrap(callback(fn, SAME)), X)
    assert "fbuf_adapters.pytorch.callback: the function must return" in message


TREES = {
    "one": lambda x: x,
    "tuple": lambda x: (x, x),
    "fewer": lambda x: {"a": x},
    "more": lambda x: {"a": x, "b": x, "c": x},
    "others": lambda x: {"a": x, "c": x},
    "deeper": lambda x: {"a": x, "b": [x]},
    "none": lambda x: None,
}


@pytest.mark.parametrize("name", TREES)
def test_another_tree_than_was_told(name):
    fails("must return .*it returned", callback(TREES[name], {"a": SAME, "b": SAME}), X)


def test_an_error_of_the_function_is_told():
    def fn(x):
        if x.min() < 0:
            raise KeyError("the reward model is not there")
        return x * 2

    inside = callback(fn, SAME)
    for function in (inside, jax.jit(inside), jax.vmap(callback(fn, spec((3,))))):
        for x in (X - 9, X, X - 9):
            if x is X:
                np.testing.assert_array_equal(finished(function, x), X * 2)
                continue
            message = fails("KeyError: 'the reward model is not there'", function, x)
            assert "test_callback.py" in message  # where it was


def test_gradients_are_refused():
    inside = callback(double, SAME)
    for function in (inside, jax.jit(inside)):
        with pytest.raises(ValueError, match="do not support JVP"):
            jax.grad(lambda x, function=function: function(x).sum())(X)


def test_gradients_by_two_callbacks():
    @jax.custom_vjp
    def cube(x):
        return forward(x)

    def gradient(x, g):
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            (grad,) = torch.autograd.grad(x**3, x, g.clone())
        return grad

    forward = callback(lambda x: x**3, SAME)
    backward = callback(gradient, SAME)
    cube.defvjp(lambda x: (forward(x), x), lambda x, g: (backward(x, g),))
    grad = jax.jit(jax.grad(lambda x: (cube(x) * 2).sum()))(X)
    np.testing.assert_allclose(grad, 6 * X**2)


@pytest.mark.parametrize("name", ["int4", "uint2", "float8_e3m4", "float4_e2m1fn"])
def test_results_of_dtypes_that_torch_lacks(name):
    with pytest.raises(InteropError, match=rf"callback: result\['a'\]\[1\] \({name} of shape"):
        callback(double, {"a": [SAME, spec((2,), jnp.dtype(name))]})


@pytest.mark.parametrize("leaf", [3, "text", torch.ones(3), jax.random.key(0)], ids=type)
def test_results_that_are_told_by_something_else(leaf):
    with pytest.raises(InteropError, match=r"result\[1\].*must be an array or a"):
        callback(double, (SAME, leaf))


@pytest.mark.parametrize("name", ["int64", "uint64", "float64", "complex128"])
def test_results_of_64_bits_when_jax_has_none(name):
    with pytest.raises(InteropError, match="64"):
        callback(double, spec((3,), np.dtype(name)))


# Gradients of torch's.


@pytest.mark.on_cpu
def test_grad_mode_is_off_inside_and_as_before_outside():
    def fn(x):
        modes.append(torch.is_grad_enabled())
        out = x * weight
        assert not out.requires_grad
        if x.min() < 0:
            raise ValueError("below 0")
        return out

    modes = []
    weight = torch.ones(3, requires_grad=True)
    inside = callback(fn, SAME)
    for before in (True, False):
        with torch.set_grad_enabled(before):
            finished(inside, X)
            finished(jax.jit(inside), X)
            assert torch.is_grad_enabled() is before
            fails("below 0", inside, X - 9)
            assert torch.is_grad_enabled() is before
    assert modes == [False] * 6


@pytest.mark.on_cpu
def test_a_function_may_turn_grad_mode_on():
    def fn(x):
        with torch.enable_grad():
            loss = (x * weight).sum()
            loss.backward()
        return loss

    weight = torch.ones(3, requires_grad=True)
    assert float(callback(fn, spec(()))(X)) == 15
    assert weight.grad.tolist() == [3, 5, 7]


@pytest.mark.on_cpu
def test_a_model_with_parameters():
    torch.manual_seed(0)
    layers = torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    model = torch.nn.Sequential(*layers)
    score = jax.jit(callback(lambda x: model(x)[:, 0], spec((2,))))
    given = torch.from_numpy(np.array(X))

    def by_torch():
        return model(given)[:, 0].detach().numpy()

    first = by_torch()
    np.testing.assert_allclose(score(X), first, rtol=1e-6)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model(given).sum().backward()
    optimizer.step()
    assert not np.allclose(by_torch(), first)
    np.testing.assert_allclose(finished(score, X), by_torch(), rtol=1e-6)  # not compiled in
    assert all(parameter.requires_grad for parameter in model.parameters())


# With a buffer.


def rows(number):
    number = jnp.arange(8, dtype=jnp.int32) + number
    return {"number": number, "next": {"reward": number[:, None] / 8}}


def start():
    return fbuf.init({"number": 0, "next": {"reward": np.zeros(1, np.float32)}}, 10, sampler=EXACT)


@pytest.mark.sweep
def test_priorities_by_torch_inside_are_those_outside():
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)

    def error(reward):
        return (model(reward)[:, 0] - 1).abs()

    def inside(reward):
        return callback(error, spec((len(reward),)))(reward)

    def step(state, given):
        key, number = given
        new = rows(number)
        state = fbuf.add(state, new, priority=inside(new["next"]["reward"]))
        batch = fbuf.sample(state, key, 16)
        priority = 2 * inside(batch.data["next"]["reward"])
        return fbuf.update_priority(state, batch.ids, priority), (batch, priority)

    keys, numbers = jax.random.split(jax.random.key(0), 5), np.arange(0, 40, 8, dtype=np.int32)
    state, (batches, given) = jax.jit(lambda state: jax.lax.scan(step, state, (keys, numbers)))(
        start()
    )

    def outside(number):
        with torch.no_grad():
            return error(torch.from_numpy(np.asarray(number, np.float32)[:, None] / 8)).numpy()

    wanted = np.zeros(10, np.float32)
    for turn, first in enumerate(numbers):
        new = np.arange(first, first + 8)
        wanted[new % 10] = outside(new)
        drawn = np.asarray(batches.data["number"][turn])
        np.testing.assert_allclose(given[turn], 2 * outside(drawn), rtol=1e-5)
        wanted[np.asarray(batches.ids.slot[turn])] = given[turn]
    np.testing.assert_allclose(priorities(state), wanted, rtol=1e-5)
    fbuf.raise_on_fault(state)


@pytest.mark.sweep
def test_rewards_by_torch_are_stored():
    reward = callback(lambda x: x[:, None].float() / 2, spec((8, 1)))

    @jax.jit
    def step(state, number):
        new = rows(number)
        return fbuf.add(state, {"number": new["number"], "next": {"reward": reward(new["number"])}})

    state = start()
    for number in range(0, 24, 8):
        state = step(state, np.int32(number))
    found = stored(state)
    np.testing.assert_array_equal(found["next"]["reward"][:, 0], found["number"] / 2)
    assert sorted(found["number"].tolist()) == list(range(14, 24))
