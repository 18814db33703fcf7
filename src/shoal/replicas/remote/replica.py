"""A replica that is a backend of another Shoal server, the model server.

The code is described by the model server, and is never imported here. The model server puts the
items of all servers that forward batches to it into one queue, and forms batches of its own. So a
batch of this server is only one message: its items may run in several batches over there.

If the connection is lost, work under way raises `ReplicaDied`, and the supervisor connects again.
A model server that is shutting down says so: then no further work is sent, and the work under way
finishes.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio

from shoal.batching.current import running_batch
from shoal.core.addresses import model_server_address
from shoal.errors import NotAllowed, ReplicaDied, ReplicaNotStarted
from shoal.failures.exceptions import ungrouped
from shoal.replicas.contract import Replica
from shoal.replicas.process.calls import Conversation
from shoal.replicas.process.conversing import ConversingReplica
from shoal.replicas.process.wire.frames import STEPS_AHEAD, FrameKind, FrameReader
from shoal.replicas.process.wire.messages import unpickled
from shoal.replicas.remote.handshake import token_in
from shoal.replicas.remote.keep_alive import MOST_BYTES, check_size, keep_alive
from shoal.replicas.remote.sockets import connect
from shoal.replicas.scopes import Beside

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from anyio.abc import TaskStatus

    from shoal.replicas.code.instance import Description
    from shoal.replicas.contract import Blueprint
    from shoal.replicas.process.wire.frames import Frame
    from shoal.replicas.process.wire.messages import Message
    from shoal.replicas.process.wire.shared_memory import SharedMemory

_ANSWERS: Final = frozenset({FrameKind.RESULT, FrameKind.PART, FrameKind.ERROR, FrameKind.END})


class RemoteReplica(ConversingReplica):
    """It is also the `Peer` of its conversation: the model server, as far as this end knows."""

    takes_open_batches: ClassVar = False
    run_open = Replica.run_open
    open_binding = Replica.open_binding
    shared_memory: SharedMemory | None = None

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self._address = model_server_address("the address of a model server", blueprint.address)
        self.reader: FrameReader = FrameReader(most_bytes=MOST_BYTES)
        self.sockets: Sequence[Any] = ()
        self._is_draining = False
        self._under_way = 0

    @property
    def takes_work(self) -> bool:
        return not (self._is_stopped or self._is_draining or self._to_end.is_set())

    async def serve(self, *, task_status: TaskStatus[Description]) -> None:
        limit_s = self.blueprint.options.start_timeout_s
        with anyio.move_on_after(limit_s) as starting:
            self._check_not_ended()
            self.sockets = [await self._connected()] * 2
            await self._serve(starting, task_status)
        if starting.cancelled_caught and self._description is None:
            raise ReplicaNotStarted(
                f"the model server at {self._address} did not describe the backend within "
                f"{limit_s:g} s (start_timeout_s)"
            )

    async def run(self, method: str, items: list[Any]) -> Any:
        conversation = self._working()
        self._under_way += 1
        try:
            message = self._packed(conversation, method, items)
            return await conversation.ask(FrameKind.RUN, message, running_batch.get(None))
        finally:
            self._ended_one()

    async def run_stream(self, method: str, items: list[Any]) -> AsyncGenerator[Any, None]:
        self._under_way += 1
        try:
            async with aclosing(super().run_stream(method, items)) as steps:
                async for step in steps:
                    yield step
        finally:
            self._ended_one()

    async def check_health(self) -> None:
        await self._working().ask_beside(FrameKind.HEALTH)

    def death(self) -> ReplicaDied:
        why = self._reason or "its connection was closed"
        return ReplicaDied(
            f"replica {self.tag} lost the model server at {self._address}: {why}", replica=self.tag
        )

    def drain(self) -> None:
        """Does nothing: the backend of the model server does not shut down."""

    def _death(self) -> ReplicaDied | None:
        if self._to_end.is_set() and not self._is_stopped:
            return self.death()
        if self._is_draining:
            how = "takes no more work: its model server is shutting down"
            return ReplicaDied(f"replica {self.tag} {how}", replica=self.tag)
        return None

    async def _connected(self) -> Any:
        try:
            path = self.blueprint.placement_options.get("model_server_token_file")
            token = None if path is None else token_in(path)
            if token is None and self._address.scheme != "unix":
                raise NotAllowed("set model_server_token_file: only a UNIX socket needs no token")
            return await connect(self._address, token)
        except OSError as error:
            why = getattr(error, "strerror", None) or error
            raise ReplicaNotStarted(f"can't use the model server at {self._address}: {why}") from (
                error.with_traceback(None)
            )

    async def _serve(
        self, starting: anyio.CancelScope, task_status: TaskStatus[Description]
    ) -> None:
        where = f"the model server at {self._address}"
        conversation = Conversation(self, where, self.blueprint.options.cancel_grace_s)
        self._conversation = conversation
        beside = Beside()
        try:
            async with ungrouped() as tasks:
                tasks.start_soon(beside.run, conversation.data.write)
                tasks.start_soon(beside.run, self._read, conversation)
                tasks.start_soon(beside.run, keep_alive, conversation.data, self.reader, self.kill)
                tasks.start_soon(beside.run, self._end_conversation, conversation)
                try:
                    self._description = await self._start(conversation)
                    starting.deadline = float("inf")
                    task_status.started(self._description)
                    await self._to_end.wait()
                finally:
                    conversation.end()
                    beside.end()
        finally:
            conversation.close()
            self._conversation = None
        if not self._is_stopped or self._reason is not None:
            raise self.death()

    async def _read(self, conversation: Conversation) -> None:
        """Passes on what the model server sends, until the connection ends."""

        def handle(frame: Frame) -> None:
            if frame.kind in _ANSWERS:
                if conversation.frames_ahead(frame.id) > STEPS_AHEAD:
                    raise ValueError("more steps than were asked for")
                conversation.handle(frame)
            elif frame.kind is FrameKind.DRAIN:
                self._is_draining = True
                # It says why if that was not planned.
                self.is_leaving = not frame.body
                why = unpickled(frame.body) if frame.body else "it is shutting down"
                self._reason = self._reason or str(why)
                if not self._under_way:
                    self._to_end.set()
            elif frame.kind is not FrameKind.PING:
                raise ValueError(f"an unexpected {frame.kind.name}")

        try:
            conversation.data.read_available(handle)  # what TLS has decrypted already
            await conversation.data.read_by_loop(handle)
        finally:
            self.kill(conversation.data.failure)

    async def _end_conversation(self, conversation: Conversation) -> None:
        """Ends calls as soon as the connection has ended, even while it starts."""
        await self._to_end.wait()
        if not self._is_stopped or self._description is None:
            conversation.end()

    async def _start(self, conversation: Conversation) -> Description:
        try:
            backend = self.blueprint.identity.backend
            return await self._started(conversation, (backend, self.tag))
        except Exception as error:
            how = str(error)
            if not isinstance(error, ReplicaDied):
                how = f"the model server at {self._address}: {type(error).__name__}: {error}"
            # The frames of its traceback would keep the connection alive with the error.
            raise ReplicaNotStarted(how) from error.with_traceback(None)

    def _ended_one(self) -> None:
        self._under_way -= 1
        if self._is_draining and not self._under_way:
            self._to_end.set()

    def _packed(self, conversation: Conversation, method: str, items: list[Any]) -> Message:
        message = super()._packed(conversation, method, items)
        check_size(message, "the items of a batch")
        return message
