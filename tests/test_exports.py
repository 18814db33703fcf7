"""The public names: listed once, documented, and the same in `__all__`, the module and the docs."""

import ast
import importlib.metadata
import re
import types
from pathlib import Path

import pytest

import shoal

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
DOCUMENTED = "\n".join(
    path.read_text(encoding="utf-8") for path in sorted(REFERENCE.iterdir()) if path.is_file()
)


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
