"""What a backend's code may be, and what is said about code that can't be one."""

import functools
import sys
from os import popen, system  # noqa: F401 - to be found here

import pytest

from shoal.errors import NotAllowed
from shoal.replicas.code.definition import Definition, OwnPath, imported


def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


class Model:
    class Inner:
        def __call__(self, items: list[int]) -> list[int]:
            return items

    def __call__(self, items: list[int]) -> list[int]:
        return items


class NoHandler:
    pass


@pytest.mark.parametrize("target", [double, Model, Model(), functools.partial(double)])
def test_what_can_be_called_is_loaded_as_it_is(target):
    assert Definition(target).checked().load() is target


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"{__name__}:double", double),
        (f"{__name__}:Model.Inner", Model.Inner),
        (f"{__name__}.double", double),
    ],
)
def test_an_import_path_is_loaded(path, found):
    assert Definition(path).checked().load() is found


def test_an_import_path_is_not_imported_when_it_is_checked():
    assert Definition("no_such_module_at_all:double").checked().import_path is not None


@pytest.mark.parametrize(
    "path", ["", "double", ":double", "module:", "a b:c", "module:1", "a..b:c"]
)
def test_text_that_is_no_import_path_is_refused(path):
    with pytest.raises(ValueError, match=r"is not an import path; write it like 'package\.module:"):
        Definition(path).checked()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module_at_all:double", "there is no module 'no_such_module_at_all'"),
        (f"{__name__}.deeper:double", f"there is no module '{__name__}.deeper'"),
        (f"{__name__}:treble", f"{__name__} has no attribute 'treble'"),
        (f"{__name__}:Model.Outer", f"{__name__} has no attribute 'Model.Outer'"),
    ],
)
def test_an_import_path_that_leads_nowhere_is_named(path, message):
    with pytest.raises(ValueError, match=message):
        imported(path)


def test_what_a_module_lacks_is_told_apart_from_the_module(tmp_path, monkeypatch):
    (tmp_path / "broken_backend.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all") as found:
        imported("broken_backend:double")
    assert found.value.name == "no_such_module_at_all"


def test_what_a_module_raises_is_not_hidden(tmp_path, monkeypatch):
    (tmp_path / "raising_backend.py").write_text("raise KeyError('weights')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyError, match="weights"):
        imported("raising_backend:double")
    assert "raising_backend" not in sys.modules


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (Definition(7), "a backend is a function, a class with __call__, or an import path"),
        (Definition(NoHandler), "the class NoHandler has no __call__"),
        (Definition(double, (1,)), r"init args are for classes, and double is not a class: \(1,\)"),
        (
            Definition(double, (), (("size", 1),)),
            "init args are for classes, and double is not a class",
        ),
        (Definition(Model(), (1,)), "init args are for classes, and Model is not a class"),
    ],
)
def test_what_can_not_be_a_backend_is_refused(definition, message):
    with pytest.raises(TypeError, match=message):
        definition.checked()


def test_a_function_behind_an_import_path_takes_no_init_args_either():
    definition = Definition(f"{__name__}:double", (1,)).checked()
    with pytest.raises(TypeError, match="init args are for classes, and double is not a class"):
        definition.load()


doubled = functools.partial(functools.partial(double), items=[1])
ran = functools.partial(system, "true")


@pytest.mark.parametrize("name", ["double", "Model", "Model.Inner", "doubled"])
def test_what_a_module_defines_is_its_own(name):
    path = f"{__name__}:{name}"
    assert Definition(OwnPath(path)).load() is imported(path)


@pytest.mark.parametrize("name", ["popen", "system", "imported", "functools.partial", "ran"])
def test_what_a_module_has_imported_is_not_its_own(name):
    assert Definition(f"{__name__}:{name}").load() is imported(f"{__name__}:{name}")
    with pytest.raises(NotAllowed, match=r"is defined in .*, not in "):
        Definition(OwnPath(f"{__name__}:{name}")).load()
