"""ASGI's lifespan protocol for an application whose lifespan is a context manager."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Final

from shoal.errors import NameTaken, NotAllowed, NotDurable
from shoal.failures.frames import failure_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from starlette.types import Receive, Send

# They say what to change; where they were raised says nothing about that.
_MISTAKES: Final = (NameTaken, NotAllowed, NotDurable)


async def run_lifespan(
    lifespan: Callable[[], AbstractAsyncContextManager[None]], receive: Receive, send: Send
) -> None:
    """Opens and closes an application at the messages of its server."""
    # A failure is reported to the server with the user's frames, unless it is a mistake in a
    # declaration. It is not raised as well: servers would treat that as an application without
    # support for the protocol.
    await receive()
    stage = "startup"
    try:
        async with lifespan():
            await send({"type": "lifespan.startup.complete"})
            stage = "shutdown"
            await receive()
    except Exception as error:
        if isinstance(error, _MISTAKES):
            message = traceback.format_exception_only(error)[-1].rstrip()
        else:
            message = failure_text(error)
        await send({"type": f"lifespan.{stage}.failed", "message": message})
    else:
        await send({"type": "lifespan.shutdown.complete"})
