"""A call of an application, whatever protocol the client speaks, and the task that makes it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio.lowlevel

from shoal.failures.exceptions import must_propagate
from shoal.server.access_log import AccessLogLine
from shoal.server.log_errors import contained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import Message, Receive, Scope, Send

    from shoal.loops.parking import Parking

_log = logging.getLogger("shoal.server")

_LEFT_OPEN: Final = "the application has left a cancel scope open"
# A stream whose client keeps up must not hold the event loop.
SENDS_WITHOUT_CHECKPOINT: Final = 16


class ServedCall(Mapping[str, Any]):
    """A call of an application, and the value of the ASGI extension `DISCONNECT`."""

    # The keys of the extension, each the name of an attribute. The call itself is the mapping, so
    # that a request which does not use the extension creates no object for it.
    offered: Collection[str] = (
        *("when_left", "is_cut_off", "refused_with", "send_timeout_s", "is_local"),
        *("respond", "whole_body"),
    )

    _shared: Any  # the state of the address

    # Most calls change none of these.
    # `is_over`: the client is gone, or was refused; further messages are dropped.
    # `is_complete`: the application has sent its whole response.
    is_over = is_complete = has_begun = False
    # The status that the server has sent in place of the application, and the size of its body.
    refusal = refused_size = 0
    _sends = 0
    _is_cut_off = _has_sent_disconnect = False
    _on_left: Callable[[], object] | None = None
    log: AccessLogLine | None = None  # with an access log only

    def begin_log(self) -> None:
        self.log = AccessLogLine()
        self.offered = (*self.offered, "note_trace")

    def note_trace(self, ids: tuple[str, str]) -> None:
        if self.log is not None:
            self.log.trace_ids = ids

    def write_log(self, scope: Scope) -> None:
        if self.log is not None:
            self.log.note_refusal(self.refusal, self.refused_size)
            self.log.write(scope)

    def when_left(self, callback: Callable[[], object] | None) -> None:
        """Sets a callback for a disconnect, or a call cut off; it must not raise or block."""
        self._on_left = callback
        if (self.is_over or self._is_cut_off) and callback is not None:
            self._on_left = None
            callback()

    def is_cut_off(self) -> bool:
        """Returns whether the server ends, and waits a moment for the response's end."""
        return self._is_cut_off and not self.is_over

    def refused_with(self) -> int:
        return self.refusal

    def whole_body(self, receive: Receive) -> bytes | None:
        """Returns the request's body, in place of `receive`; None if that must be called."""
        return None

    def respond(
        self, send: Send, status: int, headers: list[tuple[bytes, bytes]], body: Any
    ) -> bool:
        """Sends a whole response, in place of `send`; returns False if that must be called."""
        return False

    @property
    def send_timeout_s(self) -> float:
        """How long the client may take to accept a message, in seconds."""
        seconds: float = self._shared.options.send_timeout_s
        return seconds

    @property
    def is_local(self) -> bool:
        """Whether only clients on this machine can reach the server."""
        return bool(self._shared.guard.is_local)

    @property
    def client_disconnected(self) -> bool:
        """Whether the client has disconnected before the end of the response."""
        return self.is_over and not self.is_complete

    def log_failure(self, error: BaseException, path: bytes) -> None:
        """Logs an error of the application; in one line if the client had disconnected before."""
        # Middleware such as Starlette's raises if an application does not answer, but it need not
        # answer a client that has disconnected. The path is as sent: printable ASCII, so it can't
        # forge a line of the log.
        if self.client_disconnected:
            said = "the application failed on %r after its client left: %s"
            _log.info(said, path, type(error).__name__)
        else:
            _log.error("the application failed on %r", path, exc_info=error)

    async def _disconnect(self, message: Message) -> Message:
        """Returns the message for a disconnect; a checkpoint if the application has it already."""
        # An application that ignores the disconnect must not block the event loop.
        if self._has_sent_disconnect:
            await anyio.lowlevel.checkpoint()
        self._has_sent_disconnect = True
        return message

    def ask_to_end(self) -> bool:
        """Asks the application to end its response; returns False if 503 must be the response."""
        if self._is_cut_off or self.is_over:
            return True
        self._is_cut_off = True
        return self._call_back() or self.has_begun

    def _call_back(self) -> bool:
        """Notifies the application; returns False if it has set no callback."""
        on_left, self._on_left = self._on_left, None
        if on_left is None or self.is_complete:
            return False
        with contained("a callback for the client's leaving failed"):
            on_left()
        return True

    # As the mapping.

    def __getitem__(self, name: str) -> Any:
        if name in self.offered:
            return getattr(self, name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.offered)

    def __len__(self) -> int:
        return len(self.offered)

    def __eq__(self, other: object) -> bool:
        return self is other  # not every mapping with equal items

    def __hash__(self) -> int:
        return id(self)


class ServedConnection(Protocol):
    async def run(self) -> bool:
        """Serves some requests; returns False if another task must continue."""
        ...

    def ended(self, *, is_reusable: bool) -> None:
        """Handles the end of the task; with False, another task must continue."""


class TaskState:
    """The state of a task that the application it calls can change."""

    __slots__ = ("_context", "_innermost_scope", "_scope", "waiter")

    waiter: Any  # of the task, if it has waited

    def __init__(self, parking: Parking) -> None:
        self._innermost_scope = parking.innermost_scope()
        self._context, self._scope = copy_context(), self._innermost_scope()

    def is_unchanged(self) -> bool:
        try:
            return copy_context() == self._context and self._innermost_scope() is self._scope
        except Exception:  # two values of a context variable can't be compared
            return False


async def run_contained(connection: ServedConnection, parking: Parking) -> None:
    # An error of the application, a cancellation of its call, or a scope that it leaves open ends
    # no other connection. Errors that end the program or the server propagate.
    failure: BaseException | None = None
    is_reusable = True
    scope = parking.new_scope()
    try:
        with scope:
            try:
                is_reusable = await connection.run()
            except BaseException as error:
                failure = error
                raise
            finally:
                if parking.leave_scopes_in(scope):
                    _log.warning(_LEFT_OPEN)
    except BaseException as error:
        if failure is not None and must_propagate(failure, parking):
            raise failure from failure.__cause__
        with suppress(Exception):  # filters of logs are the user's
            if failure is None:
                _log.warning(_LEFT_OPEN, exc_info=error)
            else:  # for example a cancellation that nobody has requested
                _log.error("the application has ended a connection", exc_info=failure)
    finally:
        del failure  # its traceback holds this frame
        connection.ended(is_reusable=is_reusable)
