"""The public names: listed once, documented, and the same in `__all__`, the module and the docs.

Errors travel: through `copy`, through `pickle`, and so through pools of processes.
"""

import ast
import copy
import importlib.metadata
import inspect
import pickle
import re
import types
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal import errors

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
DOCUMENTED = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted(REFERENCE.iterdir()) if path.is_file()
)
MESSAGE = "embed was given 3 items and gave back 2 results"
OWN_ARGUMENTS: dict[type[Exception], dict[str, Any]] = {
    errors.ReplicaDied: {
        "replica": "embed#3",
        "exit_code": 3,
        "signal": "SIGKILL",
        "last_lines": "out of memory\n",
    },
    errors.HttpProblem: {"status": 422, "kind": "invalid-item", "members": {"status": 422}},
    errors.LifespanFailed: {"details": "Traceback"},
    errors.ReplicaNotStarted: {"needs_restart": True},
    errors.RetryLater: {"after_s": 2.5},
    errors.WrongBatchSize: {"expected": 3, "got": 2},
}
MAKES_ITS_MESSAGE = (errors.RetryLater,)
ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.ShoalError) and kind.__module__ == errors.__name__
]


def reading_order(name: str) -> tuple[int, str]:
    """CONSTANTS, then Classes, then functions: the order that ruff keeps `__all__` in."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def members_that_users_call(cls: type) -> list[tuple[str, object]]:
    return [
        (name, member.fget if isinstance(member, property) else member)
        for name, member in vars(cls).items()
        if not name.startswith("_")
        and isinstance(member, types.FunctionType | property | classmethod | staticmethod)
    ]


def test_all_is_sorted_and_has_no_name_twice():
    assert shoal.__all__ == sorted(set(shoal.__all__), key=reading_order)


def test_the_module_brings_in_what_all_lists_and_nothing_else():
    tree = ast.parse(Path(shoal.__file__).read_text(encoding="utf-8"))
    brought_in = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "shoal"
        for alias in node.names
        if not (alias.asname or "").startswith("_")
    }
    assert brought_in == {name for name in shoal.__all__ if not name.startswith("__")}


def test_a_name_that_is_not_there_says_so():
    with pytest.raises(AttributeError, match="no attribute 'batches'"):
        shoal.batches  # noqa: B018


def test_the_version_is_the_installed_one():
    assert shoal.__version__ == importlib.metadata.version("shoal")


def test_no_two_names_are_one_object():
    values = [getattr(shoal, name) for name in shoal.__all__]
    assert len({id(value) for value in values}) == len(values)


MODULES = {
    name: value
    for name in shoal.__all__
    if isinstance(value := getattr(shoal, name), types.ModuleType)
}
PUBLIC = [(shoal, name) for name in shoal.__all__ if name not in MODULES] + [
    (module, name)
    for module in MODULES.values()
    for name in getattr(module, "__all__", vars(module))
    if isinstance(getattr(module, name), type)
    and getattr(module, name).__module__.startswith("shoal.")
]


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_a_public_name_is_in_the_reference(module, name):
    assert re.search(rf"\b{re.escape(f'{module.__name__}.{name}')}\b", DOCUMENTED)


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_a_public_name_is_documented_where_it_is_defined(module, name):
    value = getattr(module, name)
    if not isinstance(value, type | types.FunctionType):
        return
    assert value.__module__.split(".")[0] == "shoal"
    assert vars(value).get("__doc__") if isinstance(value, type) else value.__doc__
    if isinstance(value, type):
        assert [n for n, member in members_that_users_call(value) if not member.__doc__] == []


def unpickled(error: Exception) -> Exception:
    found = pickle.loads(pickle.dumps(error))
    assert isinstance(found, Exception)
    return found


def unpickled_by_the_oldest_protocol(error: Exception) -> Exception:
    found = pickle.loads(pickle.dumps(error, 0))
    assert isinstance(found, Exception)
    return found


def made(kind: type[Exception]) -> Exception:
    message = () if kind in MAKES_ITS_MESSAGE else (MESSAGE,)
    error = kind(*message, **OWN_ARGUMENTS.get(kind, {}))
    error.add_note("in the second batch")
    return error


def test_each_argument_of_an_error_is_tried():
    for kind in ERRORS:
        takes = inspect.signature(kind).parameters if "__init__" in vars(kind) else {}
        assert set(takes) - {"message"} == set(OWN_ARGUMENTS.get(kind, {})), kind


@pytest.mark.parametrize(
    "travel", [copy.copy, copy.deepcopy, unpickled, unpickled_by_the_oldest_protocol]
)
@pytest.mark.parametrize("kind", ERRORS)
def test_every_public_error_copies_and_pickles_whole(kind, travel):
    error = made(kind)
    twin = travel(error)
    assert type(twin) is kind
    assert twin is not error
    assert twin.args == error.args
    assert str(twin) == str(error)
    assert kind in MAKES_ITS_MESSAGE or error.args == (MESSAGE,)
    assert vars(twin) == vars(error)
    twin.add_note("of the twin alone")
    assert error.__notes__ == ["in the second batch"]


class Busy(errors.Overloaded):
    """A user's own, whose constructor takes something else than its message."""

    def __init__(self, queue: str, length: int) -> None:
        super().__init__(f"{queue} is {length} long")
        self.queue = queue


def test_a_subclass_of_a_public_error_does_so_too():
    twin = unpickled(Busy("embed", 7))
    assert isinstance(twin, Busy)
    assert (str(twin), twin.queue) == ("embed is 7 long", "embed")
