"""The HTTP of a remote client: requests of the admin API, and the errors that it reports.

Requests are never retried: an operator should see that a server refuses a verb.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from shoal.batching.current import trace_headers
from shoal.core.options.option import checked_token, seconds
from shoal.errors import ItemTooLarge, NotAllowed
from shoal.http_client.bodies import JSON, JSON_LINES, PROBLEM
from shoal.http_client.connection import SILENCE_S, Connection, StreamingAnswer, server_of
from shoal.serving.clients.wire import WireError, error_from_wire, written

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx


API: Final = "/-/api"

_FEED: Final = "/-/dashboard/feed"
# The feed has four messages a second.
_FEED_SILENCE_S: Final = 10.0

# How much longer than its time limit the client waits for a call, since the server reports it.
_MARGIN_S: Final = 10.0

# Refusals by the admin API itself, for which `KINDS` has no class.
_REFUSALS: Final[Mapping[str, type[Exception]]] = {
    "wrong-token": NotAllowed,
    "cross-origin": NotAllowed,
    "misdirected": NotAllowed,
    "body-too-large": ItemTooLarge,
    "invalid-json": ValueError,
}


class AdminConnection:
    def __init__(
        self,
        url: str,
        token: str | None,
        timeout_s: float | None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._timeout_s = None if timeout_s is None else seconds("timeout_s", timeout_s)
        headers = {"accept": JSON}
        if token is not None:
            headers["authorization"] = f"Bearer {checked_token(token)}"
        self._server = server_of(url)
        self.pool = Connection([url], headers, transport=transport)

    @property
    def url(self) -> str:
        return self.pool.url

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        return await self._ask(method, path, body, self._timeout_s)

    async def call(self, path: str, body: Any, timeout_s: float | None) -> Any:
        patience_s = None if timeout_s is None else timeout_s + _MARGIN_S
        return await self._ask("POST", path, body, patience_s)

    async def open_stream(self, path: str, body: Any) -> StreamingAnswer:
        """Makes a call that returns a stream; the caller must close the answer."""
        answer = await self._open("POST", path, body, SILENCE_S, {"accept": JSON_LINES})
        if answer.is_success:
            return answer
        raise self.error_of(answer.status, _parsed(answer, await answer.read()))

    async def open_feed(self) -> StreamingAnswer:
        """Opens the feed of the dashboard; the caller must close the answer."""
        headers = {"accept": "text/event-stream"}
        answer = await self.pool.open(self._server, "GET", _FEED, headers, None, _FEED_SILENCE_S)
        if answer.is_success:
            return answer
        body = _parsed(answer, await answer.read())
        if answer.status == 404:
            raise ConnectionError(
                f"there is no dashboard at {self.url}: the admin API is off without a token, or "
                "this is not a Shoal server of this version"
            )
        raise self.error_of(answer.status, body)

    def error_of(self, status: int, body: Any) -> Exception:
        problem = cast("Mapping[str, Any]", body if isinstance(body, dict) else {})
        kind = str(problem.get("type", "")).removeprefix(PROBLEM)
        text = str(problem.get("detail") or problem.get("title") or f"status {status}")
        if kind in _REFUSALS:
            return _REFUSALS[kind](text)
        error = error_from_wire(WireError(kind, text, problem))
        if error is not None:
            return error
        if status == 404:
            return ConnectionError(
                f"there is no admin API at {self.url}: start the server with --admin-socket or "
                "--token-file, or check that this is a Shoal server"
            )
        return RuntimeError(f"{self.url} answered {status}: {text}")

    async def _ask(self, method: str, path: str, body: Any, patience_s: float | None) -> Any:
        # httpx limits only the time in which nothing comes.
        with anyio.move_on_after(patience_s):
            answer = await self._open(method, path, body, patience_s, {})
            parsed = _parsed(answer, await answer.read())
            if answer.is_success:
                return parsed
            raise self.error_of(answer.status, parsed)
        raise TimeoutError(f"{self.url} took too long; the request may still be carried out")

    async def _open(
        self,
        method: str,
        path: str,
        body: Any,
        patience_s: float | None,
        headers: Mapping[str, str],
    ) -> StreamingAnswer:
        content = None
        headers = {**trace_headers(), **headers}
        if body is not None:
            content = written(body)
            headers = {**headers, "content-type": JSON}
        path = f"{API}/{path}"
        return await self.pool.open(self._server, method, path, headers, content, patience_s)


def _parsed(answer: StreamingAnswer, body: bytes) -> Any:
    """Returns an empty mapping for an error response without JSON."""
    try:
        parsed: Any = json.loads(body)
    except (ValueError, RecursionError):
        if answer.is_success:
            raise ConnectionError(
                f"{answer.url} did not answer with JSON: it is not Shoal's admin API"
            ) from None
        return dict[str, Any]()
    return parsed
