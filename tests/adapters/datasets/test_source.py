"""A data set of a user's own format, and what all loaders share."""

import inspect

import jax
import numpy as np
import pytest
from fbuf_adapters import datasets
from fbuf_adapters.datasets import (
    Block,
    DatasetError,
    RowFlags,
    Source,
    _chunks,
    from_arrays,
    load,
)

import fbuf
from fbuf.host import HostStore

LENGTHS = (3, 30, 1, 7)
ROWS = sum(LENGTHS)
of = jax.ShapeDtypeStruct
ITEM = {
    "observation": {"eye": of((2,), np.uint8), "speed": of((), np.float32)},
    "action": (of((), np.int32), of((1,), np.float32)),
}
LOADERS = [name for name in datasets.__all__ if name.startswith("from_")]


def arrays(first, length):
    """Rows by number, with one row more: the last observation."""
    n = first + np.arange(length + 1)
    return {
        "observation.eye": np.stack([n, n + 1], 1).astype(np.uint8),
        "observation.speed": n.astype(np.float32),
        "action.0": n.astype(np.int32),
        "action.1": n.astype(np.float32)[:, None],
    }


class Walks(Source):
    """Episodes of which every second one terminates; `change` spoils a block."""

    def __init__(self, change=lambda block: block, lacking=False, **attributes):
        self.item, self.rows, self.ends = ITEM, ROWS, len(LENGTHS)
        self._change, self._lacking, self.asked = change, lacking, []
        if lacking:
            self.unknown = self.stands_in = 2
        vars(self).update(attributes)

    def blocks(self, names, next_of, size):
        self.asked.append((names, next_of))
        for number, length in enumerate(LENGTHS):
            rows = arrays(100 * number, length)
            following = {n: leaf[1:] for n, leaf in rows.items() if n.startswith(f"{next_of}.")}
            last, odd = np.arange(length) == length - 1, bool(number % 2)
            flags = RowFlags(last & odd, last & (not odd))
            if self._lacking:
                flags = flags._replace(unknown=last & (not odd), stands_in=last & odd)
            block = Block({name: rows[name][:-1] for name in names}, following, flags)
            yield self._change(block)


def assert_holds(state, known=True):
    batch = fbuf.read(state, fbuf.newest_ids(state, ROWS), view=fbuf.Transition())
    rows = np.concatenate([100 * n + np.arange(length) for n, length in enumerate(LENGTHS)])
    item, later = batch.data.item, batch.data.next_observation
    last = np.cumsum(LENGTHS) - 1
    there = known | ~np.isin(np.arange(ROWS), last)  # the others are masked, or stand in
    eye, action, speed = item["observation"]["eye"][:, 1], item["action"][1][:, 0], later["speed"]
    for found, expected in ((eye, (rows + 1) % 256), (action, rows), (speed, rows + 1)):
        np.testing.assert_array_equal(np.asarray(found)[there], expected[there])
    stored = fbuf.rows(state)
    np.testing.assert_array_equal(np.flatnonzero(stored.terminated), last[1::2])
    np.testing.assert_array_equal(np.flatnonzero(stored.truncated), last[::2])
    unknown = [] if known else last[::2]
    np.testing.assert_array_equal(np.flatnonzero(~np.asarray(batch.mask)), unknown)


@pytest.mark.parametrize("size", [4, 8, 2**14])
def test_rows_of_blocks_of_any_length(size, monkeypatch):
    monkeypatch.setattr(_chunks, "_MOST_ROWS", size)
    source = Walks()
    assert_holds(load(source, next_of="observation", progress=False))
    assert source.asked == [(list(arrays(0, 1))[2:] + list(arrays(0, 1))[:2], "observation")]


def test_into_a_buffer_that_is_there():
    store = HostStore({"action": ITEM["action"]}, 100)
    source = Walks()
    assert load(source, store) is store
    assert source.asked == [(["action.0", "action.1"], None)]
    assert int(store.stats()["size"]) == ROWS
    item = {"next_observation": ITEM["observation"], "observation": ITEM["observation"]}
    state = load(Walks(), fbuf.init(item, 100))
    rows = fbuf.rows(state)
    speed = np.asarray(rows.data["observation"]["speed"])[np.asarray(rows.mask)]
    later = np.asarray(rows.data["next_observation"]["speed"])[np.asarray(rows.mask)]
    np.testing.assert_array_equal(later, speed + 1)


def test_next_observations_that_the_data_lack():
    with pytest.warns(UserWarning, match="load: .* lacks the next observations of 2 r") as warned:
        state = load(Walks(lacking=True), next_of="observation")
    assert len(warned) == 2  # of rows that terminated, and of those that were truncated
    assert_holds(state, known=False)


def without(name, which="fields"):
    def change(block):
        left = {n: leaf for n, leaf in getattr(block, which).items() if n != name}
        return Block(**{**vars(block), which: left})

    return change


def shorter(block):
    return Block(block.fields, block.following, RowFlags(*(flag[1:] for flag in block.flags[:2])))


def masked(block):
    fields = block.fields | {"action.0": np.ma.masked_less(block.fields["action.0"], 1)}
    return Block(**{**vars(block), "fields": fields})


REFUSED = {
    "few": ({"rows": ROWS + 1}, "load: rows of the source is 42, and its blocks have 41"),
    "many": ({"rows": ROWS - 1}, "load: rows of the source is 40, and its blocks have more"),
    "ends": ({"ends": 3}, "load: ends of the source is 3, and its blocks have more"),
    "field": (
        {"change": without("action.0")},
        "load: episode 0, row 0 of the data set: fields of the block must have 'action.0' as an "
        "array (3,), got none",
    ),
    "following": (
        {"change": without("observation.eye", "following"), "where": "walks"},
        "walks: episode 0, row 0 of the data set: following of the block must have "
        "'observation.eye' as an array (3, 2), got none",
    ),
    "length": (
        {"change": lambda block: shorter(block) if len(block.flags.ended) == 30 else block},
        "load: episode 1, row 3 of the data set: fields of the block must have 'action.0' as an "
        "array (29,), got (30,)",
    ),
    "none": ({"rows": 0}, "load: the data set has no rows"),
    "unknown": (
        {"lacking": True, "unknown": 0, "stands_in": 0},
        "load: unknown of the source is 0, and its blocks have more",
    ),
    "masked": (
        {"change": masked},
        "load: episode 0, row 0 of the data set: fields['action.0'] is a masked array, whose mask "
        "would be lost; leave the masked rows out, and give .data of the rest",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_source_that_is_not_as_it_says(name):
    attributes, message = REFUSED[name]
    with pytest.raises(DatasetError) as raised:
        load(Walks(**attributes), next_of="observation")
    assert str(raised.value) == message


NO_SOURCES = {
    "a dict": ({"reward": np.zeros(3)}, "got dict; a dict of arrays is for from_arrays"),
    "a class": (Walks, "got the class Walks; call it: Walks(...)"),
    "a path": ("rows.npz", "got str; a file is for the loader of its format, such as from_npz"),
    "nothing": (None, "got NoneType; write a subclass of Source for a format of your own"),
}


@pytest.mark.parametrize("name", NO_SOURCES)
def test_what_is_no_source_is_refused(name):
    given, message = NO_SOURCES[name]
    with pytest.raises(TypeError) as raised:
        load(given)
    assert str(raised.value) == f"load: source must be a Source, {message}"


def test_a_table_is_no_source():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(TypeError, match=r"got DataFrame; a table is for from_pandas$"):
        load(pandas.DataFrame({"reward": [0.0]}))


def flagged(**changes):
    """Change the flags of the block with 30 rows."""

    def change(block):
        if len(block.flags.ended) != 30:
            return block
        return Block(block.fields, block.following, block.flags._replace(**changes))

    return change


FALSE = np.zeros(30, bool)
DTYPE = "of RowFlags must be a bool array, got"
SHAPE = "each array of RowFlags must be of shape (n,) for the n rows of the block, got {"
FLAGS = {
    "integers": (
        {"truncated": FALSE.astype(int)},
        f"truncated {DTYPE} an array of int64; give np.",
    ),
    "floats": ({"terminated": FALSE * 1.0}, f"terminated {DTYPE} an array of float64; give np."),
    "objects": ({"terminated": FALSE.astype(object)}, f"terminated {DTYPE} an array of object; g"),
    "a list": ({"unknown": [False] * 30}, f"unknown {DTYPE} list; give np.asarray(unknown, bool)"),
    "none": ({"truncated": None}, f"truncated {DTYPE} NoneType; give np.asarray(truncated, bool)"),
    "words": ({"stands_in": "no"}, f"stands_in {DTYPE} str; give np.asarray(stands_in, bool), or"),
    "masked": ({"truncated": np.ma.array(FALSE, mask=~FALSE)}, "truncated is a masked array, who"),
    "columns": ({"terminated": FALSE[:, None]}, f"{SHAPE}'terminated': (30, 1), 'truncated': (30"),
    "fewer": ({"unknown": FALSE[:9]}, f"{SHAPE}'terminated': (30,), 'truncated': (30,), 'unkno"),
    "one": ({"truncated": FALSE[:1]}, f"{SHAPE}'terminated': (30,), 'truncated': (1,), 'unknown'"),
    "scalars": ({"terminated": False, "truncated": False}, f"{SHAPE}'terminated': (), 'truncate"),
}


@pytest.mark.parametrize("name", FLAGS)
def test_flags_that_are_no_bool_arrays_of_the_rows(name):
    changes, message = FLAGS[name]
    with pytest.raises(DatasetError) as raised:
        load(Walks(flagged(**changes)), next_of="observation")
    assert str(raised.value).startswith(f"load: {message}")


def test_one_flag_may_be_for_all_rows():
    off = flagged(truncated=False, stands_in=np.bool_(False))
    assert_holds(load(Walks(off), next_of="observation"))


def test_what_is_no_block_is_refused():
    for change, message in (
        (lambda block: block.fields, r"^load: blocks\(\) must yield Block\(...\), got dict$"),
        (
            lambda block: Block(block.fields, block.following, tuple(block.flags)),
            r"^load: flags of a block must be RowFlags\(...\), got tuple$",
        ),
    ):
        with pytest.raises(DatasetError, match=message):
            load(Walks(change), next_of="observation")


def test_rows_that_were_added_before_are_kept(monkeypatch):
    monkeypatch.setattr(_chunks, "_MOST_ROWS", 4)
    with pytest.raises(DatasetError) as raised:
        load(Walks(rows=ROWS + 1), next_of="observation")
    assert int(fbuf.size(raised.value.state)) == 40
    assert "load: 40 of 42 rows were added before" in raised.value.__notes__[0]


# --- the arguments that all loaders share --------------------------------------------------------


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_says_which_arguments_it_takes(name):
    loader = getattr(datasets, name)
    shared = list(inspect.signature(load).parameters.values())[2:]
    found = list(inspect.signature(loader).parameters.values())
    assert found[-len(shared) :] == shared
    _, _, after = inspect.getdoc(loader).partition("\nArgs:\n")
    entries = [line for line in after.partition("\n\n")[0].splitlines() if line[4] != " "]
    assert [entry.partition(":")[0].strip() for entry in entries] == [p.name for p in found]
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'nxt'$"):
        loader(None, nxt="observation")


def test_an_argument_with_a_text_of_its_own_keeps_it():
    text = inspect.getdoc(datasets.from_rlds)
    assert "    drop: As for `from_arrays`. Words cannot be stored" in text
    assert "    casts: As for `from_arrays`.\n" in text
    assert "drop: Fields that a new buffer does without" in inspect.getdoc(from_arrays)
