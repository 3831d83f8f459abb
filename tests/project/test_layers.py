"""The core is built in layers: imports go down, never up, and never in a circle."""

from __future__ import annotations

import ast
import graphlib
import pathlib

import pytest

import fbuf

PACKAGE = pathlib.Path(fbuf.__file__).parent
LAYERS = (
    "_versions",
    "_pytree",
    "_arrays",
    "runtime",
    "checks",
    "compat",
    "xla",
    "storage",
    "trees",
    "samplers",
    "state",
    "sharded_state",
    "views",
    "pace",
    "dispatch",
    "checkpoint",
    "ops",
    "mesh",
    "targets",
    "owner",
    "doctor",
    "_exported",
    "sharded",
    "__init__",
    "host",
    "testing",
    "adapter_api",
    "command",
    "__main__",
)
MODULES = sorted(PACKAGE.rglob("*.py"))


def name_of(path):
    return ".".join(("fbuf", *path.relative_to(PACKAGE).with_suffix("").parts))


NAMES = {name_of(path) for path in MODULES}


def imports(path):
    """The modules of the core that a module names, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import) and any(alias.name == "fbuf" for alias in node.names):
            yield "fbuf.__init__"
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "fbuf":
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield next(n for n in (whole, node.module, f"{node.module}.__init__") if n in NAMES)


def layer(module):
    return LAYERS.index(module.split(".")[1])


def folder(module):
    return module.split(".")[1]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_imports_what_lies_below_it(path):
    module = name_of(path)
    for other in imports(path):
        assert layer(other) < layer(module) or folder(other) == folder(module), (
            f"{module} imports {other}, which lies above it"
        )


def test_there_is_no_circle():
    graph = {name_of(path): set(imports(path)) - {name_of(path)} for path in MODULES}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) >= len(MODULES)


def test_every_folder_is_on_the_map():
    text = (PACKAGE / "README.md").read_text()
    for path in MODULES:
        if path.name != "__init__.py" and path.parent != PACKAGE:
            assert path.parent.name + "/" in text
        if path.parent.name in (
            "protocol",
            "index",
            "chance",
            "samplers",
            "views",
            "storage",
            "trees",
            "xla",
            "dispatch",
            "checks",
            "mesh",
        ):
            assert path.name == "__init__.py" or f"`{path.name}`" in text, path


ROOMS = ("crossing", "batches", "buffer")
"""The folders of the adapter for PyTorch: each may import those before it."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_of_pytorch_imports_none_above_it(room):
    folder = PACKAGE.parent / "adapters" / "fbuf_adapters" / "pytorch" / room
    if not folder.exists():
        pytest.skip("comes with a clone")
    text = (PACKAGE / "README.md").read_text()
    above = ROOMS[ROOMS.index(room) + 1 :]
    for path in sorted(folder.glob("_*.py")):
        words = path.read_text()
        for other in above:
            assert f"fbuf_adapters.pytorch.{other}" not in words, path.name
        assert path.name == "__init__.py" or f"`{path.name}`" in text, path.name


ADAPTERS = sorted((PACKAGE.parent / "adapters" / "fbuf_adapters").rglob("*.py"))
PUBLIC = {"fbuf", "fbuf.host", "fbuf.sharded", "fbuf.adapter_api"}


@pytest.mark.skipif(not ADAPTERS, reason="comes with a clone")
def test_adapters_import_public_names_and_those_meant_for_them():
    for path in ADAPTERS:
        for node in ast.walk(ast.parse(path.read_text())):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                named = [node.module or ""]
            for module in named:
                assert module.partition(".")[0] != "fbuf" or module in PUBLIC, (path, module)


@pytest.mark.skipif(not ADAPTERS, reason="comes with a clone")
def test_every_name_meant_for_adapters_is_used():
    import fbuf.adapter_api

    text = "".join(path.read_text() for path in ADAPTERS)
    names = [name for name in vars(fbuf.adapter_api) if not name.startswith("_")]
    assert not [name for name in names if name not in text]
