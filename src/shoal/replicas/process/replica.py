"""A replica in a process of its own, which lives as long as the replica.

It is for code that holds the GIL, that may crash, or that needs memory of its own. The worker is a
small program of Shoal's at the other end of two socket pairs. Process pools were rejected: they
break after a crash, can't cancel a stuck call, leave orphans behind, or pickle arrays.

The data channel carries calls and answers. If all of the code is plain, the worker's *main* thread
reads that channel and runs the code, so a call needs no switch between threads. If any of the code
is async, the worker runs an event loop of the same kind as the caller's. The control channel is
read by a thread of its own in the worker; it carries cancellation and health checks. The kernel
reports the end of the worker to the parent, whatever the worker was doing, and the end of the
parent to the worker.

Code that is given as an object is pickled by name. If that is in the main script, the worker runs
the script again, as a module called ``__mp_main__``. As with `multiprocessing`, a script that
starts anything must do so under ``if __name__ == "__main__":``.

The modules: `conversing` (the life of such a replica), `worker` (the process), `calls` (the calls
to it), the package `wire` (the protocol), and the package `child` (the worker's program).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.failures.hints import constructor_hint
from shoal.loops.this_loop import parking_of_this_loop
from shoal.replicas.gpus import environment_of
from shoal.replicas.placements import ProcessOptions
from shoal.replicas.process.calls import Conversation
from shoal.replicas.process.conversing import ConversingReplica
from shoal.replicas.process.wire.start import (
    StartMessage,
    main_script,
    pickled_code,
    running_main_again,
)
from shoal.replicas.process.worker import Worker

if TYPE_CHECKING:
    from shoal.replicas.code.instance import Description
    from shoal.replicas.contract import Blueprint

_MEMORY_PERIOD_S: Final = 0.2


class ProcessReplica(ConversingReplica):
    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        options = ProcessOptions(**blueprint.placement_options)
        if blueprint.devices:
            options = replace(options, env={**environment_of(blueprint.devices), **options.env})
        self._options = options
        self._worker: Worker | None = None

    def kill(self, reason: str) -> None:
        super().kill(reason)
        if self._worker is not None:
            self._worker.kill()

    def death(self) -> ReplicaDied:
        return super().death() if self._worker is None else self._worker.death(str(self._ending))

    def memory_bytes(self) -> int | None:
        if self._worker is None or self._worker.ended.is_set():
            return None
        return self._worker.memory_bytes()

    def _start_message(self) -> StartMessage:
        """Raises an error if the code can't be sent, or this worker runs a main script again."""
        if running_main_again.get():
            raise RuntimeError(
                "a worker process runs the main script again to find the code in it, and the "
                "script starts workers there; write\n"
                '    if __name__ == "__main__":\n'
                "before what starts them"
            )
        blueprint = self.blueprint
        options = self._options
        code = pickled_code(blueprint.definition, blueprint.user_config)
        cpus = options.cpu_affinity
        return StartMessage(
            *blueprint.identity,
            parking_of_this_loop().name,
            list(sys.path) if options.python in (None, sys.executable) else None,
            main_script(code),
            list(cpus[blueprint.number % len(cpus)]) if cpus else None,
            code,
        )

    async def _start(self) -> Description:
        timeout_s = self.blueprint.options.start_timeout_s
        try:
            start_message = self._start_message()
            if self._ending.begun.is_set():
                raise self.death()
            self._worker = worker = Worker(self.blueprint.identity, self._options)
            self._tasks.start_soon(worker.watch, self._has_exited)
            where = f"the process of replica {self.tag}"
            grace_s = self.blueprint.options.cancel_grace_s
            conversation = self._converse(
                Conversation(self, where, worker.sockets, grace_s, codec=worker.codec)
            )
            self._run_beside(worker.stdout.read)
            self._run_beside(worker.stderr.read)
            with anyio.move_on_after(timeout_s):
                description = await self._started(conversation, start_message)
                if self._options.max_memory_bytes is not None:
                    limit = 2 * self._options.max_memory_bytes
                    self._run_beside(self._watch_memory, worker, conversation, limit)
                return description
            self.kill(f"it was not ready within {timeout_s:g} s (start_timeout_s)")
            with anyio.CancelScope(shield=True):
                await worker.ended.wait()
            raise self.death()
        except Exception as error:
            how = str(error)
            if not isinstance(error, ReplicaDied):
                how = f"replica {self.tag} can't be started: {type(error).__name__}: {error}"
                how += constructor_hint(error)
                if self._worker is not None:
                    self._worker.stderr.read_available()  # it was written before the answer
                    how += self._worker.last_words()
            # The frames of its traceback would keep the worker's objects alive with the error.
            raise ReplicaNotStarted(how) from error.with_traceback(None)

    async def _close(self) -> None:
        assert self._worker is not None
        await self._close_code(self._worker.ended)

    async def _leave(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            with anyio.CancelScope(shield=True):
                await self._worker.ended.wait()

    async def _release(self) -> None:
        if self._worker is not None:
            self._worker.close()

    def _has_exited(self) -> None:
        assert self._worker is not None
        self._ending.die_unasked(self._worker.how_it_ended())
        if self._conversation is not None:
            self._conversation.end()

    async def _watch_memory(self, worker: Worker, conversation: Conversation, limit: int) -> None:
        while True:
            await conversation.at_work.wait()
            conversation.at_work = anyio.Event()
            while not conversation.is_idle:
                await anyio.sleep(_MEMORY_PERIOD_S)
                used = worker.memory_bytes() or 0
                if used > limit:
                    self.kill(
                        f"its work took it to {used:,} bytes of memory, more than twice "
                        f"max_memory_bytes={limit // 2:,}"
                    )
                    return
