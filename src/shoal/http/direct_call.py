"""How the server of this package calls an application of this package: more directly than by ASGI.

ASGI describes a request by a dictionary, and has an application wait in a task until its answer is
complete. An application that is called directly is given the server's own object of the request. It
may return while the call that it has made waits in a batch, and is resumed at its end. So one task
serves many requests, and none is switched to for a request alone.

An application that is called through other code, such as middleware, is called by ASGI, since that
code reads the dictionary, and takes its return for the end of the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from starlette.types import Message, Scope

    from shoal.batching.loops.event_loop import EventLoop

TRACE: Final = "shoal.trace"
"""The key of a scope of ASGI under which the ids of the request's trace and span are."""


class RequestLine(Protocol):
    """What the first line of a request says."""

    @property
    def method(self) -> str:
        """The method."""
        ...

    @property
    def path(self) -> str:
        """The path, decoded."""
        ...


class DirectCall(Protocol):
    """A request that an application is called with."""

    @property
    def loop(self) -> EventLoop:
        """The event loop that the server runs in."""
        ...

    @property
    def now(self) -> Callable[[], float]:
        """The clock for the times of requests."""
        ...

    @property
    def is_loop_time(self) -> bool:
        """Whether that is the clock of the event loop."""
        ...

    @property
    def answered_at(self) -> float:
        """When its whole answer was given by `answer`, on that clock; 0 before, or without that."""
        ...

    @property
    def line(self) -> RequestLine:
        """The request line."""
        ...

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """The headers by their names in lower case; the last one of those with the same name."""
        ...

    @property
    def header_list(self) -> Iterable[tuple[bytes, bytes]]:
        """All headers, with their names in lower case."""
        ...

    def scope(self) -> Scope:
        """Returns a new scope of ASGI."""
        ...

    async def receive(self) -> Message:
        """Receives a message of ASGI."""
        ...

    async def send(self, message: Message) -> None:
        """Sends a message of ASGI."""
        ...

    def whole_body(self) -> bytes | None:
        """Returns the body of the request, once; None if it is to be received in parts."""
        ...

    def when_left(self, callback: Callable[[], object] | None) -> bool:
        """Sets what is called once when the client leaves; as in the extension of ASGI.

        Returns:
            Whether it was called at once.
        """
        ...

    def is_cut_off(self) -> bool:
        """Returns whether the server ends, and waits a moment for the end of the answer."""
        ...

    @property
    def refused_with(self) -> int:
        """The status that the server has answered with in place of the application; 0 for none."""
        ...

    def heartbeat(self, after_s: float, data: bytes) -> None:
        """Sends data whenever the answer was silent for a time; as in the extension of ASGI."""
        ...

    def suspend(self, resume: Callable[[], Awaitable[None] | None]) -> None:
        """Lets the application return before its answer, which it gives when it is resumed.

        Args:
            resume: Called once, after `resume` of this object was called. If it returns something,
                that is awaited.
        """
        ...

    def resume(self) -> None:
        """Goes on with a call that was suspended, soon; does nothing with another one."""
        ...

    @property
    def is_sending(self) -> bool:
        """Whether a part of the answer waits for the client to take it."""
        ...

    def put(self, data: bytes) -> None:
        """Sends a part of a body at once, which has begun and is not complete.

        It must not be called while the call `is_sending`.
        """
        ...

    def note_trace(self, ids: tuple[str, str]) -> None:
        """Notes the ids of the request's trace and span, for the access log."""
        ...

    def answer(self, status: int, fields: bytes, body: bytes) -> None:
        """Sends a whole answer.

        Args:
            status: The status.
            fields: The lines of its header, each with a line break before it. The server adds those
                that delimit the body.
            body: The body; for ``HEAD`` its length is sent only.
        """
        ...


def answerer_of(app: object) -> Callable[[DirectCall], Awaitable[None] | None] | None:
    """Returns what calls an application directly; None if the application must be called by ASGI.

    It is the application's method ``answer_directly``. What it returns is awaited once, unless it
    returns None: then the request is answered, or suspended. A subclass with a ``__call__`` of its
    own is called by that, since it may do more than its base.

    Args:
        app: The application.
    """
    # A wrapper that is an object may have all attributes of what it wraps; its class does not.
    for kind in type(app).__mro__:
        if "answer_directly" in vars(kind):
            application: Any = app
            answerer: Callable[[DirectCall], Awaitable[None] | None] = application.answer_directly
            return answerer
        if "__call__" in vars(kind):
            break
    return None


def refusal_counter_of(app: object) -> Callable[[int, float], object] | None:
    """Returns what counts a request that the server has answered itself; None for nothing.

    It is the application's method ``count_refusal``. It takes the status of the answer, and how
    long the request took, in seconds.

    Args:
        app: The application.
    """
    if not hasattr(type(app), "count_refusal"):
        return None
    application: Any = app
    counter: Callable[[int, float], object] = application.count_refusal
    return counter
