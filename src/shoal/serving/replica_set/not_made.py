"""What stands in for a replica that its placement could not even make: it fails to start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, Replica

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import TaskStatus

    from shoal.replicas.code.current import Identity
    from shoal.replicas.code.description import Description


class NotMade(Replica):
    """A replica that never becomes ready.

    Args:
        identity: Its names.
        place: Its place among the replicas.
        cause: What its placement raised.
    """

    def __init__(self, identity: Identity, place: int, cause: Exception) -> None:
        super().__init__(Blueprint(identity=identity, definition=Definition(None), number=place))
        self._cause = cause

    async def serve(self, *, task_status: TaskStatus[Description]) -> None:
        await anyio.lowlevel.checkpoint()
        raise ReplicaNotStarted(
            f"{self.tag}: its placement could not make it: {self._cause!r}"
        ) from self._cause

    def stop(self) -> None:
        """Does nothing: it never ran."""

    def kill(self, reason: str) -> None:
        """Does nothing: it never ran."""

    async def run(self, method: str, items: list[Any]) -> Any:
        raise self._never_ran()

    def run_stream(self, method: str, items: list[Any]) -> AsyncGenerator[Any, None]:
        raise self._never_ran()

    async def reconfigure(self, user_config: Any) -> None:
        raise self._never_ran()

    async def check_health(self) -> None:
        raise self._never_ran()

    def _never_ran(self) -> ReplicaDied:
        return ReplicaDied(f"{self.tag} never ran", replica=self.tag)
