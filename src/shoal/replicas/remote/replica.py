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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.current import running_batch
from shoal.core.addresses import model_server_address
from shoal.errors import NotAllowed, ReplicaDied, ReplicaNotStarted
from shoal.failures.exceptions import ungrouped
from shoal.replicas.code.definition import split_import_path
from shoal.replicas.contract import Replica
from shoal.replicas.process.calls import Conversation
from shoal.replicas.process.wire.connection import FrameConnection
from shoal.replicas.process.wire.frames import STEPS_AHEAD, FrameKind, FrameReader
from shoal.replicas.process.wire.messages import packed, unpickled
from shoal.replicas.process.wire.start import received
from shoal.replicas.remote.calls_as_data import packed_calls
from shoal.replicas.remote.handshake import token_in
from shoal.replicas.remote.keep_alive import MOST_BYTES, keep_alive
from shoal.replicas.remote.sockets import connect
from shoal.replicas.scopes import Beside

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from anyio.abc import TaskStatus

    from shoal.core.addresses import ModelServerAddress
    from shoal.replicas.code.instance import Description
    from shoal.replicas.contract import Blueprint
    from shoal.replicas.process.wire.frames import Frame
    from shoal.replicas.process.wire.shared_memory import SharedMemory

_ANSWERS: Final = frozenset({FrameKind.RESULT, FrameKind.PART, FrameKind.ERROR, FrameKind.END})


@dataclass
class ModelServer:
    tag: str
    address: ModelServerAddress
    socket: Any
    on_killed: Callable[[], object]
    reason: str | None = None
    shared_memory: SharedMemory | None = None

    def __post_init__(self) -> None:
        self.reader: FrameReader = FrameReader(most_bytes=MOST_BYTES)

    def connections(
        self, on_invalid_frame: Callable[[Exception], object]
    ) -> tuple[FrameConnection, FrameConnection]:
        connection = FrameConnection(self.socket, self.reader, on_invalid_frame)
        return connection, connection

    def kill(self, reason: str | None = None) -> None:
        self.reason = self.reason or reason
        self.on_killed()

    def death(self) -> ReplicaDied:
        why = self.reason or "its connection was closed"
        return ReplicaDied(
            f"replica {self.tag} lost the model server at {self.address}: {why}", replica=self.tag
        )


class RemoteReplica(Replica):
    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self._address = model_server_address("the address of a model server", blueprint.address)
        self._server: ModelServer | None = None
        self._conversation: Conversation | None = None
        self._description: Description | None = None
        self._is_stopped = self._is_draining = False
        self._reason: str | None = None
        self._under_way = 0
        self._to_end = anyio.Event()

    @property
    def takes_work(self) -> bool:
        return not (self._is_stopped or self._is_draining or self._to_end.is_set())

    async def serve(self, *, task_status: TaskStatus[Description]) -> None:
        limit_s = self.blueprint.options.start_timeout_s
        with anyio.CancelScope() as starting:
            if limit_s is not None:
                starting.deadline = anyio.current_time() + limit_s
            self._check_not_ended()
            server = await self._connected()
            await self._serve(server, starting, task_status)
        if starting.cancelled_caught and self._description is None:
            raise ReplicaNotStarted(
                f"the model server at {self._address} did not describe the backend within "
                f"{limit_s:g} s (start_timeout_s)"
            )

    def stop(self) -> None:
        self._is_stopped = True
        self._to_end.set()

    def kill(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._to_end.set()
        if self._server is not None:
            self._server.kill(reason)

    async def run(self, method: str, items: list[Any]) -> Any:
        conversation = self._working()
        self._under_way += 1
        try:
            message = packed_calls(method, items)
            return await conversation.ask(FrameKind.RUN, message, running_batch.get(None))
        finally:
            self._ended_one()

    async def run_stream(self, method: str, items: list[Any]) -> AsyncGenerator[Any, None]:
        conversation = self._working()
        self._under_way += 1
        try:
            async with aclosing(conversation.ask_steps(packed_calls(method, items))) as steps:
                async for step in steps:
                    yield step
        finally:
            self._ended_one()

    async def reconfigure(self, user_config: Any) -> None:
        await self._working().reconfigure(user_config)

    async def check_health(self) -> None:
        await self._working().ask_beside(FrameKind.HEALTH)

    def _check_not_ended(self) -> None:
        reason = self._reason or ("it was stopped" if self._is_stopped else None)
        if reason is not None:
            raise ReplicaNotStarted(f"replica {self.tag} was not started: {reason}")

    async def _connected(self) -> ModelServer:
        try:
            path = self.blueprint.placement_options.get("model_server_token_file")
            token = None if path is None else token_in(path)
            if token is None and self._address.scheme != "unix":
                raise NotAllowed("set model_server_token_file: only a UNIX socket needs no token")
            sock = await connect(self._address, token)
        except OSError as error:
            why = getattr(error, "strerror", None) or error
            raise ReplicaNotStarted(f"can't use the model server at {self._address}: {why}") from (
                error.with_traceback(None)
            )
        return ModelServer(self.tag, self._address, sock, self._to_end.set)

    async def _serve(
        self,
        server: ModelServer,
        starting: anyio.CancelScope,
        task_status: TaskStatus[Description],
    ) -> None:
        where = f"the model server at {self._address}"
        conversation = Conversation(server, where, self.blueprint.options.cancel_grace_s)
        connection = conversation.data
        self._server, self._conversation = server, conversation
        beside = Beside()
        try:
            async with ungrouped() as tasks:
                tasks.start_soon(beside.run, connection.write)
                tasks.start_soon(beside.run, self._read, server, conversation)
                tasks.start_soon(beside.run, keep_alive, connection, server.reader, server.kill)
                tasks.start_soon(beside.run, self._end_conversation, conversation)
                try:
                    self._description = await self._start(conversation)
                    starting.deadline = float("inf")
                    task_status.started(self._description)
                    await self._to_end.wait()
                finally:
                    server.reason = server.reason or self._reason
                    conversation.end()
                    beside.end()
        finally:
            conversation.close()
            self._conversation = None
        if not self._is_stopped or server.reason is not None:
            raise server.death()

    async def _read(self, server: ModelServer, conversation: Conversation) -> None:
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
                server.reason = server.reason or str(why)
                if not self._under_way:
                    self._to_end.set()
            elif frame.kind is not FrameKind.PING:
                raise ValueError(f"an unexpected {frame.kind.name}")

        try:
            conversation.data.read_available(handle)  # what TLS has decrypted already
            await conversation.data.read_by_loop(handle)
        finally:
            server.reason = server.reason or conversation.data.failure
            self._to_end.set()

    async def _end_conversation(self, conversation: Conversation) -> None:
        """Ends calls as soon as the connection has ended, even while it starts."""
        await self._to_end.wait()
        if not self._is_stopped or self._description is None:
            conversation.end()

    async def _start(self, conversation: Conversation) -> Description:
        blueprint = self.blueprint
        try:
            start = packed((blueprint.identity.backend, self.tag))
            description: Description = await conversation.ask(FrameKind.START, start)
        except Exception as error:
            how = str(error)
            if not isinstance(error, ReplicaDied):
                how = f"the model server at {self._address}: {type(error).__name__}: {error}"
            # The frames of its traceback would keep the connection alive with the error.
            raise ReplicaNotStarted(how) from error.with_traceback(None)
        path = blueprint.definition.import_path
        return received(description, path and split_import_path(path)[0])

    def _working(self) -> Conversation:
        conversation = self._conversation
        if conversation is not None and self._description is not None and self.takes_work:
            return conversation
        if self._server is not None and self._to_end.is_set() and not self._is_stopped:
            raise self._server.death()
        how = "was stopped" if self._is_stopped else "is not ready"
        if self._is_draining:
            how = "takes no more work: its model server is shutting down"
        raise ReplicaDied(f"replica {self.tag} {how}", replica=self.tag)

    def _ended_one(self) -> None:
        self._under_way -= 1
        if self._is_draining and not self._under_way:
            self._to_end.set()
