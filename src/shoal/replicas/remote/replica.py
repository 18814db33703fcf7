"""A replica that is a backend of another Shoal server, the model server.

The code is described by the model server, and is never imported here. The model server puts the
items of all servers that forward batches to it into one queue, and forms batches of its own. So a
batch of this server is only one message: its items may run in several batches over there.

If the connection is lost, work under way raises `ReplicaDied`, and the supervisor connects again.
A model server that is shutting down says so: then no further work is sent, and the work under way
finishes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio

from shoal.core.addresses import model_server_address
from shoal.errors import NotAllowed, ReplicaDied, ReplicaNotStarted
from shoal.replicas.contract import Replica
from shoal.replicas.process.calls import Conversation
from shoal.replicas.process.conversing import ConversingReplica
from shoal.replicas.process.wire.frames import STEPS_AHEAD, FrameKind, FrameReader
from shoal.replicas.process.wire.messages import unpickled
from shoal.replicas.remote.handshake import token_in
from shoal.replicas.remote.keep_alive import MOST_BYTES, check_size, keep_alive
from shoal.replicas.remote.sockets import connect

if TYPE_CHECKING:
    from shoal.replicas.code.instance import Description
    from shoal.replicas.contract import Blueprint
    from shoal.replicas.process.wire.frames import Frame
    from shoal.replicas.process.wire.messages import Message

_ANSWERS: Final = frozenset({FrameKind.RESULT, FrameKind.PART, FrameKind.ERROR, FrameKind.END})


class RemoteReplica(ConversingReplica):
    takes_open_batches: ClassVar = False
    run_open = Replica.run_open
    open_binding = Replica.open_binding
    _forms_batches: ClassVar = True

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self._address = model_server_address("the address of a model server", blueprint.address)
        # Why the model server takes no more work, once it has said so.
        self._draining: str | None = None

    @property
    def takes_work(self) -> bool:
        return super().takes_work and self._draining is None

    def kill(self, reason: str) -> None:
        """Ends all work, even while the conversation starts."""
        why = self._draining or reason
        self._ending.die(f"lost the model server at {self._address}: {why}")
        if self._conversation is not None:
            self._conversation.end()

    async def check_health(self) -> None:
        await self._working().ask_beside(FrameKind.HEALTH)

    def drain(self) -> None:
        """Does nothing: the backend of the model server does not shut down."""

    async def _start(self) -> Description:
        limit_s = self.blueprint.options.start_timeout_s
        try:
            with anyio.move_on_after(limit_s):
                if self._ending.begun.is_set():
                    raise self.death()
                return await self._described(await self._connected())
        except ReplicaNotStarted:
            raise
        except Exception as error:
            how = str(error)
            if not isinstance(error, ReplicaDied):
                how = f"the model server at {self._address}: {type(error).__name__}: {error}"
            # The frames of its traceback would keep the connection alive with the error.
            raise ReplicaNotStarted(how) from error.with_traceback(None)
        raise ReplicaNotStarted(
            f"the model server at {self._address} did not describe the backend within "
            f"{limit_s:g} s (start_timeout_s)"
        )

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

    async def _described(self, sock: Any) -> Description:
        reader: FrameReader = FrameReader(most_bytes=MOST_BYTES)
        where = f"the model server at {self._address}"
        grace_s = self.blueprint.options.cancel_grace_s
        conversation = self._converse(
            Conversation(self, where, [sock, sock], grace_s, reader=reader)
        )
        self._run_beside(self._read, conversation)
        self._run_beside(keep_alive, conversation.data, self.kill)
        if self._ending.begun.is_set():  # while it connected
            raise self.death()
        return await self._started(conversation, (self.blueprint.identity.backend, self.tag))

    async def _leave(self) -> None:
        if self._conversation is not None:
            self._conversation.end()

    async def _read(self, conversation: Conversation) -> None:
        """Passes on what the model server sends, until the connection ends."""

        def handle(frame: Frame) -> None:
            if frame.kind in _ANSWERS:
                if conversation.frames_ahead(frame.id) > STEPS_AHEAD:
                    raise ValueError("more steps than were asked for")
                conversation.handle(frame)
            elif frame.kind is FrameKind.DRAIN:
                # It says why if that was not planned.
                self.is_leaving = not frame.body
                self._draining = str(unpickled(frame.body)) if frame.body else "it is shutting down"
                conversation.on_idle = self._end_drained
                if self._description is None or conversation.is_idle:
                    self._end_drained()
            elif frame.kind is not FrameKind.PING:
                raise ValueError(f"an unexpected {frame.kind.name}")

        try:
            conversation.data.read_available(handle)  # what TLS has decrypted already
            await conversation.data.read_by_loop(handle)
        finally:
            if not self._ending.begun.is_set():
                self.kill(conversation.data.failure or "its connection was closed")

    def _end_drained(self) -> None:
        self.kill("it has no more work")

    def _working(self) -> Conversation:
        if self._draining is not None and not self._ending.begun.is_set():
            how = "takes no more work: its model server is shutting down"
            raise ReplicaDied(f"{self.tag} {how}", replica=self.tag)
        return super()._working()

    def _packed(self, conversation: Conversation, method: str, items: list[Any]) -> Message:
        message = super()._packed(conversation, method, items)
        check_size(message, "the items of a batch")
        return message
