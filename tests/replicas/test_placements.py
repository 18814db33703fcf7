"""Placements by name."""

from __future__ import annotations

import functools
import sys

import pytest

from shoal.replicas.local.task import TaskReplica
from shoal.replicas.local.thread import ThreadReplica
from shoal.replicas.placements import placement_name, placement_of
from shoal.replicas.process.replica import ProcessReplica


def own(blueprint):
    return TaskReplica(blueprint)


@pytest.mark.parametrize(
    ("name", "placement"),
    [("task", TaskReplica), ("thread", ThreadReplica), ("process", ProcessReplica)],
)
def test_a_placement_has_a_name(name, placement):
    assert placement_of(name) is placement


@pytest.mark.parametrize("placement", [own, TaskReplica, functools.partial(own)])
def test_a_callable_is_a_placement(placement):
    assert placement_of(placement) is placement


def test_a_placement_may_be_given_by_its_import_path():
    assert placement_of(f"{__name__}:own") is own


@pytest.mark.parametrize("text", ["tasks", "", "Task", "shoal.replicas.local.task"])
def test_text_that_names_no_placement_is_refused(text):
    with pytest.raises(ValueError, match="placement must be 'task', 'thread', 'process' or 'ray'"):
        placement_of(text)


@pytest.mark.parametrize("thing", [None, 3, ["task"], f"{__name__}:__name__"])
def test_what_can_not_be_called_is_refused(thing):
    with pytest.raises(TypeError, match="placement must be 'task', 'thread', 'process' or 'ray'"):
        placement_of(thing)


def test_without_ray_its_placement_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    for name in [name for name in sys.modules if name.startswith("shoal.replicas.ray.replica")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'shoal\[ray\]'"):
        placement_of("ray")


@pytest.mark.parametrize(
    ("placement", "name"),
    [
        ("process", "process"),
        ("package.module:Own", "package.module:Own"),
        (own, "own"),
        (TaskReplica, "TaskReplica"),
        (functools.partial(own), "partial"),
    ],
)
def test_a_placement_has_a_name_for_messages(placement, name):
    assert placement_name(placement) == name
