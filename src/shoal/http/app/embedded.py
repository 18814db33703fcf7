"""An HTTP server for a controller, inside the program that holds the controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self, cast

import anyio

from shoal.core.options.checks import seconds, whole
from shoal.core.options.names import suggested
from shoal.http.admin.api import AdminApi
from shoal.http.admin.mount import AdminListener
from shoal.http.app.app import App
from shoal.http.app.middleware import check_middleware, with_middleware
from shoal.http.server.config import ServerConfig
from shoal.http.server.listeners import AppListener, Unix
from shoal.http.server.server import serve

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from starlette.types import ASGIApp

    from shoal.serving.controller.controller import Controller


@dataclass(frozen=True, kw_only=True)
class HttpOptions:
    """How a controller is served over HTTP.

    Attributes:
        host: The address to listen at.
        port: The port, or 0 for a free one.
        uds: The path of a UNIX socket to listen at in place of host and port.
        middlewares: Middleware around the endpoints: functions that take an ASGI application and
            return another, or Starlette's `Middleware`; the first is the outermost.
        token: The token for the admin API at `host` and `port`. Without a token the API is not
            served there, even at a loopback address, since a relay may forward requests from
            anywhere. At `uds`, a UNIX socket that only this user can open, it is always served.
        admin_socket: The path of a UNIX socket with the admin API, which only this user can open.
        allowed_modules: The modules that import paths sent to the admin API may name, with their
            submodules; ``["*"]`` for all.
        graceful_timeout_s: How long running requests may take at the end, in seconds.
        max_connections: How many connections may be open at once.
        max_body_bytes: The largest body that a request may have, in bytes.
        access_log: Whether each request is logged, by the logger ``shoal.access``.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    middlewares: Sequence[Callable[[ASGIApp], ASGIApp] | Any] = ()
    token: str | None = field(default=None, repr=False)
    admin_socket: str | None = None
    allowed_modules: Sequence[str] = ()
    graceful_timeout_s: float = 20.0
    max_connections: int = 1000
    max_body_bytes: int = 16 * 2**20
    access_log: bool = False

    def __post_init__(self) -> None:
        _check_text("host", self.host)
        _check_text("uds", "" if self.uds is None else self.uds)
        _check_text("admin_socket", "" if self.admin_socket is None else self.admin_socket)
        token: Any = self.token
        if token is not None and not isinstance(token, str):
            raise TypeError(f"token must be text, not {type(token).__name__}")
        port: Any = self.port
        if isinstance(port, bool) or not isinstance(port, int):
            raise TypeError(f"port must be a number, not {port!r}")
        if not 0 <= port <= 65535:
            raise ValueError(f"port must be from 0 to 65535, not {port!r}")
        check_middleware("middlewares", self.middlewares)
        _check_list("allowed_modules", self.allowed_modules)
        seconds("graceful_timeout_s", self.graceful_timeout_s)
        whole("max_connections", self.max_connections, least=1)
        whole("max_body_bytes", self.max_body_bytes, least=1)

    @classmethod
    def of(cls, given: Any) -> HttpOptions:
        """Creates the options from a user's argument.

        Args:
            given: Options, a mapping of them, or True for the defaults.

        Raises:
            TypeError: The argument is none of these, or an option is unknown.
        """
        if isinstance(given, HttpOptions):
            return given
        if given is True:
            return cls()
        if not isinstance(given, Mapping):
            raise TypeError(f'http must be options such as {{"port": 8000}}, not {given!r}')
        keywords = cast("Mapping[str, Any]", given)
        names = [option.name for option in fields(cls)]
        for name in keywords:
            if name not in names:
                hint = suggested(name, names) or f"it has {', '.join(names)}"
                raise TypeError(f"http has no option {name!r}; {hint}")
        return cls(**keywords)


class EmbeddedServer:
    """A context manager that serves a controller over HTTP.

    Args:
        controller: An open controller.
        options: The options of the server.

    Attributes:
        url: The URL for clients, once it is entered.
    """

    def __init__(self, controller: Controller, options: HttpOptions) -> None:
        self.url = ""
        self._controller = controller
        self._options = options
        self._stopping = anyio.Event()
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        app = App(max_body_bytes=self._options.max_body_bytes)
        wrapped = self._wrapped(app)  # first, so that a wrong middleware raises early
        try:
            await self._exit.enter_async_context(app.answering(self._controller))
            tasks = await self._exit.enter_async_context(anyio.create_task_group())
            await tasks.start(self._serve, app, wrapped)
        except BaseException:  # not passed to the exit stack, so that it raises no group
            self._stopping.set()
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        async with self._exit:
            self._stopping.set()

    async def _serve(self, served: App, wrapped: ASGIApp, *, task_status: TaskStatus[None]) -> None:
        options = self._options
        config = ServerConfig(
            host=options.host,
            port=options.port,
            uds=options.uds,
            graceful_timeout_s=options.graceful_timeout_s,
            max_connections=options.max_connections,
            access_log=options.access_log,
        )

        def started(url: str) -> None:
            self.url = url
            task_status.started()

        admin_listeners: list[AppListener] = []
        if options.admin_socket is not None:
            # Only the socket's owner can open it, so it needs no token.
            address, admin = Unix(options.admin_socket), self._admin_listener(served, token=None)
            admin_listeners.append(AppListener(address=address, app=admin))
        await serve(
            wrapped,
            config,
            shutdown=self._shutdown,
            started=started,
            lifespan=False,
            extra_listeners=admin_listeners,
        )

    async def _shutdown(self) -> None:
        """Waits until the context is left, or the controller was shut down."""
        async with anyio.create_task_group() as tasks:

            async def end_with_controller() -> None:
                await self._controller.wait_ended()
                self._stopping.set()

            tasks.start_soon(end_with_controller)
            await self._stopping.wait()
            tasks.cancel_scope.cancel()
        self._controller.drain()

    def _admin_listener(self, served: App, token: str | None) -> AdminListener:
        api = AdminApi(
            self._controller,
            token=token,
            allowed_modules=self._options.allowed_modules,
            settings=served.settings,
        )
        return AdminListener(api, behind=served, settings=served.settings)

    def _wrapped(self, served: App) -> ASGIApp:
        options = self._options
        app: ASGIApp = served
        if options.token is not None or options.uds is not None:
            app = self._admin_listener(served, options.token)
        return with_middleware(options.middlewares, app)


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {value!r}")


def _check_list(name: str, value: Any) -> None:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list, not {value!r}")
