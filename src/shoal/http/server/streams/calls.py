"""The calls of the application on one connection that speaks HTTP/2 or WebSocket.

What Hypercorn's protocols use as their task group: they start calls and tasks by it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import anyio.lowlevel
from hypercorn.protocol.events import Data, StreamClosed
from hypercorn.protocol.http_stream import ASGIHTTPState
from hypercorn.protocol.ws_stream import ASGIWebsocketState
from wsproto.connection import ConnectionState

from shoal.http.direct_call import TRACE
from shoal.http.server.access_log import AccessLog
from shoal.http.server.http1.bad_request import BadRequest
from shoal.http.server.log_errors import contained
from shoal.http.server.streams.frames import text_frames
from shoal.http.server.streams.inbox import Inbox
from shoal.observe.connections import SERVER

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from anyio.abc import TaskGroup
    from hypercorn.config import Config
    from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, Scope
    from starlette.types import Receive, Send
    from starlette.types import Scope as AppScope

    from shoal.http.server.shared import Shared
    from shoal.http.server.streams.outlet import Outlet

# A client that opens streams and resets them at once leaves calls that have not noticed the reset.
_CALLS_PER_STREAM: Final = 2
_FAILED: Final = "the application failed on %r"
_NOT_BEGUN: Final = frozenset({ASGIHTTPState.REQUEST, ASGIWebsocketState.HANDSHAKE})


class StreamCalls:
    """The calls of the application on one connection.

    Args:
        shared: The state of the address.
        tasks: The tasks of the connection.
        ended: Called when a call has ended, or a stream in place of its call.
        failed: Called, before that, if what it raised must not be suppressed.
        gave_up: Called when a body has not come in time.
    """

    def __init__(
        self,
        shared: Shared,
        tasks: TaskGroup,
        ended: Callable[[], object],
        failed: Callable[[], object],
        gave_up: Callable[[], object],
    ) -> None:
        self._shared = shared
        self._tasks = tasks
        self._ended = ended
        self._failed = failed
        self._gave_up = gave_up
        # Those that are running, each with its stream.
        self._running: dict[Inbox, Any] = {}

    # The two methods that Hypercorn's protocols call.

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Starts one call of the application; returns the function that passes it messages."""
        if len(self._running) >= _CALLS_PER_STREAM * config.h2_max_concurrent_streams:
            raise RuntimeError(f"{len(self._running)} calls are running on one connection")
        inbox = Inbox(scope["type"], config.max_app_queue_size)
        stream: Any = getattr(send, "__self__", None)
        if self._shared.guard is not None:
            try:
                request = cast("AppScope", scope)
                self._shared.guard.check_headers(request.get("method", ""), request["headers"])
            except BadRequest as error:
                inbox.close()
                self.spawn(self._refuse, stream, error.status)
                return inbox.put
        self._running[inbox] = stream
        if inbox.kind == "http":
            give_up = partial(self.spawn, self._end, stream, inbox, 408)
            inbox.await_body(self._shared, give_up)
        self.spawn(self._call, scope, stream, inbox, send)
        return inbox.put

    def spawn(self, func: Callable[..., Coroutine[Any, Any, object]], *args: Any) -> None:
        """Starts a task for the protocol."""
        self._tasks.start_soon(func, *args)

    # The connection's side.

    def client_ended(self) -> None:
        """Tells the calls that the client has ended its side.

        At once, since the reader may wait for one of them to read its body. WebSockets are told in
        their turn, after the messages that came before.
        """
        for inbox in tuple(self._running):
            if inbox.kind == "http":
                inbox.disconnect()

    def disconnect(self) -> None:
        """Tells the calls that the client is gone; the protocol skips those it has refused."""
        for inbox in tuple(self._running):
            inbox.disconnect()

    def end_early(self) -> None:
        """Asks the calls for the end of their answers; answers 503 where one can't be asked."""
        for inbox, stream in tuple(self._running.items()):
            if not inbox.end_early() and not _has_begun(stream):
                self.spawn(self._end, stream, inbox, 503)

    def drain(self) -> None:
        """Tells those WebSockets that the server ends whose application closes them itself."""
        for stream in tuple(self._running.values()):
            tell = getattr(stream, "when_draining", None)
            if tell is not None:
                tell()

    def _when_draining(self, stream: Any, callback: Callable[[], object] | None) -> None:
        """Has the application close a WebSocket itself once the server ends.

        Args:
            stream: The WebSocket.
            callback: Called then, at once if the server ends already; None for none.
        """
        stream.when_draining = callback
        if callback is not None and self._shared.is_draining:
            callback()

    async def _refuse(self, stream: Any, status: int) -> None:
        """Answers a stream without calling the application."""
        await stream._send_error_response(status)
        await self._close(stream)

    def refuse(self, stream: Any, status: int) -> None:
        """Ends a stream whose request turned out to be malformed; see `_end`."""
        for inbox, running in tuple(self._running.items()):
            if running is stream and not stream.closed:
                stream.closed = True  # the end of the body may have come, too
                self.spawn(self._end_closed, stream, inbox, status)

    async def _end(self, stream: Any, inbox: Inbox, status: int) -> None:
        """Ends a stream in place of the application, with an error unless it has answered."""
        if not stream.closed:
            stream.closed = True
            await self._end_closed(stream, inbox, status)

    async def _end_closed(self, stream: Any, inbox: Inbox, status: int) -> None:
        if not _has_begun(stream):
            inbox.refused_with = status
        if status == 408:
            self._gave_up()
        inbox.disconnect()
        if _has_begun(stream):
            await self._close(stream)
        else:
            await self._refuse(stream, status)

    async def _close(self, stream: Any) -> None:
        await stream.send(StreamClosed(stream_id=stream.stream_id))
        self._ended()  # of the two, the stream may end after the call

    async def _call(
        self,
        scope: Scope,
        stream: Any,
        inbox: Inbox,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> None:
        app_scope = cast("AppScope", scope)
        has_ended = False

        async def send_or_stop(message: ASGISendEvent) -> None:
            # A send can be cancelled here only, before it has changed any state. A send that is
            # dropped is still a checkpoint, so that an endless stream does not block the loop.
            if inbox.is_over or has_ended:
                await anyio.lowlevel.checkpoint()
            else:
                await anyio.lowlevel.checkpoint_if_cancelled()
            # The rest is of a task that the application has left behind, or after an error.
            if not (has_ended or inbox.refused_with):
                await send(message)

        if self._shared.proxies is not None:
            self._shared.proxies.complete(app_scope)
        offered: dict[str, Any] = {
            "when_left": inbox.when_left,
            "is_cut_off": inbox.is_cut_off,
            "refused_with": partial(getattr, inbox, "refused_with"),
            "send_timeout_s": self._shared.send_timeout_s,
            "is_local": self._shared.is_local,
            # Where the access log looks; the application may have been given a copy.
            "note_trace": partial(app_scope.__setitem__, TRACE),
        }
        app_scope["extensions"]["shoal.disconnect"] = offered
        app_scope["extensions"][SERVER] = self._shared.counts
        if scope["type"] == "websocket":
            offered["when_draining"] = partial(self._when_draining, stream)
            offered["when_received"] = inbox.when_received
            offered["send_texts"] = partial(_send_texts, stream)
            outlet: Outlet | None = getattr(stream, "outlet", None)
            if outlet is not None:
                offered["soon"] = outlet.soon
                offered["is_blocked"] = outlet.is_blocked
                offered["send_texts_now"] = partial(_send_texts_now, stream, outlet)
        app = self._shared.app
        if self._shared.options.access_log:
            app = AccessLog(app, lambda: inbox.is_over)
        self._shared.started += 1
        try:
            try:
                # The raw path is printable ASCII, so it can't forge a line of the log.
                path = app_scope.get("raw_path")
                with contained(_FAILED, path, has_left=partial(_was_left, stream, inbox)):
                    receive, send_it = cast("Receive", inbox.receive), cast("Send", send_or_stop)
                    await app(app_scope, receive, send_it)
            except BaseException:
                # The server is cancelled: the client must not be told that the call failed.
                self._failed()
                raise
            finally:
                has_ended = True
                inbox.close()
                offered.clear()  # the stream has the scope
                stream.when_draining = None
                if inbox.is_cut_off() and not _has_begun(stream):
                    await self._end(stream, inbox, 503)
                await send(None)
        finally:
            del self._running[inbox]
            self._shared.finished += 1
            self._ended()


def _was_left(stream: Any, inbox: Inbox) -> bool:
    """Returns whether a client has left before the end of its answer."""
    return inbox.is_over and stream.state is not ASGIHTTPState.CLOSED


async def _send_texts(stream: Any, texts: Iterable[bytes]) -> None:
    """Sends messages on a WebSocket that is accepted, all at once."""
    # Before any state has changed; also where all is dropped.
    await anyio.lowlevel.checkpoint_if_cancelled()
    if _takes_messages(stream):
        await stream.send(Data(stream_id=stream.stream_id, data=text_frames(texts)))
    else:
        await anyio.lowlevel.checkpoint()


def _send_texts_now(stream: Any, outlet: Outlet, texts: Iterable[bytes]) -> None:
    """Sends messages on a WebSocket whose outlet is not blocked, all at once."""
    if _takes_messages(stream):
        outlet.send_now(text_frames(texts))


def _takes_messages(stream: Any) -> bool:
    return (
        not stream.closed
        and stream.state is ASGIWebsocketState.CONNECTED
        and stream.connection.state is ConnectionState.OPEN
    )


def _has_begun(stream: Any) -> bool:
    """Returns whether the application has begun to answer; its answer may be under way yet."""
    return stream.state not in _NOT_BEGUN or hasattr(stream, "response")
