"""The keywords of the client's functions, typed for those that pass them on."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    import httpx

    from shoal.core.request import Request
    from shoal.http_client.bodies import ResultType
    from shoal.http_client.retries import RetryOptions


class ConnectKeywords(TypedDict, total=False):
    """The keywords of `shoal.http_client.connect`, which documents them."""

    token: str | None
    headers: Mapping[str, str] | None
    timeout_s: float | None
    retries: RetryOptions | None
    max_answer_bytes: int
    max_connections: int | None
    tls: ssl.SSLContext | None
    transport: httpx.AsyncBaseTransport | None


class StreamKeywords(TypedDict, total=False):
    """The keywords of `HttpClient.stream`, which documents them."""

    timeout_s: float | None
    headers: Mapping[str, str] | None
    method: str | None
    request: Request | None


class CallKeywords(StreamKeywords, total=False):
    """The keywords of `HttpClient.call`, which documents them."""

    result: ResultType | None


class SocketKeywords(TypedDict, total=False):
    """The keywords of `HttpClient.websocket`, which documents them."""

    headers: Mapping[str, str] | None
    max_requests: int
    request: Request | None


class SocketCallKeywords(TypedDict, total=False):
    """The keywords of `HttpSocket.call` and `HttpSocket.stream`, which document them."""

    timeout_s: float | None
    priority: int | None
