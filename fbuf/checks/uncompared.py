"""Trees of arrays, which `==` does not compare: arrays have no one truth value."""

from __future__ import annotations

import jax


class Uncompared:
    """A class of arrays whose `==` says what compares two of its objects.

    Trees of shapes or dtypes of the same class are compared.
    """

    def __eq__(self, other: object) -> bool:
        """Refuse to compare arrays with those of an object of the same class."""
        if type(other) is not type(self):
            return NotImplemented
        (own, tree), (theirs, same) = jax.tree.flatten(self), jax.tree.flatten(other)
        if not any(isinstance(leaf, jax.Array) or hasattr(leaf, "__array__") for leaf in own):
            return bool(tree == same and own == theirs)
        name = type(self).__name__
        compares = "all arrays of both, and names what differs"
        if name == "State":
            compares = "what two buffers hold: give it fbuf.rows(state).data of each"
        raise TypeError(
            f"== does not compare two objects of {name}, which are trees of arrays; "
            f"chex.assert_trees_all_equal(one, other) compares {compares}"
        )
