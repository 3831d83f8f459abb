"""One meaning in two forms: one for CPU, and one for every other platform; GPUs may have a third.

The program is traced in the form for CPU. Another form is traced only when a program is lowered
for its platform. So the form is always the right one, also where the program is exported for
another platform, and no form is traced in vain. The function `jax.lax.platform_dependent` would
trace both.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import jax
import jax.core
from jax import lax
from jax.interpreters import ad, batching, mlir

_T = TypeVar("_T")
_Form = Callable[..., Sequence[Any]]


def by_platform(
    *operands: Any,
    cpu: Callable[..., _T],
    default: Callable[..., _T],
    gpu: Callable[..., _T] | None = None,
) -> _T:
    """Return `cpu(*operands)` in a program for CPU, elsewhere `default(*operands)`.

    Args:
        operands: Arrays, or trees of them.
        cpu: The form for CPU. It must hold no traced array but the operands.
        default: The form for every other platform, of the same meaning, shapes and dtypes; as
            `cpu`.
        gpu: The form for GPUs in a traced program, if they have another one.
    """
    leaves, tree = jax.tree.flatten(operands)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    if not any(isinstance(array, jax.core.Tracer) for array in arrays):
        return (cpu if _lie_on_cpu(arrays) else default)(*operands)
    trees: list[Any] = []
    # A Python number stays one, and the program knows its value. The forms outlive this trace in
    # the program, and must hold no traced array.
    fixed = [_ARRAY if isinstance(leaf, jax.Array) else leaf for leaf in leaves]

    def flat(form: Callable[..., _T]) -> _Form:
        def call(*arrays: jax.Array) -> Sequence[Any]:
            given = iter(arrays)
            whole = [next(given) if leaf is _ARRAY else leaf for leaf in fixed]
            found, tree_of_found = jax.tree.flatten(form(*tree.unflatten(whole)))
            trees.append(tree_of_found)
            return found

        return call

    found = _bound(arrays, flat(cpu), flat(default), flat(gpu or default))
    return jax.tree.unflatten(trees[0], found)


def computed(tree: Any) -> Any:
    """Return arrays, which a GPU computes before it uses them.

    Without it, a kernel that reads rows would compute the slot anew for each number of a row.
    """
    return by_platform(tree, cpu=lambda tree: tree, default=lax.optimization_barrier)


_ARRAY = object()
"""Stands for an array among operands."""

# `jax.extend`, which has the class by name, takes a tenth of a second to import.
_forms: Any = type(lax.add_p)("fbuf_by_platform")
_forms.multiple_results = True


def _bound(leaves: Sequence[Any], cpu: _Form, default: _Form, gpu: _Form) -> Sequence[Any]:
    """Bind the forms as one primitive."""
    # By `jit`, which keeps what it has traced: to lower it takes no second trace.
    jitted, settings = jax.jit(cpu), _Settings()
    with settings.again():
        avals = tuple(jitted.trace(*leaves).jaxpr.out_avals)
    on_cpu, *others = (_DeferredForm(form, settings) for form in (jitted, default, gpu))
    return _forms.bind(*leaves, avals=avals, cpu=on_cpu, default=others[0], gpu=others[1])


class _Settings:
    """Settings that a trace depends on beside its arguments: now, and again at lowering."""

    def __init__(self) -> None:
        # JAX makes the names of its options at run time.
        self._config: Any = jax.config
        self._x64: bool = self._config.jax_enable_x64
        self._mesh = jax.sharding.get_abstract_mesh()

    @contextlib.contextmanager
    def again(self) -> Generator[None]:
        """Enter a context with these settings."""
        with jax.sharding.use_abstract_mesh(self._mesh):
            if self._config.jax_enable_x64 == self._x64:
                yield
                return
            with jax.enable_x64(self._x64):
                yield


@dataclasses.dataclass(frozen=True, eq=False)
class _DeferredForm:
    """A form that is traced later under the settings of now."""

    form: _Form
    settings: _Settings

    def __call__(self, *leaves: Any) -> Sequence[Any]:
        """Evaluate the form on the leaves."""
        with self.settings.again():
            return self.form(*leaves)


@_forms.def_impl
def _(*leaves: Any, avals: Any, cpu: _Form, default: _Form, gpu: _Form) -> Sequence[Any]:
    return (cpu if _lie_on_cpu(leaves) else default)(*leaves)


@_forms.def_abstract_eval
def _(*_: Any, avals: tuple[Any, ...], **forms: _Form) -> Sequence[Any]:
    return avals


def _batched(
    leaves: Sequence[Any], axes: Sequence[Any], *, avals: Any, cpu: _Form, **others: _Form
) -> tuple[Sequence[Any], Sequence[int | None]]:
    in_axes = tuple(axes)  # None is a leaf that is not batched
    batched = _are_batched(cpu, in_axes, leaves)
    forms = {"cpu": cpu, **others}
    of_batch = {name: _BatchedForm(form, in_axes, batched) for name, form in forms.items()}
    found = _bound(leaves, **of_batch)
    return found, [0 if is_batched else None for is_batched in batched]


@dataclasses.dataclass(frozen=True, eq=False)
class _BatchedForm:
    """A form under `vmap`. A result that is one value for the whole batch stays one.

    Else numbers that do not depend on data, such as the size of a buffer, would become a batch.
    """

    form: _Form
    in_axes: tuple[int | None, ...]
    batched: tuple[bool, ...]

    def __call__(self, *leaves: Any) -> Sequence[Any]:
        """Evaluate the form on the leaves of a batch."""
        found = jax.vmap(self.form, self.in_axes)(*leaves)
        pairs = zip(found, self.batched, strict=True)
        return [leaf if is_batched else leaf[0] for leaf, is_batched in pairs]


def _are_batched(
    form: _Form, in_axes: tuple[int | None, ...], leaves: Sequence[Any]
) -> tuple[bool, ...]:
    """Tell which results of a form differ along a batch."""
    seen: list[list[bool]] = []

    @jax.custom_batching.custom_vmap
    def same(found: list[Any]) -> list[Any]:
        return found

    @same.def_vmap
    def _(size: int, batched: list[list[bool]], found: list[Any]) -> tuple[Any, Any]:
        seen.append(batched[0])
        return found, batched[0]

    counts: list[int] = []

    def look(*leaves: Any) -> Sequence[Any]:
        found = list(form(*leaves))
        counts.append(len(found))
        return same(found)

    jax.eval_shape(jax.vmap(look, in_axes), *leaves)
    return tuple(seen[0]) if seen else (False,) * counts[0]


def _differentiated(
    leaves: Sequence[Any], tangents: Sequence[Any], **forms: Any
) -> tuple[Sequence[Any], Sequence[Any]]:
    if all(type(tangent) is ad.Zero for tangent in tangents):
        found = _forms.bind(*leaves, **forms)
        zero: Any = ad.Zero
        return found, [zero.from_primal_value(leaf) for leaf in found]
    moved = [number for number, of in enumerate(tangents) if type(of) is not ad.Zero]

    # No gradient flows out of a buffer, so the speed does not matter: the form for CPU does.
    # An argument without a tangent must not get one: some are refused when they are differentiated.
    def of_moved(*values: Any) -> Sequence[Any]:
        given = list(leaves)
        for number, value in zip(moved, values, strict=True):
            given[number] = value
        return forms["cpu"](*given)

    primals = tuple(leaves[number] for number in moved)
    return jax.jvp(of_moved, primals, tuple(tangents[number] for number in moved))


def _on_cpu(*leaves: Any, avals: Any, cpu: _Form, default: _Form, gpu: _Form) -> Sequence[Any]:
    return cpu(*leaves)


def _on_gpu(*leaves: Any, avals: Any, cpu: _Form, default: _Form, gpu: _Form) -> Sequence[Any]:
    return gpu(*leaves)


def _elsewhere(*leaves: Any, avals: Any, cpu: _Form, default: _Form, gpu: _Form) -> Sequence[Any]:
    return default(*leaves)


batching.primitive_batchers[_forms] = _batched
ad.primitive_jvps[_forms] = _differentiated
mlir.register_lowering(_forms, mlir.lower_fun(_elsewhere, multiple_results=True))
mlir.register_lowering(_forms, mlir.lower_fun(_on_cpu, multiple_results=True), platform="cpu")
mlir.register_lowering(_forms, mlir.lower_fun(_on_gpu, multiple_results=True), platform="gpu")


def _lie_on_cpu(leaves: Sequence[Any]) -> bool:
    """Tell whether arrays that are no tracers lie on CPUs; a Python number lies on no device."""
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array) and hasattr(leaf, "devices")]
    return all(device.platform == "cpu" for array in arrays for device in array.devices())
