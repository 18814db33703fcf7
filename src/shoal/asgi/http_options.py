"""The options of an HTTP server: one frozen record, checked when it is created.

`shoal.start`, `App`, the table ``[server]`` of a file, and the command line all read this table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, cast

from shoal.asgi.option_checks import (
    SecurityRequirements,
    as_list,
    check_known,
    checked_hosts,
    checked_origins,
    checked_peers,
    checked_protocols,
    checked_proxy_headers,
    checked_requirements,
    checked_root_path,
    checked_schemes,
)
from shoal.core.addresses import checked_listening, model_server_address
from shoal.core.options.names import refuse_unknown
from shoal.core.options.option import (
    check_options,
    choice,
    finite_seconds,
    more_than_0,
    option,
    options_of,
    table,
    whole,
    yes_or_no,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp

OverloadStatus = Literal[503, 429]
ServerTiming = Literal["never", "asked", "always"]

# The socket's user must be able to open it.
_MODE: Final = re.compile("0?[67][0-7][0-7]")


class AppKeywords(TypedDict, total=False):
    allowed_hosts: Sequence[str]
    allowed_origins: Sequence[str]
    max_body_bytes: int
    max_incomplete_bytes: int
    max_json_elements: int
    send_timeout_s: float
    answer_timeout_s: float | None
    heartbeat_s: float
    max_websocket_requests: int
    sse_done: bool
    overload_status: OverloadStatus
    retry_after_s: int
    server_timing: ServerTiming
    debug: bool
    protocols: Sequence[Any]
    openapi: bool
    landing_page: bool
    dashboard: bool | None
    title: str
    version: str
    security_schemes: Mapping[str, Mapping[str, Any]]
    security: SecurityRequirements


class ServerKeywords(TypedDict, total=False):
    host: str
    port: int
    uds: str | None
    uds_mode: str
    fd: int | None
    allowed_hosts: Sequence[str]
    allowed_origins: Sequence[str]
    graceful_timeout_s: float
    max_connections: int
    keep_alive_timeout_s: float
    head_timeout_s: float
    max_head_bytes: int
    max_headers: int
    max_target_bytes: int
    body_timeout_s: float
    send_timeout_s: float
    ping_interval_s: float
    max_message_bytes: int
    certfile: str | None
    keyfile: str | None
    access_log: bool
    root_path: str
    trusted_peers: Sequence[str]
    proxy_headers: Sequence[str]


_at_least_1: Final = partial(whole, least=1)


def _text(name: str, value: Any, example: str) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f'{name} must be text, such as "{example}", not {value!r}')
    return value


def _host(name: str, value: Any) -> str:
    host = _text(name, value, example="127.0.0.1")
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def _port(name: str, value: Any) -> int:
    port = whole(name, value, least=0)
    if port > 65535:
        raise ValueError(f"{name} must be from 0 to 65535, not {value!r}")
    return port


def _mode(name: str, value: Any) -> str:
    mode = _text(name, value, "660")
    if not _MODE.fullmatch(mode):
        raise ValueError(f'{name} must be three octal digits, such as "660", not {value!r}')
    return mode


def _overload_status(name: str, value: Any) -> int:
    if value not in (503, 429):
        raise ValueError(f"{name} must be 503 or 429, not {value!r}")
    return int(value)


def checked_middleware(name: str, value: Any) -> tuple[Any, ...]:
    """Returns a list of middleware as a tuple; raises `TypeError`."""
    middleware = as_list(name, value)
    for one in middleware:
        if not callable(getattr(one, "cls", one)):
            raise TypeError(
                f"{name} takes Starlette's, such as Middleware(CORSMiddleware, allow_origins=[...])"
                f", or functions that take an application and return another, not {one!r}"
            )
    return middleware


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """How an application, or a controller, is served over HTTP.

    Attributes:
        host: The address to listen at: IPv4, IPv6, or a name, at all of whose addresses the server
            listens.
        port: The port, or 0 for a free port.
        uds: The path of a UNIX socket to listen at in place of host and port.
        uds_mode: Who can open that socket, in octal: ``"600"`` for this user only, ``"660"`` for
            its group as well, as a proxy with another user needs.
        fd: The file descriptor of an inherited socket to listen at in place of host and port. The
            server closes it at the end.
        middlewares: Middleware around the endpoints: functions that take an ASGI application and
            return another, or Starlette's `Middleware`; the first is the outermost.
        token: The token for the admin API at `host` and `port`. Without a token the API is not
            served there, even at a loopback address, since a relay may forward requests from
            anywhere. At `uds`, if only this user can open it, it is always served.
        admin_socket: The path of a UNIX socket with the admin API, which only this user can open.
        model_server: The address at which other Shoal servers reach the backends, to forward
            batches to them with ``placement="remote"``: ``"tls://0.0.0.0:9000"`` with the server's
            certificate, ``"tcp://127.0.0.1:9000"``, ``"plain-tcp://..."`` without encryption, or
            ``"unix:/run/models.sock"``, which only this user can open.
        model_server_token_file: The file with the token that they must know, of at least 32
            characters. Whoever knows it can run code here. Only a UNIX socket needs none.
        allowed_modules: The modules that import paths sent to the admin API may name, with their
            submodules; ``["*"]`` for all.
        graceful_timeout_s: How long running requests may take at shutdown, in seconds.
        max_connections: How many connections may be open at once at one address; further
            connections wait to be accepted.
        keep_alive_timeout_s: How long a connection may be idle, in seconds.
        head_timeout_s: How long the head of a request may take to arrive, in seconds.
        max_head_bytes: The largest head that a request may have: its request line and its headers,
            in bytes.
        max_headers: How many headers a request may have.
        max_target_bytes: The longest target, a path with its query, that a request may have, in
            bytes.
        body_timeout_s: How long the body of a request, or a WebSocket message, may take to arrive,
            in seconds, or each 16 KiB of it.
        ping_interval_s: How long the client of a WebSocket may be silent before it is pinged, and
            then again before it is disconnected, in seconds.
        max_message_bytes: The largest message that the client of a WebSocket may send, in bytes.
        certfile: The file with the server's certificate chain, in PEM; the server then speaks TLS
            at host and port.
        keyfile: The file with the certificate's private key, in PEM; None if it is in `certfile`.
        access_log: Whether each request is logged, by the logger ``shoal.access``.
        root_path: The prefix that a proxy removes from the paths of requests, such as
            ``"/models"``. Applications get it in the ASGI scope, for the URLs that they write.
        trusted_peers: The peers whose `proxy_headers` are believed: addresses, networks such as
            ``"10.0.0.0/8"``, and ``"unix"`` for peers at a UNIX socket. By default no peer is
            trusted.
        proxy_headers: The headers that these peers set or remove, whatever their clients send:
            of ``X-Forwarded-For``, ``-Proto``, ``-Host`` and ``-Prefix``.
        allowed_hosts: The hosts, without ports, that requests may be for; ``["*"]`` for all. A
            server at a loopback address always allows ``localhost``, ``127.0.0.1`` and ``::1``;
            elsewhere the default is all. Behind a proxy on the same machine that forwards
            ``Host``, name the public hosts here; then the dashboard needs ``dashboard=True``.
        allowed_origins: The origins, such as ``"https://example.com"``, whose pages may open
            WebSockets and send requests with methods other than ``GET``; ``["*"]`` for all. The
            host of the request itself is always allowed. The default is no other origin at a
            loopback address, else all.
        max_body_bytes: The largest body that a request may have, in bytes.
        max_incomplete_bytes: The limit of bytes held for all incomplete bodies, with a quarter of
            it for one connection; further bodies are refused with 503. The server has the same
            limit for all incomplete WebSocket messages.
        max_json_elements: How many values, keys and containers a JSON body may have; fewer if most
            are containers, since their memory may be no more than 12 times the body's size, plus
            64 bytes for each permitted element, plus 1 MiB.
        send_timeout_s: How long a client may take to accept one message of an answer, or each 256
            KiB of it, in seconds; a slower client is disconnected.
        answer_timeout_s: How long a call with one result may take if its endpoint has no
            ``request_timeout_s``, in seconds; None for no limit. A server does not always notice
            that a client is gone, so every call should have a time limit.
        heartbeat_s: How long a stream may be silent before the server sends its client a
            heartbeat, in seconds.
        max_websocket_requests: How many requests may run at once on one WebSocket to an endpoint;
            further requests are refused.
        sse_done: Whether server-sent events end with ``data: [DONE]``, as OpenAI's do, in place of
            ``event: end``.
        overload_status: The status of the response to a call that met a full queue, 503 or 429.
        retry_after_s: The ``Retry-After`` of such a response, in seconds.
        server_timing: Which responses of endpoints have the header ``Server-Timing``: ``"never"``
            any, ``"asked"`` those whose request has the header ``X-Server-Timing: 1``, or
            ``"always"`` all. It has milliseconds: how long the request waited for a worker slot
            (``queue``), then for others to fill its batch (``wait``), and how long the handler
            took (``run``). It shows clients how busy the server is.
        debug: Whether the response to an internal error shows the traceback.
        protocols: The protocols for calls of endpoints, besides Shoal's own: their names, or
            `shoal.http.HttpProtocol` objects.
        openapi: Whether ``/-/openapi.json`` describes the endpoints, and ``/-/docs`` shows them.
        landing_page: Whether ``/`` shows the endpoints, if no endpoint has that path.
        dashboard: Whether ``/-/dashboard`` is at the application's own address: a page that shows
            the server's activity, without items and results. With None, only Shoal's server at a
            loopback address or a UNIX socket has it there, for requests from this machine. The
            admin socket always has it.
        title: The name of the application in the OpenAPI document and the pages.
        version: Its version in the OpenAPI document.
        security_schemes: OpenAPI's security schemes, by name: how callers authenticate. They are
            only described; middleware checks them.
        security: The schemes that an endpoint requires unless it names its own, each with its
            scopes: ``{"key": []}``; or a list of such mappings, one of which is required. They are
            only described.
    """

    host: str = option("127.0.0.1", _host)
    port: int = option(8000, _port)
    uds: str | None = option(None, partial(_text, example="/run/shoal.sock"), may_be_none=True)
    uds_mode: str = option("600", _mode)
    fd: int | None = option(None, partial(whole, least=0))
    middlewares: Sequence[Callable[[ASGIApp], ASGIApp] | Any] = option((), checked_middleware)
    token: str | None = field(default=None, repr=False)
    admin_socket: str | None = option(None, partial(_text, example="/run/shoal.sock"))
    model_server: str | None = option(None, checked_listening)
    model_server_token_file: str | None = option(
        None, partial(_text, example="/run/secrets/models")
    )
    allowed_modules: Sequence[str] = option((), as_list)
    graceful_timeout_s: float = option(20.0, finite_seconds)
    max_connections: int = option(1000, _at_least_1)
    keep_alive_timeout_s: float = option(5.0, more_than_0)
    head_timeout_s: float = option(10.0, more_than_0)
    max_head_bytes: int = option(2**15, _at_least_1)
    max_headers: int = option(128, _at_least_1)
    max_target_bytes: int = option(2**14, _at_least_1)
    body_timeout_s: float = option(10.0, more_than_0)
    ping_interval_s: float = option(7.0, more_than_0)
    max_message_bytes: int = option(16 * 2**20, _at_least_1)
    certfile: str | None = option(None, partial(_text, example="cert.pem"), may_be_none=True)
    keyfile: str | None = option(None, partial(_text, example="key.pem"), may_be_none=True)
    access_log: bool = option(False, yes_or_no)
    root_path: str = option("", checked_root_path)
    trusted_peers: Sequence[str] = option((), checked_peers)
    proxy_headers: Sequence[str] = option(
        ("x-forwarded-for", "x-forwarded-proto"), checked_proxy_headers
    )
    allowed_hosts: Sequence[str] = option((), checked_hosts)
    allowed_origins: Sequence[str] = option((), checked_origins)
    max_body_bytes: int = option(16 * 2**20, _at_least_1)
    max_incomplete_bytes: int = option(256 * 2**20, _at_least_1)
    max_json_elements: int = option(2**18, _at_least_1)
    send_timeout_s: float = option(10.0, more_than_0)
    answer_timeout_s: float | None = option(60.0, more_than_0, may_be_none=True)
    heartbeat_s: float = option(15.0, more_than_0)
    max_websocket_requests: int = option(64, _at_least_1)
    sse_done: bool = option(False, yes_or_no)
    overload_status: OverloadStatus = option(503, _overload_status)
    retry_after_s: int = option(1, _at_least_1)
    server_timing: ServerTiming = choice("never", ServerTiming)
    debug: bool = option(False, yes_or_no)
    protocols: Sequence[Any] = option((), checked_protocols)
    openapi: bool = option(True, yes_or_no)
    landing_page: bool = option(True, yes_or_no)
    dashboard: bool | None = option(None, yes_or_no, may_be_none=True)
    title: str = option("Shoal", partial(_text, example="Embeddings"))
    version: str = option("0.1.0", partial(_text, example="1.2.0"))
    security_schemes: Mapping[str, Mapping[str, Any]] = table(checked_schemes)
    security: SecurityRequirements = option((), checked_requirements)

    def __post_init__(self) -> None:
        check_options(self)
        token: Any = self.token
        if token is not None and not isinstance(token, str):
            raise TypeError(f"token must be text, not {type(token).__name__}")
        if self.uds is not None and self.fd is not None:
            raise ValueError(
                f"uds={self.uds!r} and fd={self.fd!r} are two addresses; give one of them"
            )
        self._check_model_server()
        if self.keyfile is not None and self.certfile is None:
            raise ValueError(f"keyfile={self.keyfile!r} needs certfile, the certificate of the key")
        check_known(self.security, self.security_schemes)

    def _check_model_server(self) -> None:
        if self.model_server is None:
            if self.model_server_token_file is not None:
                raise ValueError("model_server_token_file has no effect without model_server")
            return
        address = model_server_address("model_server", self.model_server)
        if address.has_tls and self.certfile is None:
            raise ValueError(f"model_server={self.model_server!r} needs certfile, a certificate")
        if address.scheme != "unix" and self.model_server_token_file is None:
            raise ValueError(
                f"model_server={self.model_server!r} needs model_server_token_file: whoever can "
                "connect could run code here"
            )

    @classmethod
    def of(cls, options: Any) -> HttpOptions:
        """Creates the options from a user's argument.

        Args:
            options: Options, a mapping of them, or True for the defaults.

        Raises:
            TypeError: The argument is none of these, or an option is unknown.
        """
        if isinstance(options, HttpOptions):
            return options
        if options is True:
            return cls()
        if not isinstance(options, Mapping):
            raise TypeError(f'http must be options such as {{"port": 8000}}, not {options!r}')
        keywords = cast("Mapping[str, Any]", options)
        refuse_unknown("http", keywords, [one.name for one in fields(cls)])
        return cls(**keywords)

    @classmethod
    def of_app(cls, keywords: AppKeywords) -> HttpOptions:
        """Creates the options of an `App`.

        Raises:
            TypeError: An option is unknown, or not about an application.
        """
        refuse_unknown("shoal.App", keywords, [*APP_OPTIONS, "middleware"])
        return cls(**keywords)

    @classmethod
    def of_server(cls, keywords: ServerKeywords) -> HttpOptions:
        """Creates the options of a server for any application.

        Raises:
            TypeError: An option is unknown, or not about the server.
        """
        refuse_unknown("shoal.serve", keywords, list(ServerKeywords.__annotations__))
        return cls(**keywords)


# Without the token, so that no message can show its value.
HTTP_OPTIONS: Final = options_of(HttpOptions)

# The options that an `App` takes.
APP_OPTIONS: Final = tuple(AppKeywords.__annotations__)

# The options that have a flag on the command line.
FLAGGED: Final = {
    name: one
    for name, one in HTTP_OPTIONS.items()
    if (name in ServerKeywords.__annotations__ and name != "fd") or name.startswith("model_server")
}

# The options in the table ``[server]`` of a file: those of an `App` and of the command line.
FILE_OPTIONS: Final = {n: HTTP_OPTIONS[n] for n in HTTP_OPTIONS if n in {*FLAGGED, *APP_OPTIONS}}
