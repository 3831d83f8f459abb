"""Data sets that LeRobot itself writes, whose every number is known.

    python tests/support/lerobot_files.py    writes one, of the format of this LeRobot

`lerobot_v3.0.zip` beside the tests of data sets is of LeRobot 0.4.4, `lerobot_v2.1.zip` of 0.3.3.
LeRobot is imported only where a data set is written.
"""

import dataclasses
import importlib
import json
import pathlib
import shutil
import sys
import tempfile
import warnings

import numpy as np

FILES = pathlib.Path(__file__).parents[1] / "adapters" / "datasets" / "files"
FPS = 10
TASKS = ("push the block", "lift the block")
LENGTHS = (7, 4, 9)
STATE, ACTION, IMAGE, VIDEO = "observation.state", "action", "observation.eye", "observation.top"
REWARD, DONE, GRID = "next.reward", "next.done", "observation.grid"
PIXELS = (64, 64)


@dataclasses.dataclass(frozen=True)
class Steps:
    """The steps of an episode, `[n, ...]`, by feature; and the task of each."""

    fields: dict
    tasks: list


def steps(episode, lengths=LENGTHS):
    """Return the steps of an episode; no two have the same numbers."""
    number = sum(lengths[:episode]) + np.arange(lengths[episode])
    random = np.random.default_rng(episode)
    return Steps(
        {
            STATE: np.stack([number, -number, number / 7], -1).astype(np.float32),
            ACTION: np.stack([number / 3, 5 - number], -1).astype(np.float32),
            GRID: (number[:, None, None] + np.arange(6).reshape(2, 3)).astype(np.float32),
            REWARD: (number / 9).astype(np.float32)[:, None],
            DONE: (np.arange(len(number)) == len(number) - 1)[:, None],
            IMAGE: random.integers(0, 256, (len(number), 8, 6, 3)).astype(np.uint8),
            VIDEO: np.broadcast_to(
                gray(np.arange(len(number)), episode)[:, None, None, None],
                (len(number), *PIXELS, 3),
            ),
        },
        [TASKS[(episode + step) % 2] for step in range(len(number))],
    )


def gray(frame, episode):
    """Return the brightness of a frame of a video: no codec confuses two of them."""
    return (20 * (np.asarray(frame) + 3 * np.asarray(episode)) % 240).astype(np.uint8)


def features(pictures=True):
    """Return the features as LeRobot wants them described."""
    of = lambda dtype, *shape: {"dtype": dtype, "shape": shape, "names": None}
    colours = ["height", "width", "channels"]
    found = {
        STATE: of("float32", 3),
        ACTION: of("float32", 2),
        GRID: of("float32", 2, 3),
        REWARD: of("float32", 1),
        DONE: of("bool", 1),
    }
    if pictures:
        found[IMAGE] = {"dtype": "image", "shape": (8, 6, 3), "names": colours}
        found[VIDEO] = {"dtype": "video", "shape": (*PIXELS, 3), "names": colours}
    return found


def import_lerobot():
    """Return LeRobot's class of data sets; also where torchvision lacks its compiled part."""
    import torch

    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        # It declares these two whether it can compute them or not; LeRobot asks for neither.
        for name in [name for name in sys.modules if name.startswith("torchvision")]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float threshold) -> Tensor")
        import_lerobot.library = library  # it lasts as long as it is referred to
    return importlib.import_module("lerobot.datasets.lerobot_dataset").LeRobotDataset


def write(folder, lengths=LENGTHS, pictures=True):
    """Write a data set with LeRobot; with format v3.0 the last episode has files of its own."""
    dataset_class = import_lerobot()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of NumPy, about LeRobot
        return _written(dataset_class, folder, lengths, pictures)


def _written(dataset_class, folder, lengths, pictures):
    dataset = dataset_class.create("fbuf/steps", FPS, features(pictures), root=folder)
    new = hasattr(dataset, "finalize")
    for episode in range(len(lengths)):
        if new and episode == len(lengths) - 1:
            dataset.finalize()
            tiny = {"data_files_size_in_mb": 1e-9, "video_files_size_in_mb": 1e-9}
            dataset.meta.update_chunk_settings(**tiny)
        made = steps(episode, lengths)
        for row, task in enumerate(made.tasks):
            frame = {name: made.fields[name][row] for name in features(pictures)}
            if new:
                dataset.add_frame({**frame, "task": task})
            else:
                dataset.add_frame(frame, task)
        dataset.save_episode()
    if new:
        dataset.finalize()
    return dataset


def main():
    """Write the data set as a zip file beside the tests."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder) / "made"
        write(root)
        shutil.rmtree(root / "images", ignore_errors=True)  # LeRobot leaves its own copies there
        version = json.loads((root / "meta/info.json").read_text())["codebase_version"]
        shutil.make_archive(str(FILES / f"lerobot_{version}"), "zip", root)


if __name__ == "__main__":
    main()
