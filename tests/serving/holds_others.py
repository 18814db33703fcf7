"""A module that the operator allowed, and that has imported from others."""

from os import system
from typing import Any

from shoal.core.policies.rule import SizeOrWait
from shoal.replicas.local.task import TaskReplica

__all__ = ["SizeOrWait", "TaskReplica", "code", "own", "system"]


def code(items: list[Any]) -> list[Any]:
    return items


def own(*arguments: Any) -> Any:
    return arguments
