"""A pytest plugin: the tests of a peer run with fbuf's class in place of the peer's own."""

import importlib
import os

import pytest

SUITE = "FBUF_PEER"  # the environment variable that names the module of the suite


def pytest_configure(config: pytest.Config) -> None:
    """Replace the peer's classes before any test imports them."""
    importlib.import_module(f"tests.peers.{os.environ[SUITE]}").replace()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Expect the known tests to fail, each for its reason. One that passes is an error."""
    known = importlib.import_module(f"tests.peers.{os.environ[SUITE]}").KNOWN
    names = {_name(item) for item in items}
    # A name stands for one case, or without brackets for all cases of a test.
    unknown = [name for name in known if not any(_is(test, name) for test in names)]
    if unknown:
        raise pytest.UsageError(f"no test has this name: {', '.join(unknown)}")
    for item in items:
        for name, reason in known.items():
            if _is(_name(item), name):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


def _name(item: pytest.Item) -> str:
    """Return the name with its file. The id has no path if the file lies outside of the root."""
    return f"{item.path.name}::{item.nodeid.partition('::')[2]}"


def _is(test: str, name: str) -> bool:
    return test == name or test.partition("[")[0] == name
