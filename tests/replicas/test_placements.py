"""Placements by name."""

import subprocess
import sys
from dataclasses import dataclass, fields, replace

import pytest

from shoal.batching.current import Identity
from shoal.core.options.option import options_of
from shoal.errors import HandlerFailed
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, Replica
from shoal.replicas.local.task import TaskReplica
from shoal.replicas.local.thread import ThreadReplica
from shoal.replicas.placements import BUILT_IN, ProcessOptions, placement_of, takes_open_batches
from shoal.replicas.process.replica import ProcessReplica


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
