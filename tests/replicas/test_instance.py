"""An instance of a backend's code: its methods, hooks, handlers, loggers and calls of endpoints."""

import collections
import dataclasses
import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any, get_type_hints

import pytest

import shoal
from handlers import double
from shoal.errors import NoSuchName
from shoal.replicas.code.definition import Definition, accept_batch
from shoal.replicas.code.endpoint_call import HANDLE_OPTIONS, HandleKeywords, HandleOptions
from shoal.replicas.code.instance import Instance
from shoal.serving.clients.handles import ChildHandle


class Model:
    """Has a method of every kind."""

    size = 3

    def __call__(self, items: list[int]) -> list[int]:
        return items

    async def one(self, item: int, scale: float = 1.0) -> float:
        return item * scale

    def steps(self, items: list[str]) -> Iterator[list[str]]:
        yield items

    async def steps_of_one(self, item: str) -> AsyncIterator[str]:
        yield item

    @accept_batch
    def marked(self, items):
        return items

    @staticmethod
    def static(items: list[int]) -> list[int]:
        return items

    @classmethod
    def of_class(cls, item: int) -> int:
        return cls.size * item

    def helper(self, *anything: int) -> int:
        return len(anything)

    def nothing(self) -> int:
        return 0

    def _private(self, item: int) -> int:
        return item

    @property
    def state(self) -> int:
        raise AssertionError("a property is not to be looked at")


class Hooked:
    def __call__(self, item):
        return item

    def reconfigure(self, user_config):
        pass

    def health(self):
        pass

    def warm_up(self):
        pass

    close = None


def instance_of(target, *args, **options) -> Instance:
    return Instance(Definition(target, args, **options))


def test_the_methods_of_a_class_are_described():
    methods = instance_of(Model).description.methods
    assert {name: (m.batched, m.streams) for name, m in methods.items()} == {
        "__call__": (True, False),
        "one": (False, False),
        "steps": (True, True),
        "steps_of_one": (False, True),
        "marked": (True, False),
        "static": (True, False),
        "nothing": (False, False),
    }


def test_the_signature_is_that_of_a_call_of_one_item():
    methods = instance_of(Model).description.methods
    assert str(methods["__call__"].signature) == "(items: int) -> int"
    assert str(methods["one"].signature).startswith("(item: ")
    assert methods["one"].signature.parameters["scale"].default == 1.0
    assert list(methods["marked"].signature.parameters) == ["items"]


def test_a_function_has_nothing_but_its_call():
    instance = instance_of(double)
    assert list(instance.description.methods) == ["__call__"]
    assert not instance.description.reconfigures
    assert not instance.description.checks_health
    assert all(instance.hook(name) is None for name in ("reconfigure", "health", "close"))


def test_hooks_are_not_methods():
    instance = instance_of(Hooked)
    assert list(instance.description.methods) == ["__call__"]
    assert instance.description.reconfigures
    assert instance.description.checks_health
    assert instance.hook("warm_up") is not None
    assert instance.hook("close") is None


def test_a_health_check_may_have_the_name_that_ray_serve_gives_it():
    class Checked:
        def __call__(self, items: list[int]) -> list[int]:
            return items

        def check_health(self) -> str:
            return "asked"

    instance = instance_of(Checked)
    assert list(instance.description.methods) == ["__call__"]
    assert instance.description.checks_health
    hook = instance.hook("health")
    assert hook is not None
    assert hook() == "asked"


def test_a_method_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(NoSuchName, match=r"no method 'embed'; it has __call__, marked, nothing"):
        instance_of(Model).description.method("embed")


async def test_code_that_is_batched_by_itself_is_async_code_of_one_item():
    @shoal.batch
    def decorated(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    class Called:
        @shoal.batch
        def __call__(self, items: list[int]) -> list[int]:
            return [2 * item for item in items]

        @shoal.batch
        async def steps(self, items: list[int]) -> AsyncIterator[list[int]]:
            yield items

    for target in (decorated, Called, Called()):
        instance = instance_of(target)
        method = instance.description.method("__call__")
        assert (method.batched, method.streams, method.gathers) == (False, False, True)
        assert str(method.signature) == "(items: int) -> int"
        async with shoal.open_batchers():
            assert await instance.handlers["__call__"].results([3]) == [6]
    async with shoal.open_batchers():
        steps = instance.handlers["steps"].steps([3])
        assert [step async for step in steps] == [[3]]


def test_only_async_code_of_one_item_that_batches_by_itself_gathers():
    class Mixed:
        def __call__(self, items: list[int]) -> list[int]:
            return items

        async def one(self, item: int) -> int:
            return await self.batched(item)

        def plain(self, item: int) -> int:
            return item

        @shoal.batch
        def batched(self, items: list[int]) -> list[int]:
            return items

    methods = instance_of(Mixed).description.methods
    assert {name for name, method in methods.items() if method.gathers} == {"one", "batched"}
    assert not any(method.gathers for method in instance_of(Model).description.methods.values())


def test_whether_it_takes_lists_can_be_said_for_it():
    assert instance_of(lambda item: item, accept_batch=True).description.method("__call__").batched
    assert not instance_of(double, accept_batch=False).description.method("__call__").batched


def test_what_a_class_inherits_from_a_library_is_no_method():
    class Near:
        def near(self, item: int) -> int:
            return item

    class Table(collections.UserDict, Near):  # type: ignore[type-arg]
        def __call__(self, item: int) -> int:
            return item

        def pop(self, item: int) -> int:
            return item

    assert set(instance_of(Table).description.methods) == {"__call__", "near", "pop"}


def test_a_lazy_attribute_is_not_made():
    class Lazy:
        @functools.cached_property
        def weights(self) -> int:
            raise AssertionError("nobody has asked for them")

        def __call__(self, item: int) -> int:
            return item

    assert set(instance_of(Lazy).description.methods) == {"__call__"}


OTHERS: dict[str, Any] = {
    "method_name": "embed",
    "shard_key": "user-7",
    "model": "en-fr",
    "http_method": "PUT",
    "http_headers": {"x-a": "b"},
    "timeout_s": 2.5,
    "priority": 3,
}


def test_the_keywords_for_type_checkers_are_the_fields():
    fields = get_type_hints(HandleOptions)
    assert get_type_hints(HandleKeywords) == {name: kind | None for name, kind in fields.items()}


def test_every_field_has_a_check_and_a_line_of_its_own_in_the_docstring():
    names = [field.name for field in dataclasses.fields(HandleOptions)]
    assert list(HANDLE_OPTIONS) == names == list(OTHERS)
    documented = (HandleOptions.__doc__ or "").split("Attributes:")[1].strip().splitlines()
    assert [line.split(":")[0].strip() for line in documented] == names


@pytest.mark.parametrize("name", OTHERS)
def test_only_options_that_were_changed_are_written(name):
    options = HandleOptions().with_changes({name: OTHERS[name]})
    assert options == HandleOptions(**{name: OTHERS[name]})
    assert options.changed() == {name: OTHERS[name]}


@pytest.mark.parametrize("name", OTHERS)
def test_none_leaves_an_option_as_it_is(name):
    assert HandleOptions(**OTHERS).with_changes({name: None}) == HandleOptions(**OTHERS)


def test_a_call_from_a_process_carries_every_option():
    channel: Any = None
    handle = ChildHandle("e", channel).options(**OTHERS)
    call = handle.call_out((1,), {"k": 2}, stream=True)
    assert (call.endpoint, call.args, call.kwargs, call.stream) == ("e", (1,), {"k": 2}, True)
    assert call.options == HandleOptions(**OTHERS)


UVICORN = """\
{
    "version": 1,
    "handlers": {"default": {"class": "logging.NullHandler"}},
    "loggers": {"uvicorn": {"handlers": ["default"], "level": "INFO", "propagate": False}},
}"""
INI = "[loggers]\nkeys=root\n[handlers]\nkeys=\n[formatters]\nkeys=\n[logger_root]\nhandlers=\n"
CODE = """
import logging.config

def configure():
    STATEMENT

class Model:
    def __init__(self):
        configure()

    def __call__(self, items: list[int]) -> list[int]:
        return items
"""
PROGRAM = """
import logging
from shoal.replicas.code.definition import Definition, imported
from shoal.replicas.code.instance import Instance

loggers = [logging.getLogger(name) for name in ("shoal", "shoal.server", "shoal.access")]
loggers[0].disabled = True  # stays as it is
for load in (
    lambda: imported("configures_at_import:Model"),
    lambda: Instance(Definition("configures:Model")),
):
    load()
    print([logger.disabled for logger in loggers])
"""


@pytest.mark.real_time
@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("logging.config.dictConfig({'version': 1})", id="dictConfig"),
        pytest.param(f"logging.config.dictConfig({UVICORN})", id="like uvicorn"),
        pytest.param("logging.config.fileConfig('logging.ini')", id="fileConfig"),
    ],
)
def test_code_that_configures_logging_leaves_shoals_log_on(statement, tmp_path):
    (tmp_path / "logging.ini").write_text(INI)
    (tmp_path / "configures.py").write_text(CODE.replace("STATEMENT", statement))
    (tmp_path / "configures_at_import.py").write_text("from configures import *\nconfigure()\n")
    command = [sys.executable, "-c", PROGRAM]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stdout == 2 * "[True, False, False]\n", ran.stderr
