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

The modules: `worker` (the process), `calls` (the calls to it), the package `wire` (the protocol),
and the package `child` (the worker's program).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import anyio

from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.failures.exceptions import ungrouped
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
from shoal.replicas.scopes import Beside

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

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

    @property
    def takes_work(self) -> bool:
        return self._worker is None or not (self._is_stopped or self._worker.was_killed)

    async def serve(self, *, task_status: TaskStatus[Description]) -> None:
        try:
            start_message = self._start_message()
            self._check_not_ended()
            worker = Worker(self.blueprint.identity, self._options)
        except ReplicaNotStarted:
            raise
        except Exception as error:
            raise ReplicaNotStarted(f"replica {self.tag} can't be started: {error}") from error
        where = f"the process of replica {self.tag}"
        conversation = Conversation(worker, where, self.blueprint.options.cancel_grace_s)
        self._worker, self._conversation = worker, conversation
        beside = Beside()
        try:
            async with ungrouped() as tasks:
                tasks.start_soon(worker.watch, self._ended)
                tasks.start_soon(beside.run, worker.stdout.read)
                tasks.start_soon(beside.run, worker.stderr.read)
                tasks.start_soon(beside.run, conversation.read_control)
                tasks.start_soon(beside.run, conversation.calls_out.run, self.on_call_out)
                tasks.start_soon(beside.run, conversation.control.write)
                tasks.start_soon(beside.run, conversation.data.write)
                try:
                    self._description = await self._start(worker, conversation, start_message)
                    if self._options.max_memory_bytes is not None:
                        limit = 2 * self._options.max_memory_bytes
                        tasks.start_soon(
                            beside.run, self._watch_memory, worker, conversation, limit
                        )
                    task_status.started(self._description)
                    await self._live(worker, conversation)
                finally:
                    worker.kill()
                    with anyio.CancelScope(shield=True):
                        await worker.ended.wait()
                    beside.end()
        finally:
            conversation.close()  # first: the event loop must not watch a closed socket
            worker.close()
            self._conversation = None

    def stop(self) -> None:
        super().stop()
        if self._worker is not None and self._description is None:
            self._worker.kill("it was stopped before it was ready")

    def kill(self, reason: str | None = None) -> None:
        super().kill(reason)
        if self._worker is not None:
            self._worker.kill(reason)

    def memory_bytes(self) -> int | None:
        if self._worker is None or self._worker.ended.is_set():
            return None
        return self._worker.memory_bytes()

    def _death(self) -> ReplicaDied | None:
        worker = self._worker
        return worker.death() if worker is not None and worker.ended.is_set() else None

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

    async def _start(
        self, worker: Worker, conversation: Conversation, start_message: StartMessage
    ) -> Description:
        timeout_s = self.blueprint.options.start_timeout_s
        description: Description | None = None
        try:
            with anyio.move_on_after(timeout_s):
                description = await self._started(conversation, start_message)
            if description is None:
                worker.kill(f"it was not ready within {timeout_s:g} s (start_timeout_s)")
                with anyio.CancelScope(shield=True):
                    await worker.ended.wait()
                raise worker.death()
        except Exception as error:
            how = str(error)
            if not isinstance(error, ReplicaDied):
                how = f"replica {self.tag} can't be started: {type(error).__name__}: {error}"
                how += constructor_hint(error)
                worker.stderr.read_available()  # it was written before the answer
                last_lines = worker.stderr.last_lines()
                if last_lines:
                    how = f"{how}; its stderr ended with:\n{last_lines}"
            # The frames of its traceback would keep the worker's objects alive with the error.
            raise ReplicaNotStarted(how) from error.with_traceback(None)
        return description

    async def _live(self, worker: Worker, conversation: Conversation) -> None:
        await self._to_end.wait()
        if self._is_stopped and self._reason is None and not worker.ended.is_set():
            worker.was_stopped = True
            await self._close_code(conversation, worker.ended)
            if self._reason is None:
                return
        await worker.ended.wait()
        raise worker.death()

    def _ended(self) -> None:
        assert self._conversation is not None
        self._conversation.end()
        self._to_end.set()

    async def _watch_memory(self, worker: Worker, conversation: Conversation, limit: int) -> None:
        while True:
            await conversation.at_work.wait()
            conversation.at_work = anyio.Event()
            while not conversation.is_idle:
                await anyio.sleep(_MEMORY_PERIOD_S)
                used = worker.memory_bytes() or 0
                if used > limit:
                    worker.kill(
                        f"its work took it to {used:,} bytes of memory, more than twice "
                        f"max_memory_bytes={limit // 2:,}"
                    )
                    return
