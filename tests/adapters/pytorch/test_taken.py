"""Arrays of NumPy, Python numbers and names, as users of PyTorch bring them along."""

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from fbuf_adapters.pytorch import InteropError, ReplayBuffer

import fbuf
from fbuf.host import HostStore

ROWS = {"obs": torch.zeros(6, 3), "action": torch.arange(6), "reward": torch.arange(6.0)}


def filled(**options):
    buffer = ReplayBuffer(16, batch_size=4, **options)
    buffer.extend(ROWS)
    return buffer


def test_arrays_and_numbers_are_taken():
    frozen = np.arange(6, dtype=np.float32)
    frozen.flags.writeable = False
    buffer = ReplayBuffer(16)
    buffer.extend({"obs": np.zeros((6, 3), np.float32), "action": np.arange(6), "reward": frozen})
    buffer.add({"obs": np.ones(3, np.float32), "action": 7, "reward": np.float64(0.5)})
    buffer.add({"obs": np.ones(3, np.float32), "action": np.int64(8), "reward": 1})
    assert buffer["action"].tolist() == [0, 1, 2, 3, 4, 5, 7, 8]
    assert buffer["reward"].tolist() == [0, 1, 2, 3, 4, 5, 0.5, 1]
    new = ReplayBuffer(16)
    new.add({"n": 3, "x": 0.5, "done": True})
    found = {name: leaf.dtype for name, leaf in new[:].items()}
    assert found == {"n": torch.int32, "x": torch.float32, "done": torch.bool}


def test_an_array_is_its_owners_again():
    buffer, rows = ReplayBuffer(4), np.ones(2, np.float32)
    buffer.extend({"x": rows})
    rows[:] = -1
    assert buffer["x"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"action": 2**40}, r"item\['action'\] \(torch.int64 of shape \(\)\)"),
        ({"reward": 1e300}, r"item\['reward'\] \(torch.float64 of shape \(\)\) is 64-bit"),
        ({"action": 0.5}, r"item\['action'\] must be int32, .* got float32"),
        ({"obs": np.zeros(3)}, r"item\['obs'\] \(torch.float64 of shape \(3,\)\) is 64-bit"),
        ({"obs": np.zeros(3, ">f4")}, r"item\['obs'\] \(>f4 of shape \(3,\)\) is not a tensor"),
        ({"obs": "text"}, r"item\['obs'\] \(str\) is not a tensor"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_by_name(item, message):
    buffer = filled()
    good = {"obs": torch.zeros(3), "action": 1, "reward": 0.0}
    with pytest.raises((TypeError, ValueError), match=message.replace("item", "items?")):
        buffer.add({**good, **item})
    assert len(buffer) == 6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: b.extend(ROWS, terminated=torch.zeros(6)), r"terminated .*with \.bool\(\)"),
        (lambda b: b.extend(ROWS, terminated=[True] * 6), r"extend: .*use torch\.as_tensor"),
        (
            lambda b: b.extend({**ROWS, "reward": torch.arange(6)}),
            r"ReplayBuffer\.extend: .*\.to\(torch\.float32\)",
        ),
        (
            lambda b: b.remove(b.sample().ids, mask=torch.ones(4)),
            r"ReplayBuffer\.remove: mask must be bool.*\.bool\(\)",
        ),
        (
            lambda b: b.update_priority(b.sample().ids, torch.ones(4, 1)),
            r"ReplayBuffer\.update_priority: priority must be of shape \(4,\)",
        ),
    ],
)  # fmt: skip
def test_messages_speak_torch(call, message):
    with pytest.raises((TypeError, ValueError), match=message) as told:
        call(filled(sampler=fbuf.Prioritized()))
    assert "astype" not in str(told.value)


def test_rows_by_name_by_position_and_backwards():
    buffer = filled()
    assert buffer["reward"].tolist() == [0, 1, 2, 3, 4, 5]
    assert buffer[::-1]["reward"].tolist() == [5, 4, 3, 2, 1, 0]
    assert buffer[4:1:-2]["reward"].tolist() == [4, 2]
    assert buffer[-1]["reward"] == 5
    assert buffer[9:]["reward"].tolist() == []
    for position in (6, -7):
        with pytest.raises(IndexError, match=f"position {position} .*the buffer holds 6 rows"):
            buffer[position]
    with pytest.raises(KeyError, match="called 'x'; there are 'action', 'obs', 'reward'"):
        buffer["x"]
    deep = ReplayBuffer(4)
    deep.extend({"next": {"reward": torch.ones(2)}, "x": torch.zeros(2)})
    assert deep["next", "reward"].tolist() == [1, 1]
    assert deep["next"].keys() == {"reward"}
    with pytest.raises(KeyError, match=r"called \('next', 'x'\); there are 'reward'"):
        deep["next", "x"]
    bare = ReplayBuffer(4)
    bare.extend(torch.arange(3.0))
    with pytest.raises(KeyError, match="it has no fields"):
        bare["x"]
    with pytest.raises(InteropError, match="not a tensor"):
        bare.add("x")


def test_a_load_names_what_differs_in_the_sampler(tmp_path):
    filled(sampler=fbuf.Prioritized(alpha=0.5)).save(tmp_path)
    buffer = ReplayBuffer(16, sampler=fbuf.Prioritized())
    with pytest.raises(
        ValueError, match=r"Prioritized of the checkpoint has alpha=0\.5, and .* 0\.6;"
    ):
        buffer.load(tmp_path)


@pytest.mark.parametrize("kind", [ReplayBuffer, HostStore])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("beta", r"beta cannot be set; give it to each call: sample\(beta=\.\.\.\)"),
        ("alpha", r"alpha cannot be set; give it to each call: update_priority\(alpha"),
        ("sampler", "sampler cannot be set; it is given when the buffer is made"),
    ],
)
def test_what_would_do_nothing_cannot_be_set(kind, name, message):
    buffer = kind(capacity=4, item={"x": torch.zeros(())} if kind is ReplayBuffer else {"x": 0.0})
    with pytest.raises(AttributeError, match=f"{kind.__name__}: {message}"):
        setattr(buffer, name, 1.0)
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
        getattr(buffer, name)
    buffer.of_a_user = 1
    listed = {n for n in dir(kind) if not n.startswith("_")}  # by `help`, too
    assert all(hasattr(buffer, n) for n in listed - {"state"})


def test_a_class_of_a_user_sets_what_it_has_itself():
    class Own(ReplayBuffer, torch.nn.Module):
        view = None

        def __init__(self, capacity):
            torch.nn.Module.__init__(self)
            ReplayBuffer.__init__(self, capacity)
            self.weight = torch.nn.Parameter(torch.zeros(2))

        @property
        def sampler(self):
            return self._own

        @sampler.setter
        def sampler(self, value):
            self._own = value

    own = Own(4)
    own.sampler, own.view = 1, 2
    assert (own.sampler, own.view) == (1, 2)
    assert [name for name, _ in own.named_parameters()] == ["weight"]  # of torch's own __setattr__
    with pytest.raises(AttributeError, match="capacity cannot be set"):
        own.capacity = 3


def test_of_a_buffer_of_tensordicts_beta_can_be_set():
    pytest.importorskip("tensordict")
    from fbuf_adapters.tensordict import TensorDictReplayBuffer

    buffer = TensorDictReplayBuffer(4)
    buffer.beta = 0.5
    for name in ("batch_size", "view", "capacity", "priority_key"):
        with pytest.raises(AttributeError):
            setattr(buffer, name, 1)


def test_a_number_that_a_field_cannot_hold_is_refused():
    floats = {"r": torch.tensor(0.0), "half": torch.tensor(0, dtype=torch.float16)}
    for item, numbers in (
        (None, {"r": 1e300}),
        (None, {"r": np.float64(1e300)}),
        (floats, {"r": 16777217, "half": 1.0}),
        (floats, {"r": 1.0, "half": 2049}),
    ):
        buffer = ReplayBuffer(4, item=item)
        with pytest.raises(InteropError, match="float64"):
            buffer.add(numbers)
    buffer = ReplayBuffer(4, next_of="o", item={"o": torch.tensor(0.0), "r": torch.tensor(0.0)})
    with pytest.raises(InteropError, match=r"next_observation .*float64"):
        buffer.add({"o": 1.0, "r": 0}, next_observation=1e300)
    buffer.add({"o": 1.0, "r": 0}, next_observation=2)  # an int for a float, as in an item
    assert buffer.sample(1, beta=None).data["r"].tolist() == [0]


def test_small_numbers_of_numpy_keep_their_dtypes_in_a_first_item():
    buffer = ReplayBuffer(4)
    buffer.add({"a": np.uint8(3), "b": np.float16(1), "c": np.bool_(True), "d": np.float64(2)})
    dtypes = [buffer[name].dtype for name in "abcd"]
    assert dtypes == [torch.uint8, torch.float16, torch.bool, torch.float32]


def test_arrays_with_any_strides_are_taken():
    packed = np.zeros(4, np.dtype([("flag", "u1"), ("x", "<f4")]))
    packed["x"] = range(4)
    image = np.arange(12, dtype=np.float32).reshape(3, 4)
    buffer = ReplayBuffer(4)
    buffer.add({"flipped": image[:, ::-1], "turned": image.T, "packed": packed["x"]})
    assert buffer[0]["flipped"].tolist() == image[:, ::-1].tolist()
    assert buffer[0]["turned"].tolist() == image.T.tolist()
    assert buffer[0]["packed"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("known", [False, True])
def test_a_list_of_items_of_arrays(known):
    item = {"o": torch.zeros(3), "r": torch.tensor(0.0)} if known else None
    buffer = ReplayBuffer(8, item=item, next_of="o")
    first = buffer.extend if known else lambda rows, **options: [
        buffer.add(row, next_observation=step)
        for row, step in zip(rows, options["next_observation"], strict=True)
    ]  # fmt: skip
    rows = [{"o": np.full(3, n, np.float32), "r": n} for n in (1.0, 2.0)]
    steps = [row["o"] + 1 for row in rows]
    first(rows, next_observation=steps)
    buffer.extend(rows, next_observation=steps)
    assert buffer["r"].tolist() == [1, 2, 1, 2]


def test_a_url_is_refused_when_the_buffer_is_made():
    with pytest.raises(ValueError, match=r"ReplayBuffer\.__init__: 'gs://x/y' is a URL"):
        ReplayBuffer(4, host="gs://x/y")


def test_a_tuple_of_alike_dicts_may_be_items_or_a_tree():
    rows = tuple({"o": torch.ones(3)} for _ in range(4))
    with pytest.raises(
        InteropError, match=r"items is a tuple of 4 alike.*give the buffer its item"
    ):
        ReplayBuffer(8).extend(rows)
    tree = ReplayBuffer(8, item=({"o": torch.tensor(0.0)},) * 2)
    tree.extend(({"o": torch.ones(3)}, {"o": torch.ones(3)}))
    assert len(tree) == 3
