"""Items of LeRobot's own class beside `fbuf.Window`; needs LeRobot, see `lerobot_files.py`.

make lerobot
"""

import functools

import numpy as np
import pytest

pytest.importorskip("lerobot")

from fbuf_adapters.datasets import from_lerobot, lerobot_metadata
from support import lerobot_files as files

import fbuf

DELTAS = {
    files.STATE: [-0.3, 0.0],
    files.ACTION: [step / files.FPS for step in range(16)],
    files.REWARD: [0.5, -0.2, 0.0, -2.0],
    files.GRID: [0.1],
    files.DONE: [-0.1, 0.0, 0.1],
    files.IMAGE: [-0.2, 0.0, 0.4],
    "timestamp": [-0.1, 0.0],
}


@pytest.fixture(scope="module", params=[(20, 4, 30), (40, 2, 3, 16, 17)], ids=str)
def folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "steps"
    files.write(folder, request.param)
    return folder


def opened(folder, **options):
    return files.import_lerobot()("fbuf/steps", folder, **options)


def leaf(item, name):
    for part in name.split("."):
        item = item[part]
    return item


def as_theirs(name, value):
    """Images are floats, with the channels first, in LeRobot's items."""
    if name != files.IMAGE:
        return value
    return np.moveaxis(np.float32(value) / np.float32(255), -1, -3)


@pytest.mark.parametrize("episodes", [None, [0, 2]])
@pytest.mark.parametrize(
    "deltas", [DELTAS, {files.ACTION: [0.0]}, None], ids=["many", "one", "none"]
)
def test_every_item_is_theirs(folder, deltas, episodes):
    # Videos need another package to be decoded; a data set without them has them left out.
    theirs = _without_videos(opened(folder, delta_timestamps=deltas, episodes=episodes))
    state = from_lerobot(folder, episodes=episodes)
    metadata = lerobot_metadata(folder)
    count = int(fbuf.size(state))
    assert count == len(theirs)
    view = fbuf.Window(metadata.offsets(deltas)) if deltas else fbuf.Item()
    data = fbuf.read(state, fbuf.newest_ids(state, count), view=view).data
    item, valid = (data.item, data.valid) if deltas else (data, {})
    for row in range(count):
        wanted = theirs[row]
        words = wanted.pop("task")
        assert words == metadata.tasks[int(item["task_index"][row])]
        for name, value in wanted.items():
            value = np.asarray(value)
            if name.endswith("_is_pad"):
                ours = ~np.asarray(valid[name.removesuffix("_is_pad")][row])
            else:
                ours = as_theirs(name, np.asarray(leaf(item, name)[row]))
            np.testing.assert_array_equal(ours, value, f"{name} of row {row}")
            assert ours.shape == value.shape
            if value.dtype != np.int64:  # of counters, which are int32 here
                assert ours.dtype == value.dtype
        assert {name for name in wanted if name.endswith("_is_pad")} == {
            f"{name}_is_pad" for name in valid
        }


def _without_videos(dataset):
    for name in dataset.meta.video_keys:
        del dataset.meta.info["features"][name]
    return dataset


def test_frames_of_videos_are_where_the_metadata_say(folder):
    """Also in a file of several episodes, as LeRobot joins them."""
    av = pytest.importorskip("av")

    @functools.lru_cache(None)
    def brightness(path):
        with av.open(str(path)) as file:
            found = [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]
        return np.stack(found).mean((1, 2, 3))

    def decode(frames):
        found = np.rint(brightness(frames.path)[frames.index]).astype(np.uint8)
        return found[:, None]

    state = from_lerobot(folder, decode=decode)
    rows = fbuf.rows(state).data
    found = np.asarray(leaf(rows, files.VIDEO))[:, 0].astype(int)
    expected = files.gray(rows["frame_index"], rows["episode_index"]).astype(int)
    np.testing.assert_allclose(found, expected, atol=4)
