"""Types of arguments: arrays of JAX and NumPy. Those of chex take a third of a second to import."""

from __future__ import annotations

import jax
import numpy as np

Array = jax.Array | np.ndarray | np.bool_ | np.number
"""An array, or a number of NumPy's."""

PRNGKey = jax.Array
"""A random key."""
