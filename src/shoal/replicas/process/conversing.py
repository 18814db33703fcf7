"""What replicas outside of this process share: their work is a conversation."""

from __future__ import annotations

import logging
from abc import abstractmethod
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio

from shoal.batching.current import running_batch
from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.replicas.code.definition import split_import_path
from shoal.replicas.contract import Blueprint, Replica
from shoal.replicas.process.wire.batch import batch_as_data
from shoal.replicas.process.wire.frames import FrameKind
from shoal.replicas.process.wire.messages import Message, packed
from shoal.replicas.process.wire.start import received, why_unsendable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from shoal.batching.handlers.binding import Binding
    from shoal.batching.open_batch import OpenBatch
    from shoal.replicas.code.instance import Description
    from shoal.replicas.process.calls import Conversation

logger: Final = logging.getLogger("shoal.replicas")

CLOSING_S: Final = 4.0
"""How long a stopped replica may take to close its code, in addition to ``cancel_grace_s``."""


class ConversingReplica(Replica):
    takes_open_batches: ClassVar = True

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self._conversation: Conversation | None = None
        self._description: Description | None = None
        self._is_stopped = False
        self._reason: str | None = None  # why it was killed or is ending
        self._to_end = anyio.Event()  # set when it has ended or must end

    def stop(self) -> None:
        self._is_stopped = True
        self._to_end.set()

    def kill(self, reason: str | None = None) -> None:
        self._reason = self._reason or reason
        self._to_end.set()

    @abstractmethod
    def _death(self) -> ReplicaDied | None:
        """Returns the error for work, once the other end is gone or takes no more."""

    async def run(self, method: str, items: list[Any]) -> Any:
        conversation = self._working()
        message = self._packed(conversation, method, items)
        return await conversation.ask(FrameKind.RUN, message)

    async def run_stream(self, method: str, items: list[Any]) -> AsyncGenerator[Any, None]:
        conversation = self._working()
        message = self._packed(conversation, method, items)
        async with aclosing(conversation.ask_steps(message)) as steps:
            async for step in steps:
                yield step

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

    def _check_not_ended(self) -> None:
        reason = self._reason or ("it was stopped" if self._is_stopped else None)
        if reason is not None:
            raise ReplicaNotStarted(f"replica {self.tag} was not started: {reason}")

    async def _started(self, conversation: Conversation, message: tuple[Any, ...]) -> Description:
        """Starts the code, and raises its error."""
        description: Description = await conversation.ask(FrameKind.START, packed(message))
        path = self.blueprint.definition.import_path
        return received(description, path and split_import_path(path)[0])

    async def _close_code(self, conversation: Conversation, ended: anyio.Event) -> None:
        """Closes the code, and waits until its end, for some seconds at most."""
        conversation.close_worker()
        limit_s = self.blueprint.options.cancel_grace_s + CLOSING_S
        with anyio.move_on_after(limit_s):
            await ended.wait()
        if not ended.is_set():
            logger.warning("%s had not closed %g s after it was asked to", self.tag, limit_s)

    def _working(self) -> Conversation:
        death = self._death()
        try:
            if death is not None:
                raise death
        finally:
            del death  # its traceback holds this frame
        conversation = self._conversation
        if conversation is None or self._description is None or self._is_stopped:
            how = "was stopped" if self._is_stopped else "is not ready"
            raise ReplicaDied(f"replica {self.tag} {how}", replica=self.tag)
        return conversation

    def _packed(self, conversation: Conversation, method: str, items: list[Any]) -> Message:
        batch = running_batch.get(None)
        data = None if batch is None else batch_as_data(batch, anyio.current_time())
        dumps = conversation.dumps
        try:
            return packed((method, items, data), dumps=dumps)
        except Exception as error:
            raise why_unsendable("item {nth} of the batch", items, error, dumps) from error
