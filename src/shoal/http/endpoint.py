"""One endpoint: a path, methods, and the batcher that answers there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.responses import Response

from shoal.batching.stream import ResultStream
from shoal.core.terms import Wishes
from shoal.errors import NotOpen
from shoal.http.asgi import JSON
from shoal.http.body import read_body
from shoal.http.disconnect import call_of_parts, call_unless_client_leaves
from shoal.http.payload import encoded, reader_for
from shoal.http.problem import Refused, explained, no_such_priority, not_open
from shoal.http.streaming import answer_with_stream

if TYPE_CHECKING:
    from starlette.types import Scope

    from shoal.batching.batcher import Batcher
    from shoal.batching.entry import Entry
    from shoal.core.options import BatchOptions
    from shoal.http.asgi import Exchange
    from shoal.http.settings import HttpSettings
    from shoal.http.sources import Source


class Endpoint:
    """Answers requests with calls of one batcher.

    Attributes:
        name: What to call it in messages and metrics.
        path: Where it is.
        methods: What it answers there.
        source: Where its batcher comes from.
        batcher: Its batcher while the application is open, and after that until it is opened again.
        takes: What it reads from a request, in a word.
    """

    def __init__(
        self,
        name: str,
        path: str,
        methods: tuple[str, ...],
        source: Source,
        settings: HttpSettings,
    ) -> None:
        self.name = name
        self.path = path
        self.methods = methods
        self.source = source
        self.batcher: Batcher[Any] | None = None
        self._settings = settings
        self._reader = reader_for(source.signature)
        self.takes = self._reader.takes

    async def answer(self, exchange: Exchange) -> None:
        """Answers one request.

        Raises:
            ClientLeft: The client is gone, or did not read in time; the call was cancelled.
            Exception: What went wrong before an answer had begun.
        """
        batcher, entry = self._open_batcher()
        body = await read_body(
            exchange.receive,
            exchange.headers.get(b"content-length"),
            self._settings.max_body_bytes,
        )
        item = self._reader.item(exchange, body)
        timeout_s = batcher.options.request_timeout_s
        if timeout_s is None and not self.source.streams:
            timeout_s = self._settings.answer_timeout_s
        wishes = Wishes(
            timeout_s,
            CallMetadata(exchange.request_id, exchange.scope),
            _priority(exchange, batcher.options),
        )
        if self.source.streams:
            await answer_with_stream(
                exchange,
                ResultStream(entry.intake, item, entry.options_of(item, wishes)),
                lambda error: explained(error, self._settings, self.name, exchange.request_id),
                self._settings.heartbeat_s,
            )
            return
        call = call_of_parts if batcher.options.split is not None else call_unless_client_leaves
        result = await call(exchange.receive, entry, item, wishes)
        if isinstance(result, Response):
            await _answer_with_response(exchange, result)
        else:
            await exchange.answer(200, JSON, encoded(result))

    def _open_batcher(self) -> tuple[Batcher[Any], Entry]:
        """Returns the batcher and where its calls enter.

        Raises:
            Refused: The application is not open here.
        """
        batcher = self.batcher
        if batcher is None:
            raise Refused(not_open(self._settings))
        try:
            entry = batcher.find()
        except NotOpen:
            raise Refused(not_open(self._settings)) from None
        return batcher, entry


def _priority(exchange: Exchange, options: BatchOptions) -> int | None:
    """Returns the level that a request asks for in ``X-Priority``; None for the usual one.

    Raises:
        Refused: There is no such level.
    """
    given = exchange.headers.get(b"x-priority")
    if given is None or options.priority_levels == 1:
        return None
    try:
        return options.checked_priority("X-Priority", int(given))
    except ValueError:
        raise Refused(no_such_priority(options.priority_levels)) from None


class CallMetadata(Mapping[str, Any]):
    """What a handler finds in ``request.metadata`` of a call that came over HTTP.

    Its keys are ``request_id``, ``method``, ``path`` and ``headers`` (a Starlette `Headers`).
    """

    __slots__ = ("_request_id", "_scope")

    def __init__(self, request_id: str, scope: Scope) -> None:
        self._request_id = request_id
        self._scope = scope

    def __getitem__(self, key: str) -> Any:
        match key:
            case "request_id":
                return self._request_id
            case "method" | "path":
                return self._scope[key]
            case "headers":
                return Headers(scope=self._scope)
            case _:
                raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(("request_id", "method", "path", "headers"))

    def __len__(self) -> int:
        return 4


async def _answer_with_response(exchange: Exchange, response: Response) -> None:
    """Sends a response that a handler has made: its status, headers and body."""
    body: Any = getattr(response, "body", None)
    if body is None:
        raise TypeError(
            f"a slot held a {type(response).__name__}, which has no body of its own; return a "
            "Response, or write the handler as a generator to stream"
        )
    media_type = response.headers.get("content-type", "").encode("latin-1")
    headers = [
        (n, v) for n, v in response.raw_headers if n not in (b"content-type", b"content-length")
    ]
    await exchange.answer(response.status_code, media_type, bytes(body), headers)
    if response.background is not None:
        await response.background()
