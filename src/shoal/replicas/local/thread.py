"""A replica in a thread of its own: for plain code that must stay in one thread.

CUDA contexts, SQLite connections and event loops of other libraries belong to the thread that
created them. One thread therefore runs all of the code, one call after another: the constructor,
the hooks, the batches and the steps of generators. Only ``health()`` runs in another thread at the
same time.

Threads share the GIL. Code that holds it slows down everything in this process, the event loop
first. Use a process for such code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.replicas.code.instance import HOOKS, is_async
from shoal.replicas.local.replica import LocalReplica

if TYPE_CHECKING:
    from contextvars import Context

    from shoal.replicas.code.jobs import Job
    from shoal.replicas.local.work import JobThread


class ThreadReplica(LocalReplica):
    _thread: JobThread | None = None

    def _begin(self, job: Job, context: Context) -> None:
        if self._thread is None or self._thread not in self._threads:  # it could not be started
            self._thread = self._new_thread()
        self._thread.begin(job, context, self._answered)

    def _check_code(self) -> None:
        handlers = self.instance.handlers
        names = [name for name, handler in handlers.items() if not handler.threaded]
        names += [h for h in HOOKS if (hook := self.instance.hook(h)) and is_async(hook)]
        if names:
            raise TypeError(
                f"placement='thread' is for plain code, but {', '.join(names)} of "
                f"{self.blueprint.definition.name} is async; use placement='task'"
            )
