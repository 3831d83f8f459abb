"""Data sets that LeRobot wrote, of both formats; `support/lerobot_files.py` has their numbers."""

import io
import json
import pathlib
import shutil

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("PIL")

import jax.numpy as jnp
import pyarrow as pa
import pyarrow.parquet as pq
from fbuf_adapters.datasets import DatasetError, VideoFrames, from_lerobot, lerobot_metadata
from fbuf_adapters.datasets._lerobot_columns import NumberColumn, Rows
from fbuf_adapters.datasets._lerobot_metadata import read_metadata
from support import lerobot_files as files

import fbuf
from fbuf.host import HostStore

FORMATS = ("v2.1", "v3.0")
STEPS = sum(files.LENGTHS)


@pytest.fixture
def unpacked(tmp_path):
    def of(version="v3.0"):
        folder = tmp_path / version
        shutil.unpack_archive(files.FILES / f"lerobot_{version}.zip", folder)
        return folder

    return of


def known(name, episodes=range(3)):
    """A feature of some episodes, as it was written."""
    found = np.concatenate([files.steps(episode).fields[name] for episode in episodes])
    return found[:, 0] if found.shape[1:] == (1,) else found


def field(state, name):
    rows = fbuf.rows(state).data
    for part in name.split("."):
        rows = rows[part]
    return np.asarray(rows)


def gray(frames):
    """As a decoder would return the frames of the file: each of one brightness."""
    if frames.path.stem.startswith("episode"):  # format v2.1
        episode, length = int(frames.path.stem[-6:]), 99
    else:
        episode, length = {"file-000": (0, 7), "file-001": (2, 99)}[frames.path.stem]
    later = frames.index >= length
    number = files.gray(frames.index - length * later, episode + later)
    return np.broadcast_to(number[:, None, None, None], (len(number), 4, 4, 3))


@pytest.mark.parametrize("version", FORMATS)
def test_every_number_is_there(unpacked, version):
    state = from_lerobot(unpacked(version), decode=gray)
    for name in (*files.features(), "timestamp"):
        found = field(state, name)
        if name == files.VIDEO:
            expected = known(name)[:, :4, :4]
        elif name == "timestamp":
            steps = [np.arange(length) / files.FPS for length in files.LENGTHS]
            expected = np.concatenate(steps).astype(np.float32)
        else:
            expected = known(name)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), name
        np.testing.assert_array_equal(found, expected, name)
    np.testing.assert_array_equal(field(state, "index"), np.arange(STEPS))
    episode = np.repeat(np.arange(3), files.LENGTHS)
    np.testing.assert_array_equal(field(state, "episode_index"), episode)
    steps = np.concatenate([np.arange(length) for length in files.LENGTHS])
    np.testing.assert_array_equal(field(state, "frame_index"), steps)
    assert field(state, "index").dtype == np.int32
    tasks = lerobot_metadata(unpacked(version)).tasks
    words = [tasks[number] for number in field(state, "task_index").tolist()]
    assert words == [task for n in range(3) for task in files.steps(n).tasks]
    rows = fbuf.rows(state)
    assert not np.asarray(rows.terminated).any()
    np.testing.assert_array_equal(rows.truncated, np.diff(episode, append=3) > 0)


@pytest.mark.parametrize("version", FORMATS)
@pytest.mark.parametrize("episodes", [[1], [2, 0], [1, 2, 1]])
def test_some_episodes(unpacked, version, episodes):
    state = from_lerobot(unpacked(version), episodes=episodes, decode=gray)
    chosen = sorted(set(episodes))
    for name in (files.STATE, files.IMAGE):
        np.testing.assert_array_equal(field(state, name), known(name, chosen))
    np.testing.assert_array_equal(field(state, files.VIDEO), known(files.VIDEO, chosen)[:, :4, :4])
    ends = np.cumsum([files.LENGTHS[n] for n in chosen]) - 1
    np.testing.assert_array_equal(np.flatnonzero(fbuf.rows(state).truncated), ends)


def test_no_next_observation_is_of_another_episode(unpacked):
    with pytest.warns(UserWarning, match="lacks the next observations of 3 rows that were trunc"):
        state = from_lerobot(unpacked(), next_of=files.STATE, drop=[files.IMAGE])
    batch = fbuf.read(state, fbuf.newest_ids(state, STEPS), view=fbuf.Transition())
    ends = np.cumsum(files.LENGTHS) - 1
    np.testing.assert_array_equal(np.flatnonzero(~np.asarray(batch.mask)), ends)
    observed = known(files.STATE)
    inner = np.delete(np.arange(STEPS), ends)
    np.testing.assert_array_equal(
        np.asarray(batch.data.next_observation)[inner], observed[inner + 1]
    )


def test_a_feature_says_where_episodes_terminated(unpacked):
    with pytest.warns(UserWarning, match="lacks the next observations of 3 rows that terminated"):
        state = from_lerobot(unpacked(), terminated=files.DONE, next_of="observation")
    rows = fbuf.rows(state)
    np.testing.assert_array_equal(rows.terminated, known(files.DONE))
    assert not np.asarray(rows.truncated).any()


def test_windows_are_padded_within_the_episode(unpacked):
    state = from_lerobot(unpacked())
    metadata = lerobot_metadata(unpacked())
    offsets = metadata.offsets({"action": [-0.2, 0, 0.1, 0.5], "frame_index": [-0.1, 0.3]})
    assert offsets == {"action": (-2, 0, 1, 5), "frame_index": (-1, 3)}
    view = fbuf.Window(offsets)
    data = fbuf.read(state, fbuf.newest_ids(state, STEPS), view=view).data
    actions, frames = np.asarray(data.item["action"]), np.asarray(data.item["frame_index"])
    row = 0
    for episode, length in enumerate(files.LENGTHS):
        written = files.steps(episode).fields["action"]
        for step in range(length):
            wanted = step + np.array(offsets["action"])
            np.testing.assert_array_equal(actions[row], written[np.clip(wanted, 0, length - 1)])
            np.testing.assert_array_equal(
                data.valid["action"][row], (wanted >= 0) & (wanted < length)
            )
            assert frames[row].tolist() == [max(step - 1, 0), min(step + 3, length - 1)]
            row += 1
    # The frames of these windows, from their files.
    episodes = np.repeat(np.asarray(data.item["episode_index"]), 2)
    brightness = np.full(2 * STEPS, -1)
    for places, found in metadata.video_frames(files.VIDEO, episodes, frames.ravel()):
        assert (np.diff(found.index) >= 0).all()
        np.testing.assert_allclose(found.timestamp, found.index / files.FPS)
        brightness[places] = gray(found)[:, 0, 0, 0]
    np.testing.assert_array_equal(brightness, files.gray(frames.ravel(), episodes))


def test_offsets_between_two_steps_are_refused(unpacked):
    metadata = lerobot_metadata(unpacked())
    assert metadata.offsets({"action": [0.10009, 0.09991]}) == {"action": (1, 1)}
    with pytest.raises(ValueError, match=r"'action' has 0.15, which lies between two steps"):
        metadata.offsets({"action": [0, 0.15]})
    with pytest.raises(ValueError, match="offsets: there is no feature 'actoin'; there are"):
        metadata.offsets({"actoin": [0]})


def test_a_single_time_is_refused(unpacked):
    with pytest.raises(TypeError, match=r"'action' must have a sequence of seconds, such as \[0.1"):
        lerobot_metadata(unpacked()).offsets({"action": 0.1})


def test_frames_that_are_not_there_are_refused(unpacked):
    metadata = lerobot_metadata(unpacked())
    for episode, frame in ((3, 0), (-1, 0), (1, 4), (1, -1)):
        with pytest.raises(ValueError, match=f"no frame {frame} of episode {episode}"):
            list(metadata.video_frames(files.VIDEO, [0, episode], [0, frame]))
    with pytest.raises(ValueError, match=r"no video of the data set; there are observation\.top"):
        list(metadata.video_frames(files.IMAGE, [0], [0]))


def test_a_decoder_is_asked_for_each_file_in_its_order(unpacked):
    asked = []

    def decode(frames):
        asked.append((frames.path.name, frames.index.tolist()))
        assert isinstance(frames, VideoFrames)
        assert frames.key == files.VIDEO
        assert frames.path.exists()
        return gray(frames)

    from_lerobot(unpacked(), decode=decode)
    assert asked[0] == ("file-000.mp4", [0])  # to see the shape
    assert asked[1:] == [("file-000.mp4", [*range(11)]), ("file-001.mp4", [*range(9)])]


@pytest.mark.parametrize(
    ("decoded", "said"),
    [
        (lambda f: gray(f)[1:] if len(f.index) > 1 else gray(f), r"asked for 11 frames.*\(10, 4"),
        (lambda f: np.float32(gray(f)) if len(f.index) > 1 else gray(f), "float32"),
        (lambda f: gray(f)[:, : len(f.index)], "frames of uint8"),
    ],
)
def test_frames_of_another_form_are_refused(unpacked, decoded, said):
    with pytest.raises(DatasetError, match=said):
        from_lerobot(unpacked(), decode=decoded)


def test_tensors_are_refused_and_so_is_no_function(unpacked):
    torch = pytest.importorskip("torch")
    with pytest.raises(DatasetError, match=r"is a torch tensor; give .*numpy"):
        from_lerobot(unpacked(), decode=lambda f: torch.tensor(gray(f).copy()))
    with pytest.raises(TypeError, match="decode must be a function of VideoFrames"):
        from_lerobot(unpacked(), decode="pyav")


def test_into_a_buffer_and_into_a_store(unpacked):
    item = {"observation": {"state": jnp.zeros(3)}, "action": jnp.zeros(2), "index": jnp.int32(0)}
    for target in (fbuf.init(item, 64), HostStore(item, 64)):
        loaded = from_lerobot(unpacked(), target)
        rows = loaded.rows() if isinstance(loaded, HostStore) else fbuf.rows(loaded)
        found = np.asarray(rows.data["observation"]["state"])[np.asarray(rows.mask)]
        np.testing.assert_array_equal(found, known(files.STATE))


# --- files that something happened to ------------------------------------------------------------


def rewrite(file, change, **options):
    table = change(pq.read_table(file))
    pq.write_table(table, file, **options)


def with_column(table, name, values):
    return table.set_column(table.column_names.index(name), name, values)


def first(folder):
    return sorted((folder / "data").glob("*/*.parquet"))[0]


@pytest.mark.parametrize("size", [1, 3, 64])
def test_any_part_of_any_file(unpacked, size):
    """Row groups of other sizes than episodes have, as pandas writes them."""
    folder = unpacked()
    for file in (folder / "data").glob("*/*.parquet"):
        rewrite(file, lambda table: table, row_group_size=size)
    metadata = read_metadata("test", folder)
    for episodes in ([0, 1, 2], [0, 2], [1]):
        rows = Rows("test", metadata, episodes)
        column, expected = NumberColumn(rows, files.GRID, (2, 3)), known(files.GRID, episodes)
        for start in range(len(expected)):
            for stop in range(start + 1, len(expected) + 1):
                np.testing.assert_array_equal(column[start:stop], expected[start:stop])


@pytest.mark.parametrize("version", FORMATS)
def test_another_number_of_steps_than_the_metadata_say(unpacked, version):
    folder = unpacked(version)
    rewrite(first(folder), lambda table: table.slice(1))
    with pytest.raises(DatasetError, match=r"say that episode 0 has 7 steps.*have 6"):
        from_lerobot(folder)
    np.testing.assert_array_equal(
        field(from_lerobot(folder, episodes=[1]), files.STATE), known(files.STATE, [1])
    )


@pytest.mark.parametrize("length", [6, 8])
def test_metadata_that_say_another_number_of_steps(unpacked, length):
    folder = unpacked("v2.1")
    file = folder / "meta/episodes.jsonl"
    file.write_text(file.read_text().replace('"length": 7', f'"length": {length}'))
    with pytest.raises(DatasetError, match=f"say that episode 0 has {length} steps.*have 7"):
        from_lerobot(folder)


def test_old_files_in_several_chunks(unpacked):
    folder = unpacked("v2.1")
    info = folder / "meta/info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "chunks_size": 2}))
    for kind in ("data", "videos"):
        for file in (folder / kind).rglob("episode_000002.*"):
            to = pathlib.Path(str(file).replace("chunk-000", "chunk-001"))
            to.parent.mkdir(parents=True)
            file.rename(to)
    asked = []
    state = from_lerobot(folder, decode=lambda frames: asked.append(frames.path) or gray(frames))
    assert all(path.exists() for path in asked)
    np.testing.assert_array_equal(field(state, files.STATE), known(files.STATE))


def test_steps_in_another_order(unpacked):
    folder = unpacked()
    rewrite(first(folder), lambda table: table.take([0, 2, 1, *range(3, 11)]))
    with pytest.raises(DatasetError, match="episode 0, frame 2 stands where frame 1 should"):
        from_lerobot(folder)


@pytest.mark.parametrize("episodes", [None, [2], [0, 2]])
def test_metadata_that_name_the_file_before(unpacked, episodes):
    """As a converter of LeRobot 0.4.0 wrote them; the rows tell their episodes themselves."""
    folder = unpacked()
    for file in (folder / "meta/episodes").glob("*/*.parquet"):
        stale = lambda t: with_column(t, "data/file_index", pa.array([0] * len(t)))
        rewrite(file, stale)
    other = first(folder).with_name("file-001.parquet")
    for file in sorted((folder / "meta/episodes").glob("*/*.parquet"))[-1:]:
        # Another episode behind it, in the file that the metadata do not name for it.
        last = pq.read_table(file).to_pylist()[0]
        added = {**last, "episode_index": 3, "data/file_index": 1, "length": 1}
        pq.write_table(pa.Table.from_pylist([last, added], pq.read_schema(file)), file)
    counted = pa.array([2] * 9 + [3]), pa.array([*range(9), 0])
    rewrite(other, lambda t: with_column(with_column(
        pa.concat_tables([t, t.slice(0, 1)]), "episode_index", counted[0]),
        "frame_index", counted[1]))  # fmt: skip
    state = from_lerobot(folder, episodes=[0, 1, 2, 3] if episodes is None else episodes)
    chosen = [0, 1, 2] if episodes is None else episodes
    found = field(state, files.STATE)[: sum(files.LENGTHS[n] for n in chosen)]
    np.testing.assert_array_equal(found, known(files.STATE, chosen))


def test_a_part_of_the_files_is_enough_for_a_part_of_the_episodes(unpacked):
    folder = unpacked()
    first(folder).with_name("file-001.parquet").unlink()
    state = from_lerobot(folder, episodes=[0, 1])
    np.testing.assert_array_equal(field(state, files.STATE), known(files.STATE, [0, 1]))


def test_times_that_say_something_else_than_steps(unpacked):
    folder = unpacked()
    times = pq.read_table(first(folder))["timestamp"].to_numpy()
    shaken = lambda by: pa.array((times + np.float32(by)).astype(np.float32))
    rewrite(first(folder), lambda t: with_column(t, "timestamp", shaken(0.04)))
    from_lerobot(folder)
    later = np.where(np.arange(11) >= 9, 0.1, 0)  # a frame was lost before frame 2 of episode 1
    rewrite(first(folder), lambda t: with_column(t, "timestamp", shaken(later)))
    with pytest.warns(UserWarning, match=r"timestamps of 2 rows, first of episode 1, frame 2"):
        state = from_lerobot(folder)
    np.testing.assert_array_equal(field(state, files.STATE), known(files.STATE))


def test_missing_damaged_and_foreign_files(unpacked):
    folder = unpacked()
    first(folder).write_bytes(first(folder).read_bytes()[:-9])
    with pytest.raises(DatasetError, match="cut off, damaged, or no parquet"):
        from_lerobot(folder)
    first(folder).unlink()
    with pytest.raises(DatasetError, match="is missing, which the metadata name"):
        from_lerobot(folder)
    with pytest.raises(FileNotFoundError, match=r"no meta/info.json; to get one from the hub"):
        from_lerobot("lerobot/pusht")
    info = folder / "meta/info.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "codebase_version": "v1.6"}))
    with pytest.raises(DatasetError, match=r"format v1.6, and v2.1 and v3.0 are read"):
        from_lerobot(folder)


def test_metadata_that_lack_an_episode(unpacked):
    folder = unpacked("v2.1")
    file = folder / "meta/episodes.jsonl"
    file.write_text("".join(file.read_text().splitlines(True)[1:]))
    with pytest.raises(DatasetError, match=r"have the episodes \[1, 2\], and they must count"):
        from_lerobot(folder)
    file.write_text('{"episode_index": 0}')
    with pytest.raises(DatasetError, match="no metadata of LeRobot"):
        from_lerobot(folder)


def test_values_that_are_missing_or_ragged(unpacked):
    folder = unpacked()
    state = pq.read_table(first(folder))[files.STATE].to_pylist()
    for wrong in ([*state[:3], None, *state[4:]], [*state[:3], [0.0], [0.0] * 5, *state[5:]],
                  [[None, 0.0, 0.0], *state[1:]]):  # fmt: skip
        column = pa.array(wrong, pa.list_(pa.float32()))
        rewrite(first(folder), lambda t, c=column: with_column(t, files.STATE, c))
        with pytest.raises(DatasetError, match=r"observation.state is not of shape \(3,\)"):
            from_lerobot(folder)


def test_numbers_of_rows_that_int32_cannot_hold(unpacked):
    folder = unpacked()
    large = pa.array(2**31 + np.arange(11), pa.int64())
    rewrite(first(folder), lambda table: with_column(table, "index", large))
    with pytest.raises(DatasetError, match="index holds 2147483648, which int32 cannot hold"):
        from_lerobot(folder)


def test_a_feature_that_the_file_lacks(unpacked):
    folder = unpacked()
    rewrite(first(folder), lambda table: table.drop_columns([files.GRID]))
    with pytest.raises(DatasetError, match=r"has no column 'observation\.grid'"):
        from_lerobot(folder)


def test_images_that_are_damaged_or_of_another_size(unpacked):
    folder = unpacked()
    images = pq.read_table(first(folder))[files.IMAGE]
    struct = images.to_pylist()
    other = {"bytes": struct[4]["bytes"][:30], "path": None}
    wrong_ones = {
        "cannot be read": other,
        "not in the parquet": {"bytes": None, "path": "a.png"},
        r"uint8 \(8, 6, 1\), and the first": _png(np.zeros((8, 6), np.uint8)),
    }
    for said, wrong in wrong_ones.items():
        column = pa.array([*struct[:4], wrong, *struct[5:]], images.type)
        rewrite(first(folder), lambda t, c=column: with_column(t, files.IMAGE, c))
        with pytest.raises(DatasetError, match=f"episode 0, frame 4: the image.*{said}"):
            from_lerobot(folder)


def _png(pixels):
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def test_words_are_left_out(unpacked):
    folder = unpacked()
    info = folder / "meta/info.json"
    text = json.loads(info.read_text())
    text["features"]["language"] = {"dtype": "string", "shape": [1], "names": None}
    info.write_text(json.dumps(text))
    for file in (folder / "data").glob("*/*.parquet"):
        rewrite(file, lambda t: t.append_column("language", pa.array(["push"] * len(t))))
    with pytest.raises(DatasetError, match="language is object, which cannot be stored; leave"):
        from_lerobot(folder)
    state = from_lerobot(folder, drop=["language", files.VIDEO])  # which is left out in any case
    assert int(fbuf.size(state)) == STEPS


def test_arguments_that_are_wrong(unpacked):
    folder = unpacked()
    errors = {TypeError: (3, "01", ["0"], [0.0]), ValueError: ([3], [-1])}
    for episodes, error in [(given, error) for error, many in errors.items() for given in many]:
        with pytest.raises(error, match="episodes must be"):
            from_lerobot(folder, episodes=episodes)
    with pytest.raises(DatasetError, match="the data set has no rows"):
        from_lerobot(folder, episodes=[])
    with pytest.raises(DatasetError, match="terminated is 'done', which no feature is called"):
        from_lerobot(folder, terminated="done")
