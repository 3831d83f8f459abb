"""Episodes of RLDS into a buffer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

import jax
import numpy as np

from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import Array, named, native, nested, spec, within
from fbuf_adapters.datasets._loading import Options, load, loader
from fbuf_adapters.datasets._source import Block, RowFlags, Source

_FLAGS = ("is_first", "is_last", "is_terminal")


@loader
def from_rlds(
    episodes: Sequence[Mapping[str, Any]],
    into: Any = None,
    **options: Unpack[Options],
) -> Any:
    """Load episodes in the form of RLDS into a buffer, one after another.

    The last step of an episode has an observation, and no action that was taken. So it is no row.
    Its observation is the next observation of the row before, which is terminated if the last step
    `is_terminal`, and else truncated. All other fields of a step are fields of a row.

    Args:
        episodes: A data source of TensorFlow Datasets:
            `tfds.builder_from_directory(path).as_data_source("train")`. TensorFlow is not needed,
            but the files must be array_record, not TFRecord. Any sequence of dicts will do, which
            have `steps`: a sequence of dicts with `is_terminal`, arrays and numbers.
        into: As for `from_arrays`.
        **options: As for `from_arrays`.
        drop: As for `from_arrays`. Words cannot be stored: leave them out.

    Returns:
        The buffer, or the store.

    Raises:
        DatasetError: As from `from_arrays`; and if a step `is_last` before the last one, if it has
            another shape than the first one, or lacks a field.
        TypeError: As from `from_arrays`; and if `episodes` is no sequence of dicts with `steps`.

    Cost: as for `from_arrays`, and the memory of one episode. Each episode is opened twice, the
    first time for its last step alone.

    Examples:
        >>> import numpy as np
        >>> from fbuf_adapters.datasets import from_rlds
        >>> step = {"observation": np.zeros(2, np.float32), "is_terminal": False}
        >>> from_rlds([{"steps": [step] * 4}, {"steps": [step] * 3}], next_of="observation")
        State(Uniform, 5 of 5 rows)

    References:
        Ramos et al., 2021: RLDS: an Ecosystem to Generate, Share and Use Datasets in Reinforcement
        Learning. https://arxiv.org/abs/2111.02767
    """
    is_sequence = hasattr(episodes, "__getitem__") and hasattr(episodes, "__len__")
    if not is_sequence or isinstance(episodes, str | Mapping):
        raise TypeError(
            "from_rlds: episodes must be a sequence, such as builder.as_data_source('train') of "
            f"TensorFlow Datasets, got {type(episodes).__name__}"
        )
    return load(_Episodes(episodes), into, **options)


class _Episodes(Source):
    """A source of episodes with all last observations."""

    where = "from_rlds"

    def __init__(self, episodes: Any) -> None:
        self._episodes = episodes
        self._lengths: list[int] = []
        self._terminal: list[bool] = []
        for number in range(len(episodes)):
            steps = self._steps(number)
            self._lengths.append(max(len(steps) - 1, 0))
            last = steps[len(steps) - 1] if len(steps) else {}
            self._terminal.append(bool(last.get("is_terminal", False)))
        self.rows, self.ends = sum(self._lengths), sum(length > 0 for length in self._lengths)
        self.item: Any = {}
        if self.rows:
            first = next(number for number, length in enumerate(self._lengths) if length)
            leaves = self._leaves(first, [self._steps(first)[0]])
            self.item = nested({name: spec(leaf) for name, leaf in leaves.items()})

    def blocks(self, names: list[str], next_of: str | None, size: int) -> Iterator[Block]:
        """Yield each episode as a block."""
        for number, length in enumerate(self._lengths):
            if not length:
                continue
            steps = list(self._steps(number))
            for place, step in enumerate(steps[:-1]):
                if step.get("is_last", False):
                    raise DatasetError(
                        f"{self.where}: episode {number}: step {place} of {length + 1} is_last; "
                        "split the episode there"
                    )
            leaves = self._leaves(number, steps)
            observed = {} if next_of is None else within(leaves, next_of)
            ended, terminal = np.arange(length) == length - 1, self._terminal[number]
            yield Block(
                fields={name: leaves[name][:-1] for name in names},
                following={name: leaf[1:] for name, leaf in observed.items()},
                flags=RowFlags(terminated=ended & terminal, truncated=ended & (not terminal)),
                episode=number,
            )

    def _steps(self, number: int) -> Any:
        episode = self._episodes[number]
        if not isinstance(episode, Mapping) or "steps" not in episode:
            raise TypeError(
                f"{self.where}: episode {number} must be a dict with 'steps', got "
                f"{type(episode).__name__}"
            )
        return episode["steps"]

    def _leaves(self, number: int, steps: list[Any]) -> dict[str, Array]:
        """Return the fields of steps as arrays, [n, ...], by name."""
        rows = [
            named({name: part for name, part in step.items() if name not in _FLAGS})
            for step in steps
        ]
        wanted = named(self.item) or rows[0]
        leaves: dict[str, Array] = {}
        for name in wanted:
            for place, row in enumerate(rows):
                if name not in row:
                    raise DatasetError(
                        f"{self.where}: episode {number}: step {place} has no {name!r}; drop it, "
                        "or write it into all steps"
                    )
            try:
                leaves[name] = native(np.stack([np.asarray(row[name]) for row in rows]))
            except ValueError:
                shapes = sorted({np.shape(row[name]) for row in rows})
                raise DatasetError(
                    f"{self.where}: episode {number}: {name} has the shapes {shapes}; they must "
                    "be alike"
                ) from None
            usual = wanted[name].shape if isinstance(wanted[name], jax.ShapeDtypeStruct) else None
            if usual is not None and leaves[name].shape[1:] != usual:
                raise DatasetError(
                    f"{self.where}: episode {number}: {name} has shape {leaves[name].shape[1:]}, "
                    f"and in the first step it has {usual}"
                )
        return leaves
