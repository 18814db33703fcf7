"""The server's side of ASGI's lifespan protocol.

Stock Hypercorn treats an application that raises during startup as one that does not support the
protocol, and serves it nevertheless. Here an application that received the startup message and then
raised has failed to start. If the lifespan fails later, the failure is logged and the server keeps
running: the application can still answer, and its readiness page reports the problem.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import TYPE_CHECKING, Any

import anyio

from shoal.errors import LifespanFailed
from shoal.failures.exceptions import failure_text

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message

_log = logging.getLogger("shoal.server")


class _Phase(Enum):
    # How an error in it is named.
    NEW = ""  # the application has not received the startup message
    STARTING = "the application did not start"
    RUNNING = "the application's lifespan ended early"
    STOPPING = "the application's shutdown failed"


class AppLifespan:
    def __init__(self, app: ASGIApp) -> None:
        self.state: dict[str, Any] = {}  # the application's ``scope["state"]``
        self.failure: LifespanFailed | None = None
        self._app = app
        self._phase = _Phase.NEW
        self._stop = anyio.Event()
        self._started = anyio.Event()
        self._ended = anyio.Event()

    async def run(self) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self.state,
        }
        try:
            await self._app(scope, self._receive, self._send)
        except Exception as error:
            self._failed(error)
        except BaseExceptionGroup as group:
            failures, passing = group.split(Exception)
            if failures is not None:
                self._failed(failures)
            if passing is not None:
                raise passing from None
        finally:
            self._started.set()
            self._ended.set()

    async def wait_started(self) -> LifespanFailed | None:
        """Waits until the application has started, or has failed; returns its failure."""
        await self._started.wait()
        return self.failure

    async def stop(self, timeout_s: float) -> None:
        """Ends the application; sets `failure` if it fails to end, or does not end in time."""
        self._stop.set()
        with anyio.move_on_after(timeout_s):
            await self._ended.wait()
            return
        self._fail(f"the application did not shut down within {timeout_s:.1f} s", "")

    async def _receive(self) -> Message:
        if self._phase is _Phase.NEW:
            self._phase = _Phase.STARTING
            return {"type": "lifespan.startup"}
        await self._stop.wait()
        if self._phase is not _Phase.STOPPING:
            self._phase = _Phase.STOPPING
            return {"type": "lifespan.shutdown"}
        await anyio.sleep_forever()
        raise AssertionError("never reached")

    async def _send(self, message: Message) -> None:
        match message["type"]:
            case "lifespan.startup.complete":
                self._phase = _Phase.RUNNING
                self._started.set()
            case "lifespan.shutdown.complete":
                self._ended.set()
            case "lifespan.startup.failed":
                self._fail(_Phase.STARTING.value, message.get("message", ""))
                self._started.set()
            case "lifespan.shutdown.failed":
                self._fail(_Phase.STOPPING.value, message.get("message", ""))
            case unknown:
                raise ValueError(f"{unknown!r} is not a message of the lifespan protocol")

    def _failed(self, error: Exception) -> None:
        details = failure_text(error)
        if self._phase is _Phase.NEW:
            _log.debug("the application has no lifespan", exc_info=error)
            return
        if self._phase is _Phase.RUNNING:
            _log.error("the application's lifespan ended early", exc_info=error)
        self._fail(self._phase.value, details)

    def _fail(self, message: str, details: str) -> None:
        # Starlette sends its traceback and then also raises the error.
        if self.failure is None:
            last_line = details.strip().rpartition("\n")[2].strip()
            self.failure = LifespanFailed(
                f"{message}: {last_line}" if last_line else message, details=details
            )
