"""The gate for files of others: plain files, inside of their directory, of sensible sizes."""

from __future__ import annotations

import os
import socket

import numpy as np
import pytest

from fbuf.checks import foreign
from fbuf.checks.foreign import Refusal, inside, opened, printable, require_json, require_size


def put(path, text="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_plain_file_is_opened_and_nothing_else(tmp_path):
    plain = put(tmp_path / "plain", "some bytes")
    with opened(plain) as file:
        assert file.read() == b"some bytes"
    assert foreign.size(plain) == 10
    assert foreign.read(plain, 10) == b"some bytes"
    with pytest.raises(Refusal, match="it has more than 9 bytes"):
        foreign.read(plain, 9)
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        found = {"pipe": "a pipe", "socket": "a socket", ".": "a directory", "/dev/zero": "device"}
        for name, said in found.items():
            for look in (opened, foreign.size):
                with pytest.raises(Refusal, match=f"{said}, and no plain file"):
                    look(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "nothing")


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(foreign, "size", lambda path: 1)
    with opened(tmp_path / "pipe") as file:
        assert not file.read()


OUTSIDE = [
    *("../x", "a/../../x", "/etc/passwd", "a//x", "./x", "", "a/", "..", "C:/x", "a\\..\\x"),
    *("a\0b", "a\nb", "\x1b[2J", "x" * 2000),
]


@pytest.mark.parametrize("name", OUTSIDE, ids=lambda name: repr(name)[:20])
def test_a_name_that_leads_out_is_refused(tmp_path, name):
    with pytest.raises(Refusal):
        inside(tmp_path, name, links=True)


def test_a_link_leads_to_its_directory_or_to_a_blob_of_the_hub(tmp_path):
    """A snapshot in the cache of the hub is links to blobs, wherever a copy of it lies."""
    hub, root = tmp_path / "hub" / "datasets--me--mine", tmp_path / "data set"
    blob = put(hub / "blobs" / ("0123456789abcdef" * 4))
    small = put(hub / "blobs" / ("0123456789" * 4))
    secret = put(tmp_path / "secret")
    inner = put(root / "meta" / "info.json")
    links = {
        "blob": (blob, True),
        "small": (small, True),
        "inner": (inner, True),
        "meta link": (inner.parent, True),
        "secret": (secret, False),
        "outside": (tmp_path, False),
        "no hash": (put(hub / "blobs" / "secret"), False),
        "no cache": (put(tmp_path / "mine" / "blobs" / blob.name), False),
        "dangling": (tmp_path / "nothing", False),
        "loop": (root / "loop", True),
    }
    for name, (target, may) in links.items():
        (root / name).symlink_to(target)
        names = [name, f"{name}/info.json"] if target.is_dir() else [name]
        for named in names:
            with pytest.raises(Refusal, match="is a link to"):
                inside(root, named, links=False)
            if may:
                assert inside(root, named, links=True) == root / named
            else:
                with pytest.raises(Refusal, match=r"is a link to .*outside of the directory"):
                    inside(root, named, links=True)
    assert inside(root, "meta/info.json", links=False) == inner
    assert inside(root, "new.json", links=False) == root / "new.json"


def test_what_declares_far_more_than_it_has_is_refused():
    require_size(2**30, 1)
    require_size(8 * 2**30, 2**26)
    with pytest.raises(Refusal, match=r"its 1\.0 MiB declare arrays of 8\.0 GiB"):
        require_size(8 * 2**30, 2**20)
    assert foreign.require_shape((3, 0, 5), 4) == 0
    assert foreign.require_shape((3, 5), 4) == 60
    for shape in ((-1, 3), (2**40, 2**40), (1,) * 40):
        with pytest.raises(Refusal, match="declares an array of"):
            foreign.require_shape(shape, 4)
    require_json(b'{"a": [1, 2]}')
    with pytest.raises(Refusal, match="more than 16,777,216 values"):
        require_json(b"[" * (2**24 + 1))


def test_what_is_printed_has_no_escape_sequences():
    assert printable("größe [3] \\ x") == "größe [3] \\ x"
    assert printable("\x1b[31mred\n\r\t\x07\x9b\u202e\ud800") == (
        r"\x1b[31mred\n\r\t\x07\x9b\u202e\ud800"
    )
    rng = np.random.default_rng(0)
    for length in range(60):
        text = "".join(map(chr, rng.integers(0, 0x3000, length)))
        assert printable(text).isprintable()
        assert printable(printable(text)) == printable(text)
