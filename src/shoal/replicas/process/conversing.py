"""What replicas outside of this process share: their life, and their work, a conversation."""

from __future__ import annotations

import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio

from shoal.batching.current import running_batch
from shoal.failures.exceptions import ungrouped
from shoal.replicas.code.definition import split_import_path
from shoal.replicas.contract import Blueprint, Replica
from shoal.replicas.ending import Ending
from shoal.replicas.process.wire.batch import batch_as_data
from shoal.replicas.process.wire.frames import FrameKind
from shoal.replicas.process.wire.messages import Message, packed, packed_parts
from shoal.replicas.process.wire.start import received
from shoal.replicas.scopes import Beside

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from anyio.abc import TaskGroup, TaskStatus

    from shoal.batching.handlers.binding import Binding
    from shoal.batching.open_batch import OpenBatch
    from shoal.errors import ReplicaDied
    from shoal.replicas.code.instance import Description
    from shoal.replicas.process.calls import Conversation

logger: Final = logging.getLogger("shoal.replicas")

CLOSING_S: Final = 4.0
"""How long a stopped replica may take to close its code, in addition to ``cancel_grace_s``."""


class ConversingReplica(Replica):
    """It is also the `Peer` of its conversation: the other end, as far as this one knows."""

    takes_open_batches: ClassVar = True
    _forms_batches: ClassVar = False
    """Whether the other end forms batches of its own, so that callers leave them one by one."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self._ending = Ending(self.tag)
        self._conversation: Conversation | None = None
        self._description: Description | None = None  # None until it is ready
        self._beside = Beside()
        self._tasks: TaskGroup

    @property
    def takes_work(self) -> bool:
        return not self._ending.begun.is_set()

    async def serve(self, *, task_status: TaskStatus[Description]) -> None:
        try:
            async with ungrouped() as self._tasks:
                try:
                    self._description = await self._start()
                    task_status.started(self._description)
                    await self._ending.begun.wait()
                    if self._ending.how is None:
                        await self._close()
                finally:
                    self._ending.die_unasked("has ended")
                    self._beside.end()
                    await self._leave()
        finally:
            if self._conversation is not None:
                # Before its sockets are closed, which the event loop must not watch then. The tasks
                # of its calls have left them.
                self._conversation.close()
                self._conversation = None
            await self._release()
        if self._ending.how is not None:
            raise self.death()

    @abstractmethod
    async def _start(self) -> Description:
        """Starts the code; raises only `ReplicaNotStarted`."""

    async def _close(self) -> None:
        """Closes the code, because the replica was asked to stop."""

    async def _leave(self) -> None:
        """Ends the other end, in any case, before the connections are closed."""

    async def _release(self) -> None:
        """Frees what the replica holds."""

    def stop(self) -> None:
        if self._description is None:
            self.kill("it was stopped before it was ready")
        else:
            self._ending.stop()

    def kill(self, reason: str) -> None:
        self._ending.die(f"was killed: {reason}")

    def death(self) -> ReplicaDied:
        return self._ending.death()

    async def run(self, method: str, items: list[Any]) -> Any:
        conversation = self._working()
        message = self._packed(conversation, method, items)
        batch = running_batch.get(None) if self._forms_batches else None
        return await conversation.ask(FrameKind.RUN, message, batch)

    def run_stream(self, method: str, items: list[Any]) -> AsyncGenerator[Any, None]:
        conversation = self._working()
        return conversation.ask_steps(self._packed(conversation, method, items))

    async def run_open(self, method: str, batch: OpenBatch[Any, Any]) -> None:
        await self._working().ask_open(method, batch)

    def open_binding(self, method: str) -> Binding:
        assert self._description is not None
        return self._description.open_binding(method, self.tag)

    async def reconfigure(self, user_config: Any) -> None:
        await self._working().reconfigure(user_config)

    async def check_health(self) -> None:
        conversation = self._working()
        assert self._description is not None
        asks = self._description.checks_health
        await conversation.ask_beside(FrameKind.HEALTH if asks else FrameKind.PING)

    def drain(self) -> None:
        if self._conversation is not None:
            self._conversation.drain()

    def _run_beside(self, function: Callable[..., Awaitable[object]], *args: Any) -> None:
        """Runs a function in a task of its own until the replica ends."""
        self._tasks.start_soon(self._beside.run, function, *args)

    def _converse(self, conversation: Conversation) -> Conversation:
        """Starts the tasks of a conversation."""
        self._conversation = conversation
        self._run_beside(conversation.data.write)
        if conversation.control is not conversation.data:
            self._run_beside(conversation.control.write)
            self._run_beside(self._read_control, conversation)
            self._run_beside(conversation.calls_out.run, self.on_call_out)
        return conversation

    async def _read_control(self, conversation: Conversation) -> None:
        await conversation.read_control()

    async def _started(self, conversation: Conversation, message: tuple[Any, ...]) -> Description:
        """Starts the code, and raises its error."""
        description: Description = await conversation.ask(FrameKind.START, packed(message))
        path = self.blueprint.definition.import_path
        return received(description, path and split_import_path(path)[0])

    async def _close_code(self, ended: anyio.Event) -> None:
        """Closes the code, and waits until its end, for some seconds at most."""
        assert self._conversation is not None
        self._conversation.close_worker()
        limit_s = self.blueprint.options.cancel_grace_s + CLOSING_S
        with anyio.move_on_after(limit_s):
            await ended.wait()
        if not ended.is_set():
            logger.warning("%s had not closed %g s after it was asked to", self.tag, limit_s)

    def _working(self) -> Conversation:
        if self._ending.begun.is_set() or self._conversation is None or self._description is None:
            raise self.death()
        return self._conversation

    def _packed(self, conversation: Conversation, method: str, items: list[Any]) -> Message:
        batch = running_batch.get(None)
        data = None if batch is None else batch_as_data(batch, anyio.current_time())
        content = method, items, data
        return packed_parts(content, method, "item {} of the batch", items, conversation.dumps)
