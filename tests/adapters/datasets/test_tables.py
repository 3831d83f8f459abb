"""Parquet files and data frames: every row as NumPy has it, and what does not fit is named."""

import numpy as np
import pytest
from fbuf_adapters.datasets import DatasetError, from_arrays, from_pandas, from_parquet
from support.episodes import episodes, flat

import fbuf
from fbuf.host import HostStore

pytestmark = pytest.mark.filterwarnings("ignore:.*lacks the next observations of . row")
ROWS, TERMINATED, TRUNCATED, LATER = flat(episodes([3, 4, 5]))
CASTS = {"reward": "float32", "action": "int32"}
GRID = np.arange(12 * 6, dtype=np.float32).reshape(12, 2, 3)
WANTED = {**ROWS, "inside": {"grid": GRID, "speed": np.arange(12, dtype=np.float32)}}


def same(state, expected=WANTED):
    """The rows of the buffer are those that `from_arrays` loads."""
    given = {"terminated": TERMINATED, "truncated": TRUNCATED, "casts": CASTS}
    other = fbuf.rows(from_arrays(expected, next_of="observation", **given))
    rows = state.rows() if isinstance(state, HostStore) else fbuf.rows(state)
    assert rows.data.keys() == other.data.keys()
    for name in ("terminated", "truncated", "mask"):
        np.testing.assert_array_equal(getattr(rows, name), getattr(other, name))
    for name, leaf in expected.items():
        parts = leaf.items() if isinstance(leaf, dict) else [("", leaf)]
        for part, values in parts:
            found = rows.data[name][part] if part else rows.data[name]
            assert found.dtype == (other.data[name][part] if part else other.data[name]).dtype
            np.testing.assert_array_equal(found, values.astype(found.dtype))


@pytest.fixture
def arrow():
    return pytest.importorskip("pyarrow")


def columns(**names):
    """The columns of a table, lists where a row has several numbers."""
    found = {name: list(array) for name, array in ROWS.items()}
    found["observation"] = [row.tolist() for row in ROWS["observation"]]
    found[names.get("terminated", "terminated")] = TERMINATED.tolist()
    found[names.get("truncated", "truncated")] = TRUNCATED.tolist()
    return found


def table(arrow, **names):
    whole = arrow.table(columns(**names))
    observation = arrow.array(columns()["observation"], arrow.list_(arrow.float32(), 3))
    at = whole.column_names.index("observation")
    whole = whole.set_column(at, "observation", observation)
    grid = arrow.array(GRID.tolist(), arrow.list_(arrow.list_(arrow.float32())))
    speed = arrow.array(np.arange(12, dtype=np.float32))
    inside = arrow.StructArray.from_arrays([grid, speed], ["grid", "speed"])
    return whole.append_column("inside", inside)


OPTIONS = {"next_of": "observation", "casts": CASTS}


@pytest.mark.parametrize("size", [1, 5, 64])
def test_a_parquet_file_is_read_a_group_at_a_time(size, arrow, tmp_path):
    import pyarrow.parquet as parquet

    path = tmp_path / "rows.parquet"
    parquet.write_table(table(arrow), path, row_group_size=size, use_dictionary=size == 5)
    same(from_parquet(path, **OPTIONS))


def test_a_directory_of_parquet_files_and_other_names(arrow, tmp_path):
    import pyarrow.parquet as parquet

    whole = table(arrow, terminated="done", truncated="timeout")
    for number, (start, stop) in enumerate([(0, 4), (4, 5), (5, 12)]):
        parquet.write_table(whole.slice(start, stop - start), tmp_path / f"part-{number}.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    names = {"terminated": "done", "truncated": "timeout"}
    same(from_parquet(tmp_path, **names, **OPTIONS))
    made = from_arrays(WANTED, terminated=TERMINATED, truncated=TRUNCATED, **OPTIONS)
    store = HostStore(made.storage.item, 12, next_of="observation")
    same(from_parquet(tmp_path, store, **names, casts=CASTS))
    without = {name: leaf for name, leaf in WANTED.items() if name != "inside"}
    same(from_parquet(tmp_path, **names, drop=["inside"], **OPTIONS), without)
    with pytest.warns(UserWarning, match="give truncated, the column that says so"):
        from_parquet(tmp_path, terminated="done", drop=["timeout"], casts=CASTS)


def test_next_observations_are_those_of_the_table(arrow, tmp_path):
    import pyarrow.parquet as parquet

    whole = table(arrow).drop_columns(["inside"])
    whole = whole.append_column("next_observation", arrow.array(LATER.tolist()))
    parquet.write_table(whole, tmp_path / "rows.parquet")
    ends = {"terminated": TERMINATED, "truncated": TRUNCATED, "next_observation": LATER}
    casts = {**CASTS, "observation": "float32", "next_observation": "float32"}
    rows = [
        fbuf.rows(state, view=fbuf.Transition())
        for state in (
            from_parquet(tmp_path / "rows.parquet", drop=[], next_of="observation", casts=casts),
            from_arrays(ROWS, **ends, **OPTIONS),
        )
    ]
    assert rows[0].mask.all()
    np.testing.assert_array_equal(rows[0].data.next_observation, rows[1].data.next_observation)
    np.testing.assert_array_equal(rows[0].data.next_observation, LATER)


def test_a_column_of_tensors(arrow, tmp_path):
    import pyarrow.parquet as parquet

    tensors = arrow.FixedShapeTensorArray.from_numpy_ndarray(GRID)
    rows = arrow.table({"grid": tensors, "terminated": TERMINATED, "truncated": TRUNCATED})
    parquet.write_table(rows, tmp_path / "rows.parquet")
    found = fbuf.rows(from_parquet(tmp_path / "rows.parquet")).data["grid"]
    np.testing.assert_array_equal(found, GRID)


def refused(arrow):
    """Columns that do not fit, and what is said of them."""
    lists = arrow.array([[1.0]] * 11 + [[1.0, 2.0]])
    return {
        "lengths": (lists, "x has rows of different lengths"),
        "nothing": (arrow.array([1.0] * 11 + [None]), "x has rows without a value"),
        "no list": (arrow.array([[1.0]] * 11 + [None]), "x has rows of different lengths, or"),
        "words": (arrow.array(["push"] * 12), "x is object, which cannot be stored; leave it out"),
    }


@pytest.mark.parametrize("name", ["lengths", "nothing", "no list", "words"])
def test_a_column_that_does_not_fit_is_named(name, arrow, tmp_path):
    import pyarrow.parquet as parquet

    column, said = refused(arrow)[name]
    path = tmp_path / "rows.parquet"
    parquet.write_table(table(arrow).append_column("x", column), path)
    with pytest.raises(DatasetError, match=f"from_parquet: {said}"):
        from_parquet(path, **OPTIONS)
    same(from_parquet(path, drop=["x"], **OPTIONS))


def test_what_is_no_parquet_is_refused(arrow, tmp_path):
    import pyarrow.parquet as parquet

    path = tmp_path / "rows.parquet"
    with pytest.raises(FileNotFoundError, match="from_parquet: there is no file"):
        from_parquet(path)
    with pytest.raises(DatasetError, match=r"has no files that end in \.parquet"):
        from_parquet(tmp_path)
    parquet.write_table(table(arrow), path)
    said = r"is 'done', which no column is called; there are .*inside\.grid"
    for argument in ("terminated", "truncated"):
        with pytest.raises(DatasetError, match=f"{argument} {said}"):
            from_parquet(path, **{argument: "done"})
    parquet.write_table(table(arrow, terminated="done"), tmp_path / "done.parquet")
    with pytest.raises(DatasetError, match="if episodes end by done, give terminated='done'"):
        from_parquet(tmp_path / "done.parquet")
    (tmp_path / "done.parquet").unlink()
    with pytest.raises(DatasetError, match="drop has 'x', which no column is called"):
        from_parquet(path, drop=["x"])
    with pytest.raises(TypeError, match="drop must be a list of names"):
        from_parquet(path, drop="x")
    parquet.write_table(table(arrow).drop_columns(["action"]), tmp_path / "rows2.parquet")
    with pytest.raises(DatasetError, match=r"rows2\.parquet has other columns than rows\.parquet"):
        from_parquet(tmp_path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(DatasetError, match="cut off, damaged, or no parquet"):
        from_parquet(path)


def test_a_small_parquet_file_that_declares_many_rows(arrow, tmp_path):
    """Equal values take no room in a file, and all of it in memory."""
    import pyarrow.parquet as parquet

    path = tmp_path / "rows.parquet"
    many = arrow.table({"terminated": np.zeros(2**22, bool)})
    with parquet.ParquetWriter(path, many.schema) as file:
        for _ in range(40):
            file.write_table(many)
    with pytest.raises(DatasetError, match=r"MiB declare arrays of 1\.2 GiB"):
        from_parquet(path)


# --- data frames ---------------------------------------------------------------------------------


class Frame(dict):
    """As far as anyone looks, a data frame: of pandas, or of polars."""

    @property
    def columns(self):
        return list(self)

    def __getitem__(self, name):
        return Series(dict.__getitem__(self, name))


class Given(Frame):
    """A data frame of columns that are given."""

    def __getitem__(self, name):
        return dict.__getitem__(self, name)


class Series:
    def __init__(self, values):
        self._values = values

    def to_numpy(self):
        return self._values


def objects(values):
    found = np.empty(len(values), object)
    for row, value in enumerate(values):
        found[row] = value
    return found


def frame(kind):
    data = {
        **ROWS,
        "observation": objects(list(ROWS["observation"])),
        "inside.grid": objects(list(GRID)),
        "inside.speed": np.arange(12, dtype=np.float32),
        "terminated": TERMINATED,
        "truncated": TRUNCATED,
    }
    return Frame(data) if kind == "stand-in" else pytest.importorskip("pandas").DataFrame(data)


@pytest.mark.parametrize("kind", ["stand-in", "pandas"])
def test_a_data_frame(kind):
    given = frame(kind)
    same(from_pandas(given, **OPTIONS))
    without = {name: leaf for name, leaf in WANTED.items() if name != "inside"}
    same(from_pandas(given, drop=["inside"], **OPTIONS), without)


def test_a_data_frame_of_pandas_with_an_index_and_other_names():
    pandas = pytest.importorskip("pandas")
    given = frame("pandas").rename(columns={"terminated": "done"}).set_index(np.arange(12) * 7)
    same(from_pandas(given, terminated="done", **OPTIONS))
    twice = pandas.concat([given, given[["done"]]], axis=1)
    with pytest.raises(DatasetError, match="each must have a name of its own"):
        from_pandas(twice, terminated="done")
    missing = given.assign(x=pandas.array([1] * 11 + [None], dtype="Int64"))
    with pytest.raises(DatasetError, match="x has rows without a value"):
        from_pandas(missing, terminated="done")


def test_a_missing_value_is_no_nan():
    """Pandas and polars make floats for NumPy where an integer is missing."""
    column = Series(np.array([1.0, np.nan]))
    column.null_count = lambda: 1
    with pytest.raises(DatasetError, match="x has rows without a value"):
        from_pandas(Given(x=column, terminated=Series(np.zeros(2, bool))))


def test_what_is_no_data_frame():
    for given in (None, 3, ROWS, np.zeros(3)):
        with pytest.raises(TypeError, match="from_pandas: frame must be a data frame with columns"):
            from_pandas(given)
    with pytest.raises(DatasetError, match="x has rows of the shapes"):
        from_pandas(Frame(x=objects([np.zeros(2), np.zeros(3)]), terminated=np.zeros(2, bool)))
    with pytest.raises(DatasetError, match="x holds strs"):
        from_pandas(Frame(x=objects(["a", "b"]), terminated=np.zeros(2, bool)))
    with pytest.raises(DatasetError, match="no column is left"):
        from_pandas(Frame(terminated=np.zeros(2, bool)))
