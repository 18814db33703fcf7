"""What a backend's code and its placement may be, and which code takes lists."""

import functools
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from os import popen, system  # noqa: F401 - to be found here
from typing import Any

import pytest

from shoal.batching.current import Identity
from shoal.batching.handlers.binding import takes_lists
from shoal.core.options.option import options_of
from shoal.errors import HandlerFailed, NotAllowed
from shoal.replicas.code.definition import Definition, OwnPath, accept_batch, imported
from shoal.replicas.contract import Blueprint, Replica
from shoal.replicas.local.task import TaskReplica
from shoal.replicas.local.thread import ThreadReplica
from shoal.replicas.placements import BUILT_IN, ProcessOptions, placement_of, takes_open_batches
from shoal.replicas.process.replica import ProcessReplica


def double(items: list[int]) -> list[int]:
    return [2 * item for item in items]


class Model:
    class Inner:
        def __call__(self, items: list[int]) -> list[int]:
            return items

    def __call__(self, items: list[int]) -> list[int]:
        return items

    def one(self, item: int) -> int:
        return item


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


def of_bare_list(items: list) -> list:
    return items


def of_list_and_one(items: list[int], factor: int) -> list[int]:
    return [factor * item for item in items]


def of_text(item: str) -> str:
    return item


def of_bytes(item: bytes) -> bytes:
    return item


def of_pair(item: tuple[int, int]) -> int:
    return item[0]


def of_dict(item: dict[str, Any]) -> int:
    return len(item)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (of_bare_list, True),
        (Model().__call__, True),
        (functools.partial(of_list_and_one, factor=3), True),
        (of_text, False),
        (of_bytes, False),
        (of_pair, False),
        (of_dict, False),
        (Model().one, False),
        (functools.partial(of_text), False),
    ],
)
def test_code_takes_lists_if_its_annotations_are_all_of_lists(function, expected):
    assert takes_lists(function) is expected


def of_list_and_anything(items: list[int], factor) -> list[int]:
    return items


@pytest.mark.parametrize("function", [of_list_and_one, of_list_and_anything])
def test_a_mixture_of_lists_and_others_is_refused(function):
    with pytest.raises(TypeError, match=r"unclear whether .*accept_batch\(False\)"):
        takes_lists(function)


def test_what_the_mark_says_comes_first():
    @accept_batch(False)
    def of_one_list(item: list[int]) -> int:
        return sum(item)

    @accept_batch
    def mixed(items: list[int], factor):
        return items

    assert not takes_lists(of_one_list)
    assert not takes_lists(functools.partial(of_one_list))
    assert takes_lists(mixed)


def test_a_class_that_is_marked_takes_lists_when_called():
    @accept_batch
    class Marked:
        def __call__(self, items):
            return items

        def other(self, item):
            return item

    assert takes_lists(Marked())
    assert not takes_lists(Marked().other)


def test_the_mark_gives_back_what_it_marks():
    def function(items):
        return items

    assert accept_batch(function) is function
    assert accept_batch(Model) is Model


@pytest.mark.parametrize("code", [Model().one, len, 7])
def test_what_can_not_be_marked_is_refused(code):
    with pytest.raises(TypeError, match=r"accept_batch\(\) marks a function, a method or a class"):
        accept_batch(code)


def own(blueprint):
    return TaskReplica(blueprint)


@dataclass
class ZoneOptions:
    zone: str


def with_zone(blueprint):
    return TaskReplica(blueprint)


with_zone.Options = ZoneOptions


@pytest.mark.parametrize(
    ("name", "placement"),
    [("task", TaskReplica), ("thread", ThreadReplica), ("process", ProcessReplica)],
)
def test_a_placement_has_a_name(name, placement):
    assert placement_of(name) is placement
    assert takes_open_batches(name) == (placement.run_open is not Replica.run_open)


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_option_of_a_placement_is_in_the_table_of_options(name):
    record = BUILT_IN[name].options
    assert [field.name for field in fields(record)] == list(options_of(record))


def test_an_option_of_two_placements_is_one_option():
    tables = [options_of(one.options) for one in BUILT_IN.values()]
    for name in {name for table in tables for name in table}:
        assert len({table[name].check for table in tables if name in table}) == 1


def test_a_config_is_checked_without_what_runs_replicas():
    code = "import sys\nfrom shoal import BackendConfig\n"
    code += "for place in ('task', 'thread', 'process', 'ray'): BackendConfig(placement=place)\n"
    code += "BackendConfig(placement='ray', ray_options={'num_gpus': 1})\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert not {one.path.partition(":")[0] for one in BUILT_IN.values()} & loaded
    assert "ray" not in loaded


@pytest.mark.parametrize("placement", [with_zone, f"{__name__}:with_zone"])
def test_a_placement_checks_its_options_when_it_is_imported(placement):
    assert placement_of(placement, {"zone": "a"}) is with_zone
    assert placement_of(placement) is with_zone
    with pytest.raises(TypeError, match="placement_options has no 'zones'; it has zone"):
        placement_of(placement, {"zones": "a"})
    assert placement_of(own, {"zones": "a"}) is own


def test_a_placement_may_wrap_another_and_set_its_options():
    blueprint = Blueprint(identity=Identity("b", "b#0"), definition=Definition(own))
    replica = ProcessReplica(replace(blueprint, placement_options={"shared_memory_bytes": 3}))
    assert replica._options == ProcessOptions(shared_memory_bytes=3)
    with pytest.raises(ValueError, match="shared_memory_bytes must be at least 0"):
        ProcessReplica(replace(blueprint, placement_options={"shared_memory_bytes": -1}))


def test_options_that_are_no_dataclass_are_named():
    def odd(blueprint):
        return TaskReplica(blueprint)

    odd.Options = dict
    with pytest.raises(TypeError, match=r"odd\.Options must be a dataclass, not <class 'dict'>"):
        placement_of(odd, {})


def test_options_may_raise_anything_without_ending_the_server():
    @dataclass
    class Exits:
        def __post_init__(self):
            sys.exit(3)

    def odd(blueprint):
        return TaskReplica(blueprint)

    odd.Options = Exits
    with pytest.raises(HandlerFailed, match="the placement's Options raised SystemExit: 3"):
        placement_of(odd, {})


@pytest.mark.parametrize("text", ["tasks", "", "Task", "shoal.replicas.local.task"])
def test_text_that_names_no_placement_is_refused(text):
    with pytest.raises(ValueError, match="'task', 'thread', 'process', 'ray' or 'remote'"):
        placement_of(text)


@pytest.mark.parametrize("thing", [None, 3, ["task"], f"{__name__}:__name__"])
def test_what_can_not_be_called_is_refused(thing):
    with pytest.raises(TypeError, match="'task', 'thread', 'process', 'ray' or 'remote'"):
        placement_of(thing)


def test_without_ray_its_placement_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    for name in [name for name in sys.modules if name.startswith("shoal.replicas.ray.replica")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'shoal\[ray\]'"):
        placement_of("ray")
