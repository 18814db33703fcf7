"""What the server of this package offers an application that it calls itself.

ASGI has an application wait in a task until its answer is complete. With a direct call the
application may return while the call that it has made waits in a batch, and is resumed at its end.
So one task serves many requests, and none is switched to for a request alone. An application that
is called through other code, such as middleware, can't do so, since that code takes its return for
the end of the answer; see `direct_call_of`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import Scope, Send


class DirectCall(Protocol):
    """A call of the application by the server; `send` of ASGI is a method of the same object."""

    is_direct_call: Literal[True]

    @property
    def application(self) -> object:
        """What the server calls."""
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

    def heartbeat(self, after_s: float, data: bytes) -> None:
        """Sends data whenever the answer was silent for a time; as in the extension of ASGI."""
        ...

    def suspend(self, scope: Scope, resume: Callable[[], Awaitable[None]]) -> None:
        """Lets the application return before its answer, which it gives when it is resumed.

        Args:
            scope: The scope of the call.
            resume: Awaited once, after `resume` was called.
        """
        ...

    def resume(self) -> None:
        """Goes on with a call that was suspended, soon; does nothing with another one."""
        ...

    def put(self, data: bytes) -> bool:
        """Sends a part of a body at once, which has begun and is not complete.

        Returns:
            Whether it was sent. It is not if an earlier part waits for the client.
        """
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


def direct_call_of(send: Send, application: object) -> DirectCall | None:
    """Returns the server's call if nothing is between the server and an application; else None.

    Args:
        send: The ASGI callable that the application was called with.
        application: The application. One that only passes calls to it has it as a property
            ``passes_to``.
    """
    call: Any = getattr(send, "__self__", None)
    if not hasattr(call, "is_direct_call"):
        return None
    called: Any = call.application
    # A wrapper that is an object may have all attributes of what it wraps; its class does not.
    kind: Any = type(called)  # pyright: ignore[reportUnknownVariableType] (any class)
    if called is application or (hasattr(kind, "passes_to") and called.passes_to is application):
        direct: DirectCall = call
        return direct
    return None
