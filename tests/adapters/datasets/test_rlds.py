"""Episodes in the form of RLDS; where TensorFlow Datasets is installed, those that it wrote."""

import importlib.util
import sys

import numpy as np
import pytest
from fbuf_adapters.datasets import DatasetError, from_rlds

import fbuf

LENGTHS = (4, 1, 2, 6)  # steps, with the last one


def step(number, last, terminal):
    return {
        "observation": {
            "state": np.float32([number, -number]),
            "eye": np.uint8([[number % 256] * 3]),
        },
        "action": np.float32([number / 7]),
        "reward": np.float32(number),
        "is_first": False,
        "is_last": last,
        "is_terminal": terminal,
    }


def episodes(lengths=LENGTHS):
    """Every second episode terminates; no two steps are alike."""
    made, first = [], 0
    for number, length in enumerate(lengths):
        last = lambda n, length=length: n == length - 1
        steps = [step(first + n, last(n), last(n) and number % 2 == 0) for n in range(length)]
        made.append({"steps": steps, "episode_id": number})
        first += length
    return made


def assert_holds(state, lengths=LENGTHS):
    size = int(fbuf.size(state))
    batch = fbuf.read(state, fbuf.newest_ids(state, size), view=fbuf.Transition())
    first = np.cumsum([0, *lengths[:-1]])
    rows = [n + np.arange(length - 1) for n, length in zip(first, lengths, strict=True)]
    row = np.concatenate(rows)
    state_of = lambda number: np.stack([number, -number], -1).astype(np.float32)
    np.testing.assert_array_equal(batch.data.item["observation"]["state"], state_of(row))
    np.testing.assert_array_equal(batch.data.next_observation["state"], state_of(row + 1))
    np.testing.assert_array_equal(batch.data.item["observation"]["eye"][:, 0, 0], row % 256)
    np.testing.assert_array_equal(batch.data.item["action"][:, 0], np.float32(row / 7))
    np.testing.assert_array_equal(batch.data.item["reward"], row)
    assert np.asarray(batch.mask).all()
    ends = np.concatenate([np.arange(length - 1) == length - 2 for length in lengths])
    terminal = np.repeat(np.arange(len(lengths)) % 2 == 0, np.array(lengths) - 1)
    np.testing.assert_array_equal(batch.terminated, ends & terminal)
    np.testing.assert_array_equal(batch.truncated, ends & ~terminal)


@pytest.mark.parametrize("lengths", [LENGTHS, (1, 3), (40, 1, 700)])
def test_last_steps_are_next_observations_alone(lengths):
    assert_holds(from_rlds(episodes(lengths), next_of="observation"), lengths)


def test_episodes_that_are_refused():
    steps = episodes((3, 3))
    steps[1]["steps"][0] |= {"is_last": True}
    with pytest.raises(DatasetError, match="episode 1: step 0 of 3 is_last"):
        from_rlds(steps)
    steps = episodes((3, 3))
    del steps[1]["steps"][2]["action"]
    with pytest.raises(DatasetError, match="episode 1: step 2 has no 'action'"):
        from_rlds(steps)
    for places, said in (([1], "the shapes"), ([0, 1, 2], r"shape \(2,\)")):
        steps = episodes((3, 3))
        for place in places:
            steps[1]["steps"][place]["action"] = np.zeros(2, np.float32)
        with pytest.raises(DatasetError, match=f"episode 1: action has {said}"):
            from_rlds(steps)
    with pytest.raises(TypeError, match=r"builder.as_data_source\('train'\).*got generator"):
        from_rlds(one for one in steps)
    with pytest.raises(TypeError, match=r"must be a sequence, such as .* got str"):
        from_rlds("robot/1.0.0")
    with pytest.raises(TypeError, match="episode 0 must be a dict with 'steps', got int"):
        from_rlds([3])
    with pytest.raises(DatasetError, match="the data set has no rows"):
        from_rlds(episodes((1, 1)))


def test_words_are_left_out():
    made = episodes()
    for episode in made:
        for one in episode["steps"]:
            one["language_instruction"] = b"push"
    with pytest.raises(DatasetError, match=r"language_instruction is .* which cannot be stored"):
        from_rlds(made)
    assert_holds(from_rlds(made, next_of="observation", drop=["language_instruction"]))


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_datasets") is None, reason="needs tensorflow-datasets"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_tensorflow_datasets_wrote(tmp_path, monkeypatch):
    """Without TensorFlow: the files are array_record."""
    import tensorflow_datasets as tfds

    features = {
        "observation": {
            "state": tfds.features.Tensor(shape=(2,), dtype=np.float32),
            "eye": tfds.features.Tensor(shape=(1, 3), dtype=np.uint8),
        },
        "action": tfds.features.Tensor(shape=(1,), dtype=np.float32),
        "reward": np.float32,
        **dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_),
    }

    class Walks(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        @classmethod
        def get_metadata(cls):
            return tfds.core.dataset_metadata.DatasetMetadata(
                description=None, citation=None, tags=None
            )

        def _info(self):
            of = {"steps": tfds.features.Dataset(features), "episode_id": np.int64}
            return tfds.core.DatasetInfo(
                builder=self, features=tfds.features.FeaturesDict(of), disable_shuffling=True
            )

        def _split_generators(self, manager):
            return {"train": self._generate_examples()}

        def _generate_examples(self):
            yield from enumerate(episodes())

    Walks(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    source = tfds.builder_from_directory(tmp_path / "walks" / "1.0.0").as_data_source("train")
    state = from_rlds(source, next_of="observation")
    assert "tensorflow" not in sys.modules
    assert_holds(state)
