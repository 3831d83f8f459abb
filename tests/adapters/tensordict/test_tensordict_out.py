"""`sample(out=batch)` of TensorDicts: every key is written where it lies, or none is."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
tensordict = pytest.importorskip("tensordict")

from fbuf_adapters.pytorch import InteropError  # noqa: E402 (after the skip)
from fbuf_adapters.tensordict import TensorDictReplayBuffer  # noqa: E402 (after the skip)
from tensordict import LazyStackedTensorDict, TensorDict  # noqa: E402 (after the skip)

import fbuf  # noqa: E402 (after the skip)

B = 8


def rows(count: int = 30) -> Any:
    number = torch.arange(count)
    next_rows = {"observation": number.double()[:, None] + 1, "done": (number % 10 == 9)[:, None]}
    data = {"observation": number.double()[:, None], "action": number, "next": next_rows}
    data |= {"agents": {"value": torch.arange(2 * count).reshape(count, 2).float()}}
    made = TensorDict(data, batch_size=[count])
    made["agents"].batch_size = [count, 2]
    return made


def make(**options: Any) -> TensorDictReplayBuffer:
    rb = TensorDictReplayBuffer(40, **{"batch_size": B, "seed": 1} | options)
    rb.extend(rows())
    return rb


def said(batch: Any) -> dict[Any, Any]:
    return {key: (x.dtype, x.tolist()) for key, x in batch.items(True, True)}


def places(batch: Any) -> dict[Any, Any]:
    return {key: (id(x), x.data_ptr()) for key, x in batch.items(True, True)}


def doubled(batch: Any) -> Any:
    return batch.set("double", batch["observation"] * 2)


SLICES = {"sampler": fbuf.Uniform(window=2), "view": fbuf.Sequence(2)}
FORMS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "priorities, prefetch": {"sampler": fbuf.Prioritized(), "prefetch": 2},
    "transform": {"transform": doubled},
    "slices": SLICES,
    "nested slices": SLICES | {"slices": "nested"},
    "host": {"host": True},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_same_batches_in_the_same_tensors(form):
    one, other = make(**FORMS[form]), make(**FORMS[form])
    out, _ = one.sample(), other.sample()
    where = places(out)
    for number in range(4):
        if number % 2:
            new, info = one.sample(return_info=True, out=out)
            assert all(info[key] is out[key] for key in info)
        else:
            new = one.sample(out=out)
        expected = other.sample()
        assert new is out
        assert places(out) == where
        assert said(out) == said(expected)
        if form.startswith("priorities"):
            for rb, batch in ((one, out), (other, expected)):
                learned = batch.copy().set("td_error", batch["action"] + 1.0)
                rb.update_tensordict_priority(learned)
            assert one.stats() == other.stats()
    one.close()
    other.close()


def lazily(batch: Any) -> Any:
    return LazyStackedTensorDict(*batch.unbind(0), stack_dim=0)


def with_key(batch: Any) -> Any:
    return batch.copy().set("td_error", torch.zeros(B))


def other_size(batch: Any) -> Any:
    made = batch.copy()
    made["agents"] = batch["agents"].clone()
    made["agents"].batch_size = [B]
    return made


REFUSED = {
    "a key more": (with_key, r"out\['td_error'\] is there, .* a copy"),
    "a key less": (
        lambda batch: batch.exclude(("next", "done")),
        r"out\['next'\]\['done'\] is not",
    ),
    "short": (lambda batch: batch[:4].clone(), r"out has the batch size \[4\]"),
    "inner size": (other_size, r"out\['agents'\] has the batch size \[8\], .* \[8, 2\]"),
    "a dict": (
        lambda batch: batch.to_dict(),
        "out is dict, and that of the new batch is TensorDict",
    ),
    "dtype": (
        lambda batch: batch.copy().set("action", batch["action"].int()),
        r"out\['action'\] is torch.int32",
    ),
    "views": (lambda batch: batch.expand(1, B)[0], "shares|several|batch"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_written_if_something_does_not_fit(name):
    change, message = REFUSED[name]
    rb = make()
    first = rb.sample()
    before = said(first)
    if name == "views":
        rb.sample(out=change(first))  # other containers of the same tensors
        assert said(first) != before
        return
    begins = "fbuf_adapters.tensordict.TensorDictReplayBuffer.sample"
    with pytest.raises(InteropError, match=rf"^{begins}: {message}"):
        rb.sample(out=change(first))
    assert said(first) == before


def test_a_stack_that_is_made_when_it_is_read():
    rb = make(transform=lambda batch: lazily(batch))
    out = rb.sample()
    with pytest.raises(InteropError, match="makes its tensors anew whenever they are read"):
        rb.sample(out=out)


def test_locked_and_shared():
    rb, other = make(), make()
    out = rb.sample().lock_()
    other.sample()
    assert said(rb.sample(out=out)) == said(other.sample())
    shared = rb.sample().share_memory_()
    other.sample()
    assert said(rb.sample(out=shared)) == said(other.sample())


def test_a_short_batch_does_not_fit():
    rb = make(sampler=fbuf.Shuffled())
    out = rb.sample()
    rb.sample(out=out)
    rb.sample(out=out)
    before = said(out)
    with pytest.raises(InteropError, match=r"out has the batch size \[8\], .* \[6\]"):
        rb.sample(out=out)
    assert said(out) == before
