"""Weights of a policy in Ray's object store."""

from __future__ import annotations

from typing import Any

import ray

from fbuf_adapters.gymnasium._weights import Form
from fbuf_adapters.ray._stepping import Stamped


class Weights:
    """The newest weights, with a version that counts up from 0."""

    def __init__(self, tree: Any, owner: str) -> None:
        """Hold a first version: any tree of mappings, tuples, lists and arrays."""
        self.form = Form(tree, owner)
        self.readers: list[Any] = []
        """The workers, which are told of new ones."""
        self.version = -1
        self.publish(tree)

    def publish(self, tree: Any) -> int:
        """Replace them, and return the version of the new ones."""
        reference = ray.put(self.form.arrays(tree))  # it copies them
        self.version += 1
        self.stamped: Stamped = (self.version, [reference])
        for reader in self.readers:
            reader.publish()
        return self.version
