"""Loaders of data sets in the reference, with the signature and the text that `help` shows.

`fbuf_adapters.datasets._loading.loader` completes both when a module is imported. The site reads
source text, which names the shared arguments once.
"""

from __future__ import annotations

import importlib
from typing import Any

import griffe


class Loaders(griffe.Extension):
    """Completes the functions that have the decorator `loader`."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Name the arguments of `load` in place of `**options`."""
        if "loader" not in (str(decorator.value) for decorator in func.decorators):
            return
        shown = getattr(importlib.import_module(func.module.path), func.name)
        func.docstring.value = shown.__doc__
        del func.parameters["options"]
        load = func.modules_collection["fbuf_adapters.datasets._loading.load"]
        for parameter in load.parameters:
            if parameter.kind is griffe.ParameterKind.keyword_only:
                func.parameters.add(parameter)
