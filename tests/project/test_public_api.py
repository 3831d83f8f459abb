"""The public names: documented, in one order of arguments, and light to import."""

from __future__ import annotations

import abc
import ast
import dataclasses
import enum
import importlib.util
import inspect
import pathlib
import pydoc
import re
import subprocess
import sys
from types import ModuleType

import pytest

import fbuf

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ROOT / "docs" / "look_up"
HEAVY = ("torch", "gymnax", "gymnasium", "optax", "flax")


def api_table() -> ModuleType:
    """The script that writes the two pages of names."""
    found = importlib.util.spec_from_file_location("api_table", ROOT / "docs" / "api_table.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", fbuf.__all__)
def test_every_name_is_documented_with_an_example(name):
    assert "Examples:" in inspect.getdoc(getattr(fbuf, name))


@pytest.mark.parametrize("name", fbuf.sharded.__all__)
def test_every_name_over_a_mesh_is_documented(name):
    here, plain = getattr(fbuf.sharded, name), getattr(fbuf, name, None)
    text = inspect.getdoc(here)
    assert "Examples:" in text or name.startswith("Sharded")
    if here is plain:
        assert "\nOver a mesh: " in text
    elif inspect.isfunction(plain) and name != "load":
        plain = inspect.signature(plain).parameters
        own = inspect.signature(here).parameters
        assert [p for p in own if p in plain] == [p for p in plain if p in own]
        assert set(own) - set(plain) <= {"mesh", "axis", "shards", "state"}


@pytest.mark.parametrize("name", fbuf.targets.__all__)
def test_every_name_of_targets_is_documented_with_an_example(name):
    assert "Examples:" in inspect.getdoc(getattr(fbuf.targets, name))


@pytest.mark.parametrize("name", ["Oracle", "check_sampler", "check_view", "rows"])
def test_every_name_of_testing_is_documented_with_an_example(name):
    assert "Examples:" in inspect.getdoc(getattr(fbuf.testing, name))


def test_dir_shows_the_public_names_and_the_packages():
    assert dir(fbuf) == sorted([*fbuf.__all__, "host", "sharded", "targets", "testing"])
    assert all(hasattr(fbuf, name) for name in dir(fbuf))


PACKAGES = sorted(path.parent.name for path in ROOT.glob("adapters/fbuf_adapters/*/__init__.py"))


@pytest.mark.parametrize(
    "name",
    [
        *("fbuf.sharded", "fbuf.targets", "fbuf.host", "fbuf.testing"),
        *(f"fbuf_adapters.{name}" for name in PACKAGES),
    ],
)
def test_dir_of_a_package_shows_its_public_names(name):
    module = pytest.importorskip(name, exc_type=ImportError)  # its library may not be installed
    assert dir(module) == sorted(module.__all__)
    assert all(hasattr(module, name) for name in dir(module))


def shown(source):
    """The names of a typed module that an editor completes: assigned, or imported to be public."""
    names, public = set(), set()
    todo = list(ast.parse(source).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.name for alias in node.names if alias.asname == alias.name}
            if node.names[0].name == "*":
                origin = importlib.util.find_spec(node.module).origin
                names |= shown(pathlib.Path(origin).read_text())
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            if "__all__" in names and not public and isinstance(node.value, ast.List):
                public = set(ast.literal_eval(node.value))
        elif isinstance(node, ast.ExceptHandler):
            names.add(node.name)
            todo += node.body
        else:
            todo += [*getattr(node, "body", ()), *getattr(node, "orelse", ())]
            todo += getattr(node, "handlers", ())
    return {name for name in names | public if name and not name.startswith("_")}


@pytest.mark.parametrize(
    "name",
    [
        *("fbuf", "fbuf.sharded", "fbuf.targets", "fbuf.host", "fbuf.testing"),
        *(f"fbuf_adapters.{name}" for name in PACKAGES),
    ],
)
def test_an_editor_completes_the_names_that_dir_shows(name):
    module = pytest.importorskip(name, exc_type=ImportError)  # its library may not be installed
    assert shown(pathlib.Path(module.__file__).read_text()) == set(dir(module))


def test_an_editor_would_complete_these():
    found = shown(
        "import sys\nimport a as a\nfrom b import c\nfrom b import d as d\nfrom b import e as f\n"
        "try:\n    import torch\nexcept ImportError as error:\n    raise\n"
        "if g:\n    h = 1\n_i = 2\n__all__ = ['c']\n"
    )
    assert found == {"a", "c", "d", "error", "h"}


def test_a_sampler_lists_its_fields_alone():
    assert dir(fbuf.Uniform()) == ["by", "first_only", "strict", "stride", "window"]
    assert {"length", "burn_in"} <= set(dir(fbuf.Sequence(3)))
    assert not {"gather", "span"} & set(dir(fbuf.Sequence(3)))


def results():
    """The classes of objects that functions return: all but those that users make."""
    made = (fbuf.samplers.Sampler, fbuf.views.View, enum.Enum, Exception)
    for module in (fbuf, fbuf.sharded, fbuf.targets):
        for name in module.__all__:
            kind = getattr(module, name)
            if inspect.isclass(kind) and not issubclass(kind, made) and kind is not fbuf.Pace:
                yield pytest.param(kind, id=f"{module.__name__}.{name}")


@pytest.mark.parametrize("kind", list(results()))
def test_an_editor_has_a_line_for_each_attribute_of_a_result(kind):
    """It opens the text of the attribute in the docstring of the class."""
    text = re.sub(r"\s+", " ", inspect.getdoc(kind))
    (body,) = [node.body for node in ast.parse(inspect.getsource(kind)).body]
    for field, line in zip(body, [*body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            name = field.target.id
            assert isinstance(line, ast.Expr), f"{name} has no line below it"
            said = line.value.value.rstrip(".")
            assert "\n" not in said
            assert f" {name}: {said}" in text or f" {name}: As in " in text, name


def test_an_object_lists_no_argument_that_it_only_refuses_to_assign():
    store = fbuf.host.HostStore(0.0, 4)
    with pytest.raises(AttributeError, match="sampler cannot be set"):
        store.sampler = fbuf.Uniform()
    assert all(hasattr(store, name) for name in dir(store))
    assert {"capacity", "sample"} <= set(dir(store))


def made_by_users():
    """The samplers and views."""
    kinds = (fbuf.samplers.Sampler, fbuf.views.View)
    found = (getattr(fbuf, name) for name in fbuf.__all__)
    return [kind for kind in found if inspect.isclass(kind) and issubclass(kind, kinds)]


@pytest.mark.parametrize("kind", made_by_users(), ids=lambda kind: kind.__name__)
def test_help_shows_the_fields_and_no_method_of_the_protocol(kind):
    text = pydoc.render_doc(kind, renderer=pydoc.plaintext)
    assert f"{kind.__name__}{inspect.signature(kind)}" in text
    assert inspect.getdoc(kind).splitlines()[-1] in text
    for field in dataclasses.fields(kind):
        if field.default is not dataclasses.MISSING:
            assert f" |  {field.name} = " in text
    methods = re.findall(r"^ \|  (\w+)\(", text.split("Method resolution order")[1], re.MULTILINE)
    assert not {name for base in PROTOCOLS for name in vars(base)} & set(methods)
    assert "old_names" not in text


PROTOCOLS = [
    fbuf.samplers.Sampler,
    fbuf.samplers.PlannedSampler,
    fbuf.samplers.PlacingSampler,
    fbuf.samplers.QueueSampler,
    fbuf.views.View,
]


@pytest.mark.parametrize("kind", PROTOCOLS, ids=lambda kind: kind.__name__)
def test_help_shows_authors_all_of_a_protocol(kind):
    text = pydoc.render_doc(kind, renderer=pydoc.plaintext)
    for base in kind.__mro__[: kind.__mro__.index(abc.ABC)]:
        for name in vars(base):
            assert name.startswith("_") or re.search(rf"^ \|  {name}\b", text, re.MULTILINE)


def test_a_sampler_of_an_author_lists_what_it_adds():
    @dataclasses.dataclass(frozen=True)
    class Mine(fbuf.Uniform):
        scale: float = 1.0

        def draw(self, *arguments):
            return super().draw(*arguments)

        def scaled(self):
            return self.scale

    assert {"window", "scale", "scaled"} <= set(dir(Mine))
    assert "draw" not in dir(Mine)
    assert "scaled" in dir(Mine())


def test_the_api_page_names_everything_once():
    named = [name for names in api_table().THEMES.values() for name in names]
    assert sorted(named) == sorted(fbuf.__all__)
    of_mesh, rest = api_table().MESH["fbuf.sharded"], set(fbuf.sharded.__all__)
    assert set(of_mesh) <= rest
    for name in rest - set(of_mesh):
        assert getattr(fbuf.sharded, name) is getattr(fbuf, name)
    assert sorted(api_table().TARGETS["fbuf.targets"]) == sorted(fbuf.targets.__all__)


@pytest.mark.parametrize("theme", list(api_table().THEMES))
def test_the_api_page_has_todays_signatures_and_docstrings(theme):
    page = (PAGES / "api.md").read_text()
    table = "\n".join(api_table().table("fbuf", api_table().THEMES[theme]))
    assert f"## {theme}\n\n{table}\n" in page, "run: python docs/api_table.py"
    reference = (PAGES / "reference.md").read_text()
    for name in api_table().THEMES[theme]:
        assert f"::: fbuf.{name}\n" in reference


@pytest.mark.sweep
def test_the_api_page_is_whole():
    pytest.importorskip("torch")
    pytest.importorskip("tensordict")
    pytest.importorskip("gymnax")
    pytest.importorskip("ray")
    for page, text in (("api.md", api_table().api()), ("reference.md", api_table().reference())):
        assert (PAGES / page).read_text() == text, "run: python docs/api_table.py"


def test_the_state_comes_first_and_options_by_name():
    positional = {
        "add": ["state", "items"],
        "sample": ["state", "key", "batch_size"],
        "update_priority": ["state", "ids", "priority"],
        "remove": ["state", "ids"],
        "write": ["state", "ids", "fields"],
        "clear": ["state"],
        "init": ["item", "capacity"],
        "nbytes": ["item", "capacity"],
        "capacity_for": ["size", "item"],
        "end_episode": ["state"],
        "can_sample": ["state", "min_size"],
        "after": ["state", "batch"],
        "read": ["state", "ids"],
        "newest_ids": ["state", "count"],
        "no_ids": ["count"],
        "rows": ["state"],
        "probability": ["state", "ids"],
        "ids_at": ["state", "slots"],
        "neighbours": ["state", "ids", "steps"],
        "sequence_priority": ["priority", "loss_mask"],
        "thin": ["batch", "key", "count", "error"],
    }
    for name, expected in positional.items():
        parameters = inspect.signature(getattr(fbuf, name)).parameters.values()
        found = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert found == expected


def test_options_of_samplers_and_views_are_by_name_after_the_first():
    first = {
        "Uniform": ["window"],
        "Prioritized": ["alpha"],
        "Shuffled": ["window"],
        "Mixture": ["uniform"],
        "Item": ["fields"],
        "Transition": ["next_of"],
        "NStep": ["n"],
        "Sequence": ["length"],
        "FrameStack": ["k"],
        "Window": ["offsets"],
        "Hindsight": ["reward_fn"],
        "ReturnToGo": ["gamma"],
    }
    for name, expected in first.items():
        parameters = inspect.signature(getattr(fbuf, name)).parameters.values()
        assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == expected


def loaded(*codes):
    """Return the loaded modules after each of some lines, in one process."""
    say = f"print(*[m for m in {HEAVY} if m in sys.modules])"
    program = "import sys; " + "".join(f"{code}; {say}; " for code in codes)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    return list(map(str.split, done.stdout.splitlines()))


def test_checks_are_imported_when_they_are_asked_for_and_without_a_test_library():
    say = "print(*sorted({'fbuf.testing', 'pytest', 'scipy'} & set(sys.modules)))"
    program = f"import sys, fbuf; {say}; fbuf.testing.check_view; {say}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.splitlines() == ["", "fbuf.testing"]


def test_importing_fbuf_loads_no_framework_but_jax():
    both = "sys.path.insert(0, 'adapters'); import fbuf_adapters, fbuf; fbuf.init(0.0, 2)"
    # The check itself can fail, too.
    assert loaded(both, "import optax") == [[], ["optax"]]
