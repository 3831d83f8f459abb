"""Errors in the words of the user's object: its class, its methods, and the names of its arguments.

The core and the object's own parts name the function of `fbuf` that they are. Their messages go
through here on the way out of a method, once for every method of a class.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import fbuf

T = TypeVar("T", bound=type)

_BEGINS = re.compile(r"fbuf(?:_adapters)?(?:\.\w+)*: ")

_PASS_ON = frozenset(("__iter__", "__getattr__", "__getstate__", "__init_subclass__", "__repr__"))
"""Methods whose errors are their own, or come when somebody goes through what they return."""

_BATCHES = frozenset(("sample", "next"))
"""Methods that return a batch, and call `retell` themselves. An exception between their end and
that of a function around them would lose the batch."""

_DUNDERS = frozenset(("__init__", "__len__", "__getitem__", "__setitem__"))

_SAID = (
    (re.compile(r"\.astype\(bool\)"), ".bool()"),
    (re.compile(r"\.astype\('(\w+)'\)"), r".to(torch.\1)"),
    (re.compile(r"jnp\.(array|asarray)\(\.\.\.\)"), "torch.as_tensor(...)"),
    (re.compile(r"and JAX would silently make it (\w+) because its 64-bit types are off"),
     r"and the buffer, whose 64-bit types are off, would make it \1"),
    (re.compile(r"has the sampler (.*), and sampler is (.*); leave sampler out, .*"),
     r"has the sampler \1, and that of this buffer is \2; make the buffer with sampler=\1"),
    (re.compile(r"the (\w+) of the checkpoint has (.*); leave sampler out, .*"),
     r"the \1 of the checkpoint has \2; make the buffer with sampler=\1(...) like it"),
    (re.compile(r"=(\S+), and sampler has"), r"=\1, and that of this buffer has"),
    (re.compile(r"fbuf\.ids_at\(state, "), "fbuf.ids_at(buffer.state, "),
)  # fmt: skip
"""Patterns of words of JAX, and the words of PyTorch in their place."""


@dataclasses.dataclass(frozen=True)
class Words:
    """The words of a class.

    Attributes:
        name: The class, with its module.
        functions: By the name of a function of `fbuf`: how a user of the class calls it.
        arguments: By the name of a method: its own words for arguments of the core.
    """

    name: str
    functions: Mapping[str, str]
    arguments: Mapping[str, Mapping[str, str]]

    def of(self, method: str, said: str) -> str:
        """Return a message in the words of a method; those of other code stay as they are."""
        begins = _BEGINS.match(said)
        if begins is None:
            return said
        last = begins[0][:-2].rpartition(".")[2]
        text = said if isinstance(getattr(fbuf, last, None), type) else said[begins.end() :]
        for words, ours in _SAID:
            text = words.sub(ours, text)
        for core, ours in self.arguments.get(method, {}).items():
            text = re.sub(rf"\b{core}(?=\[| must| has| is| are| differ)", ours, text)
        return f"{self.name}.{method}: {self._function.sub(self._called, text)}"

    @functools.cached_property
    def _function(self) -> re.Pattern[str]:
        return re.compile(rf"\bfbuf\.({'|'.join(self.functions)})\b(\()?")

    def _called(self, found: re.Match[str]) -> str:
        ours = self.functions[found[1]]
        return ours if "(" in ours else ours + (found[2] or "()")

    def __call__(self, kind: T) -> T:
        """Have the methods of a class raise errors in these words."""
        for name, method in list(vars(kind).items()):
            public = not name.startswith("_") or name in _DUNDERS
            if inspect.isfunction(method) and public and name not in _PASS_ON | _BATCHES:
                setattr(kind, name, self._speaking(name, method))
        return kind

    def _speaking(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def speaking(*args: Any, **options: Any) -> Any:
            try:
                return method(*args, **options)
            except Exception as error:
                self.retell(name, error)
                raise

        return speaking

    def retell(self, method: str, error: BaseException) -> None:
        """Have an error of a method speak in these words."""
        if isinstance(error, Exception) and error.args and isinstance(said := error.args[0], str):
            error.args = (self.of(method, said), *error.args[1:])


OF_TENSORS = Words(
    "fbuf_adapters.pytorch.ReplayBuffer",
    {
        **{name: name for name in ("add", "sample", "update_priority", "write", "remove")},
        **{name: name for name in ("end_episode", "can_sample", "stats", "raise_on_fault")},
        **{name: name for name in ("save", "load")},
        "init": "ReplayBuffer",
        "clear": "empty",
        "size": "len(buffer)",
    },
    {"add": {"items": "item"}},
)
"""The words of `ReplayBuffer`."""
