"""Data sets that somebody else has made: no other file is read, and little memory is taken."""

import io
import json
import os
import pathlib
import tracemalloc
import zipfile

import numpy as np
import pytest
from fbuf_adapters.datasets import (
    DatasetError,
    _npz,
    _ogbench,
    from_d4rl,
    from_npz,
    from_ogbench,
)
from support import lerobot_files as files

ROWS = {
    "observation": np.arange(12, dtype=np.float32).reshape(6, 2),
    "terminated": np.arange(6) % 3 == 2,
    "truncated": np.zeros(6, bool),
}
OGBENCH = {
    "observations": ROWS["observation"],
    "actions": ROWS["observation"],
    "terminals": ROWS["terminated"],
}


def saved(path, arrays=ROWS):
    np.savez_compressed(path, **arrays)
    return path


def peak_of(call):
    """The most memory that a call takes, in bytes."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("load", [from_npz, from_ogbench, from_d4rl])
def test_what_is_no_plain_file_is_refused(load, tmp_path):
    if load is from_d4rl:
        pytest.importorskip("h5py")
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("pipe", "a pipe"), (".", "a directory")):
        with pytest.raises(DatasetError, match=f"{load.__name__}: .*it is {said}, and no plain"):
            load(tmp_path / name)


def with_header(path, shape, descr="<f8", data=b"", name="terminated"):
    """An npz whose array has any header."""
    header = io.BytesIO()
    about = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(header, about)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(f"{name}.npy", header.getvalue() + data)
    return path


def test_an_array_that_declares_more_than_it_has_takes_no_memory(tmp_path):
    """Before, 8 GB were asked for; the file has a few hundred bytes."""
    path = tmp_path / "rows.npz"
    for shape, descr in (((2**30,), "<f8"), ((2**62, 2**62), "<f8"), ((-3,), "<f8"), ((3,), "|V0")):
        with_header(path, shape, descr)

        def call():
            with pytest.raises(DatasetError, match="cannot be read"):
                from_npz(path)

        assert peak_of(call) < 2**24


def test_an_array_of_zeros_that_becomes_many_gigabytes_is_refused(tmp_path):
    """A thousand times its size, which a list of members in the file says beforehand."""
    path = with_header(tmp_path / "rows.npz", (2**21,), data=bytes(2**24))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2") + 24  # the length of the member, in the list
    data[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    path.write_bytes(data)

    def call():
        with pytest.raises(
            DatasetError, match=r"cannot be read: its .* KiB declare arrays of 4\.0 GiB"
        ):
            from_npz(path)

    assert peak_of(call) < 2**24


def test_flags_that_are_mostly_false_are_no_bomb(tmp_path):
    rows = 300_000
    ends = np.arange(rows) % 1000 == 999
    zeros = {"reward": np.zeros(rows, np.float32), "terminated": ends, "truncated": ends & False}
    path = saved(tmp_path / "rows.npz", zeros)
    assert path.stat().st_size < 10_000
    assert from_npz(path).capacity == rows


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_methods_and_passwords_are_read_or_refused(method, tmp_path):
    path = saved(tmp_path / "rows.npz")
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", method) as file:
        for name, data in members.items():
            file.writestr(name, data)
    assert from_npz(path).capacity == 6
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") + 8] |= 1  # a member with a password
    path.write_bytes(data)
    with pytest.raises(DatasetError, match="encrypted"):
        from_npz(path)


# --- anything in an npz --------------------------------------------------------------------------

HEADERS = [
    *("{'descr': '<f8', 'fortran_order': False, 'shape': ", "{" * 200, "(" * 5000, "\0", "1"),
    *("{'descr': 'O', 'fortran_order': False, 'shape': (6,), }", "{'descr': [('a', 'O')]}"),
    "{'descr': [('a', '<f4', (6,))], 'fortran_order': True, 'shape': (6,), }",
    "{'descr': '<U1073741824', 'fortran_order': False, 'shape': (6,), }",
    "{'descr': '<M8[D]', 'fortran_order': False, 'shape': (6,), }",
    "{'descr': '<f8', 'fortran_order': 3, 'shape': (6.0,), }",
    "{'descr': '<f8', 'fortran_order': False, 'shape': (True,), }",
    "{'descr': '|b1', 'fortran_order': False, 'shape': (), }",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (6, 2), }",
]


def read_all(source, into):
    """Take the place of a load: read all blocks of rows."""
    source.settle("observation", 4)
    for _ in source.blocks([name for name in source._fields], None, 4):
        pass


def mutated(whole, rng):
    """An npz with another byte, length, member or header somewhere."""
    data = bytearray(whole)
    match rng.integers(5):
        case 0:
            del data[rng.integers(len(data)) :]
        case 1:
            for _ in range(rng.integers(1, 6)):
                data[rng.integers(len(data))] = rng.integers(256)
        case 2:
            at = data.rindex(b"PK\1\2") if rng.integers(2) else data.index(b"PK\1\2")
            data[at + rng.integers(46)] = rng.integers(256)
        case _:
            with zipfile.ZipFile(io.BytesIO(whole)) as file:
                members = {name: bytearray(file.read(name)) for name in file.namelist()}
            name = list(members)[rng.integers(len(members))]
            if rng.integers(2):
                header = HEADERS[rng.integers(len(HEADERS))].encode()
                members[name][8 : 10 + len(header)] = len(header).to_bytes(2, "little") + header
            else:
                members[name][rng.integers(len(members[name]))] = rng.integers(256)
            found = io.BytesIO()
            with zipfile.ZipFile(found, "w", zipfile.ZIP_DEFLATED) as file:
                for at, member in members.items():
                    file.writestr(at, bytes(member))
            return found.getvalue()
    return bytes(data)


@pytest.mark.parametrize("times", [200, pytest.param(20_000, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("load", [from_npz, from_ogbench])
def test_any_npz_is_read_or_refused(load, times, tmp_path, monkeypatch):
    """One class of error, and little memory; the whole fuzz is in the sweep."""
    module, arrays = (_npz, ROWS) if load is from_npz else (_ogbench, OGBENCH)
    monkeypatch.setattr(module, "load", read_all)
    path, rng, refused = tmp_path / "rows.npz", np.random.default_rng(times), 0
    words = {"dtypes": np.array(["observation=float32"])} if load is from_npz else {}
    whole = saved(path, {**arrays, **words}).read_bytes()

    def call():
        nonlocal refused
        for _ in range(times):
            path.write_bytes(mutated(whole, rng))
            try:
                load(path)
            except DatasetError:
                refused += 1

    assert peak_of(call) < 2**26
    assert 0.3 * times < refused < times


# --- HDF5 ----------------------------------------------------------------------------------------


def flat(h5py, path):
    with h5py.File(path, "w") as file:
        file["observations"] = ROWS["observation"]
        file["actions"] = ROWS["observation"]
        file["rewards"] = np.ones(6, np.float32)
        file["terminals"] = ROWS["terminated"]
    return path


@pytest.mark.parametrize("how", ["link", "nested", "soft", "external", "virtual", "group"])
def test_hdf5_reads_no_other_file(how, tmp_path):
    """HDF5 follows links to other files by itself, and reads the bytes of arrays from them."""
    h5py = pytest.importorskip("h5py")
    path, secret = flat(h5py, tmp_path / "rows.hdf5"), flat(h5py, tmp_path / "secret.hdf5")
    shape, dtype = ROWS["observation"].shape, np.float32
    with h5py.File(path, "a") as file:
        del file["observations"]
        if how in ("link", "soft"):
            name = {"link": "observations", "soft": "elsewhere"}[how]
            file[name] = h5py.ExternalLink(secret, "/observations")
            if how == "soft":
                file["observations"] = h5py.SoftLink("/elsewhere")
        elif how == "nested":
            file.create_group("observations")["camera"] = h5py.ExternalLink(secret, "/observations")
        elif how == "external":
            file.create_dataset("observations", shape, dtype, external=[(str(secret), 0, 48)])
        elif how == "virtual":
            layout = h5py.VirtualLayout(shape, dtype)
            layout[:] = h5py.VirtualSource(secret, "observations", shape)
            file.create_virtual_dataset("observations", layout)
        else:
            file.create_group("observations")["again"] = h5py.SoftLink("/observations")
    with pytest.raises(DatasetError, match=r"another file|in one another"):
        from_d4rl(path)


def test_hdf5_with_links_within_the_file_is_read(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = flat(h5py, tmp_path / "rows.hdf5")
    with h5py.File(path, "a") as file:
        file["timeouts"] = h5py.SoftLink("terminals")
        file["a/b"] = h5py.SoftLink("/rewards")
        file["infos/qpos"] = h5py.SoftLink("/a/b")
    assert from_d4rl(path, infos=["qpos"]).capacity == 6


def test_hdf5_that_declares_rows_it_does_not_have(tmp_path):
    """Chunks that were never written take no room in the file."""
    h5py = pytest.importorskip("h5py")
    path = flat(h5py, tmp_path / "rows.hdf5")
    with h5py.File(path, "a") as file:
        del file["terminals"]
        file.create_dataset("terminals", (2**33,), bool, chunks=(2**20,))
    with pytest.raises(DatasetError, match=r"KiB declare arrays of 8\.0 GiB"):
        from_d4rl(path)
    with h5py.File(path, "a") as file:
        del file["terminals"]
        file["terminals"] = h5py.Empty("f")
    with pytest.raises(DatasetError, match="is no array"):
        from_d4rl(path)


def test_files_of_minari_that_are_no_plain_ones(tmp_path):
    pytest.importorskip("minari")
    from fbuf_adapters.datasets import from_minari

    folder = tmp_path / "mine" / "data"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "metadata.json")
    with pytest.raises(DatasetError, match="it is a pipe, and no plain file"):
        from_minari(tmp_path / "mine")
    (folder / "metadata.json").unlink()
    (folder / "metadata.json").write_text("{}")
    (tmp_path / "secret.hdf5").write_text("")
    (folder / "main_data.hdf5").symlink_to(tmp_path / "secret.hdf5")
    with pytest.raises(DatasetError, match=r"main_data\.hdf5 is a link to .*secret\.hdf5"):
        from_minari(tmp_path / "mine")


# --- LeRobot -------------------------------------------------------------------------------------


@pytest.fixture
def robot(tmp_path):
    pytest.importorskip("pyarrow")

    def unpacked(version="3.0"):
        folder = tmp_path / version
        zipfile.ZipFile(files.FILES / f"lerobot_v{version}.zip").extractall(folder)
        (info,) = folder.rglob("info.json")
        return info.parents[1]

    return unpacked


def edited(folder, **changes):
    info = folder / "meta" / "info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), **changes}))


BAD_INFO = {
    "up": {"data_path": "../{episode_chunk}/{chunk_index:03d}.parquet"},
    "absolute": {"data_path": "/etc/{chunk_index}"},
    "width": {"data_path": "data/{chunk_index:0300000000d}/{file_index:03d}.parquet"},
    "attribute": {"data_path": "data/{chunk_index.__class__}.parquet"},
    "escape": {"data_path": "data/\x1b[2J.parquet"},
    "no path": {"data_path": 3},
    "video": {"video_path": "../{video_key}.mp4"},
    "no time": {"fps": 0},
    "not a number": {"fps": float("nan")},
    "endless": {"fps": float("inf")},
    "backwards": {"fps": -1},
    "no chunk": {"chunks_size": 0},
    "no features": {"features": []},
    "a feature": {"features": {"x": 3}},
    "a shape": {"features": {"x": {"dtype": "float32", "shape": [2**40]}}},
    "no shape": {"features": {"x": {"dtype": "float32", "shape": None}}},
    "a name": {"features": {"\x1b[2J": {"dtype": "float32", "shape": [1]}}},
}


@pytest.mark.parametrize("version", ["3.0", "2.1"])
@pytest.mark.parametrize("bad", BAD_INFO)
def test_metadata_of_lerobot_name_no_other_files_and_take_no_memory(bad, version, robot):
    from fbuf_adapters.datasets import lerobot_metadata

    folder = robot(version)
    edited(folder, **BAD_INFO[bad])

    def call():
        with pytest.raises(DatasetError) as told:
            lerobot_metadata(folder)
        assert str(told.value).isprintable()

    assert peak_of(call) < 2**25


def test_a_data_set_beside_this_one_is_not_read(robot, tmp_path):
    """Before, `..` was followed, and rows of another directory were loaded."""
    from fbuf_adapters.datasets import from_lerobot

    folder = robot()
    (file,) = list((folder / "data").glob("*/*.parquet"))[:1]
    secret = tmp_path / "secret.parquet"
    secret.write_bytes(file.read_bytes())
    edited(folder, data_path=os.path.relpath(secret, folder))
    with pytest.raises(DatasetError, match="leads out of the directory"):
        from_lerobot(folder)
    file.unlink()
    file.symlink_to(secret)
    edited(folder, data_path="data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet")
    with pytest.raises(DatasetError, match=r"is a link to .*secret\.parquet"):
        from_lerobot(folder)


def test_a_snapshot_in_the_cache_of_the_hub_is_read(robot, tmp_path):
    """There each file is a link to a blob."""
    from fbuf_adapters.datasets import from_lerobot

    folder = robot()
    expected = from_lerobot(folder).capacity
    cache = tmp_path / "datasets--me--mine"
    snapshot, blobs = cache / "snapshots" / "0123", cache / "blobs"
    blobs.mkdir(parents=True)
    for number, file in enumerate(sorted(p for p in folder.rglob("*") if p.is_file())):
        blob = file.rename(blobs / f"{number:064x}")
        link = snapshot / file.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    assert from_lerobot(snapshot).capacity == expected


@pytest.mark.parametrize("name", ["meta/info.json", "meta/tasks.parquet", "data"])
def test_a_pipe_in_a_data_set_of_lerobot_is_not_waited_for(name, robot):
    from fbuf_adapters.datasets import from_lerobot

    folder = robot()
    path = next((folder / "data").glob("*/*.parquet")) if name == "data" else folder / name
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(DatasetError, match="it is a pipe, and no plain file"):
        from_lerobot(folder)


def test_a_pointer_of_git_lfs_is_named(robot, tmp_path):
    """A clone without Git LFS has 130 bytes of words in place of each large file."""
    from fbuf_adapters.datasets import from_lerobot

    folder = robot()
    words = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n"
    npz = tmp_path / "rows.npz"
    npz.write_bytes(words)
    with pytest.raises(DatasetError, match=r"pointer of Git LFS, .* run git lfs pull"):
        from_npz(npz)
    for name in ("data", "meta"):
        for path in (folder / name).rglob("*.parquet"):
            path.write_bytes(words)
        with pytest.raises(DatasetError, match=r"pointer of Git LFS, .* run git lfs pull"):
            from_lerobot(folder)


@pytest.mark.parametrize(
    ("library", "names"),
    {
        "Robomimic": ["data/demo_0/actions", "mask/train"],
        "d3rlpy": ["columns", "num_episodes"],
    }.items(),
)
def test_hdf5_of_another_library_is_named(library, names, tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "rows.hdf5", "w") as file:
        for name in names:
            file[name] = np.zeros(3)
    with pytest.raises(DatasetError, match=f"looks like a file of {library}: .*from_arrays"):
        from_d4rl(tmp_path / "rows.hdf5")


def test_chunks_of_dreamer_and_zarr_are_named(tmp_path):
    path = saved(
        tmp_path / "chunk.npz",
        {"image": np.zeros(3), "is_first": np.zeros(3), "is_last": np.zeros(3)},
    )
    with pytest.raises(DatasetError, match=r"looks like a file of DreamerV3: .*from_arrays"):
        from_npz(path)
    (tmp_path / "data.zarr").mkdir()
    (tmp_path / "data.zarr" / "zarr.json").write_text("{}")
    with pytest.raises(DatasetError, match=r"looks like zarr: .*from_arrays"):
        from_npz(tmp_path / "data.zarr")


ANY = [
    *(None, True, -1, 0, 2**40, 1e300, float("nan"), "", "../x", "/etc/passwd", "\x1b[2J", "x"),
    *([], [[]], {}, {"a": 1}, "{chunk_index:09d}", "{episode_index!r}", "{video_key:>9999}"),
]


@pytest.mark.parametrize("times", [60, pytest.param(3000, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("version", ["3.0", "2.1"])
def test_any_metadata_are_read_or_refused(times, version, robot):
    """One class of error, little memory, and no path outside; the whole fuzz is in the sweep."""
    from fbuf_adapters.datasets import lerobot_metadata

    folder, rng, refused = robot(version), np.random.default_rng(times), 0
    texts = [folder / "meta" / "info.json"]
    texts += sorted((folder / "meta").glob("*.jsonl"))
    before = {path: path.read_text() for path in texts}

    def places(data, at=()):
        yield at
        if isinstance(data, dict | list):
            for key, child in data.items() if isinstance(data, dict) else enumerate(data):
                yield from places(child, (*at, key))

    def call():
        nonlocal refused
        for _ in range(times):
            path = texts[rng.integers(len(texts))]
            lines = before[path].splitlines() if path.suffix == ".jsonl" else [before[path]]
            number = int(rng.integers(len(lines)))
            data = json.loads(lines[number])
            found = list(places(data))
            *above, last = found[rng.integers(1, len(found))]
            node = data
            for key in above:
                node = node[key]
            node[last] = ANY[rng.integers(len(ANY))]
            lines[number] = json.dumps(data)
            path.write_text("\n".join(lines))
            try:
                metadata = lerobot_metadata(folder)
            except DatasetError:
                refused += 1
            else:
                videos = [path for video in metadata.videos.values() for path in video.paths]
                for named in (*metadata.data, *videos):
                    assert pathlib.Path(os.path.realpath(named)).is_relative_to(folder)
            path.write_text(before[path])

    assert peak_of(call) < 2**25
    assert 0.1 * times < refused < times
