"""The end of a replica: whether it was asked to stop, or how it was killed or has died.

A replica has one `Ending`, which is the only record of its end. The first reason stands, whether
its supervisor, its process or its connection gave it. Each piece of work that is lost with the
replica gets an error of its own from here, since a shared one would collect tracebacks.
"""

from __future__ import annotations

import anyio

from shoal.errors import ReplicaDied


class Ending:
    """The end of the replica with the tag `replica`; `begun` is set when it must end or has died.

    Attributes:
        was_stopped: Whether it was asked to end without a loss of work.
        how: How it was killed or has died, such as "was killed: it hung"; otherwise None.
        cause: The error that says so, if any.
    """

    def __init__(self, replica: str) -> None:
        self.was_stopped = False
        self.how: str | None = None
        self.cause: BaseException | None = None
        self.begun = anyio.Event()
        self._replica = replica

    def stop(self) -> None:
        self.was_stopped = True
        self.begun.set()

    def die(self, how: str, cause: BaseException | None = None) -> None:
        if self.how is None:
            # The traceback's frames would keep the objects of the replica alive.
            self.how, self.cause = how, None if cause is None else cause.with_traceback(None)
            self.begun.set()

    def die_unasked(self, how: str) -> None:
        """Records a death, unless the replica was asked to stop."""
        if not self.begun.is_set():
            self.die(how)

    def __str__(self) -> str:
        return self.how or ("was stopped" if self.was_stopped else "is not ready")

    def death(self) -> ReplicaDied:
        """Returns a new error, for one caller."""
        death = ReplicaDied(f"{self._replica} {self}", replica=self._replica)
        death.__cause__ = self.cause
        return death
