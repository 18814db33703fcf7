"""`App`: an ASGI application that serves backends and endpoints declared in a program.

It is not a framework: it has a table of paths, and other applications mounted under prefixes. Any
ASGI server can run it, on trio or asyncio, and any ASGI framework can mount it.

When it is opened, it passes its declarations to a `Controller`. From then on it serves that
controller's endpoints, and changes made there take effect at once. A wrong declaration raises at
the line that makes it.
"""

from __future__ import annotations

from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from shoal.asgi.http_options import APP_OPTIONS, HttpOptions, checked_middleware
from shoal.batching.decorator.block import BatcherBlock
from shoal.core.events import Observers
from shoal.core.histogram import NO_ENDPOINT
from shoal.core.traffic import Shadow, Traffic
from shoal.failures.exceptions import own_copy
from shoal.http.app.declarations import Declarations
from shoal.http.app.lifespan import Mounted, lifespans_of, run_lifespan
from shoal.http.app.middleware import Layers
from shoal.http.app.pages import Pages
from shoal.http.app.router import AppRouter
from shoal.http.openapi.served import documented_as
from shoal.http.requests.dispatch import RouteDispatcher
from shoal.http.requests.failed_batches import FailedBatchLog, batch_observers
from shoal.http.requests.shared_parts import SharedParts
from shoal.replicas.code.definition import Definition
from shoal.serving.backend_config import BackendConfig
from shoal.serving.backend_options import refuse_unknown
from shoal.serving.controller.controller import Controller
from shoal.serving.imports import ImportRule
from shoal.serving.names import (
    DEFAULT_METHODS,
    checked_methods,
    checked_path,
    checked_tag,
    found,
)
from shoal.serving.state_records import EndpointRecord

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
    from typing import Unpack

    from opentelemetry.trace import Tracer
    from prometheus_client import CollectorRegistry
    from starlette.middleware import Middleware
    from starlette.types import ASGIApp, Receive, Scope, Send

    from shoal.asgi.http_options import AppKeywords
    from shoal.asgi.option_checks import SecurityRequirements
    from shoal.http.app.pages import Phase
    from shoal.http.app.traced import RequestTracer
    from shoal.serving.app_file.file import AppFile
    from shoal.serving.backend_options import BackendKeywords
    from shoal.serving.state_file import StateFile

H = TypeVar("H", bound="Callable[..., Any]")


class App:
    """Serves backends and endpoints over HTTP.

    ::

        app = shoal.App()

        @app.endpoint("/embed", max_batch_size=64)
        def embed(texts: list[str]) -> list[Vector]: ...

    Run it with ``shoal serve module:app``, or any ASGI server. Mounted in another application, it
    is opened by that one's lifespan: ``Starlette(lifespan=app.lifespan, routes=[Mount("/ml",
    app=app)])``. Its own pages are under ``/-/``: ``healthz``, ``readyz``, ``metrics``, ``routes``,
    ``openapi.json``, ``docs``, ``dashboard``. It answers at ``/``, unless something else does.

    Args:
        middleware: Middleware around the endpoints and the mounted applications: Starlette's
            `Middleware`, or functions that take an ASGI application and return another, the first
            outermost. It does not wrap ``/-/healthz``, ``/-/readyz``, ``/-/metrics`` and
            ``/-/routes``.
        **settings: The options of `HttpOptions` from ``max_body_bytes`` to ``security``.

    Attributes:
        settings: These options as a record, which has the defaults for the others.
        file: The file that declares it; None if a program does.
        observers: Observers of the batches of all backends; add a `shoal.statistics.BatchObserver`.
        tracer: Makes a span for each request, once `shoal.observe.instrument` has set it.

    Raises:
        TypeError: A setting is unknown, or has the wrong type.
        ValueError: A setting is out of its range.
    """

    def __init__(
        self,
        *,
        middleware: Sequence[Middleware | Callable[[ASGIApp], ASGIApp]] = (),
        **settings: Unpack[AppKeywords],
    ) -> None:
        self.settings = HttpOptions.of_app(settings)
        self.file: AppFile | None = None
        self.controller: Controller | None = None
        self.state: StateFile | None = None
        self.allowed_modules: Sequence[str] | None = None
        self.observers = Observers()
        self._batch_observers = batch_observers(self.settings)
        self._declared = Declarations()
        self._shared = SharedParts(self.settings)
        dispatcher = RouteDispatcher(self._shared)
        self._router = AppRouter(self._declared, dispatcher)
        self._layers = Layers(checked_middleware("middleware", middleware), self._router)
        self.tracer: RequestTracer | None = None
        self._enter_phase("not open")
        self.own_pages = Pages(self._declared, self._shared, self._now)
        self.own_pages.add_to(self._router.pages)

    @classmethod
    def of_file(cls, file: AppFile) -> App:
        """Creates the application that a file declares; its replicas import the code."""
        app = cls(**{name: file.server[name] for name in APP_OPTIONS if name in file.server})
        app.file = file
        app._declared.add_file(file)
        return app

    def endpoint(
        self,
        path: str,
        *,
        methods: tuple[str, ...] = DEFAULT_METHODS,
        name: str | None = None,
        security: SecurityRequirements | None = None,
        responses: Mapping[int, str] | None = None,
        batch: bool | None = None,
        **config: Unpack[BackendKeywords],
    ) -> Callable[[H], H]:
        """Declares a backend and an endpoint of the same name, as a decorator of the code.

        The decorated code is returned unchanged. It is a handler as for `shoal.Batcher`, or a class
        without init arguments and with the handler as ``__call__``. It may also be a function
        decorated with `shoal.batch`; options given here override those of the decorator. The code
        takes lists, or one item at a time. Its annotations determine the form of a request's body
        (`shoal.http.json.payload`). A generator handler answers with a stream
        (`shoal.http.requests.streaming`).

        Args:
            path: The endpoint's path. It may have parameters, as in Starlette:
                ``/users/{id:int}``. The code reads them in a ``decode`` function, from a Starlette
                `Request`, or as ``"path_params"`` in its request's metadata.
            methods: The HTTP methods of the endpoint.
            name: The name in messages and metrics; the handler's name by default.
            security: The requirements for callers, in the form of the option ``security`` of
                `HttpOptions`, which is the default. Like `responses`, it is documented in OpenAPI.
            responses: The statuses of the ``HTTPException`` that the code raises, with meanings.
            batch: Whether the code takes lists; by default its annotations say that. With False, a
                list is one item, and ``max_ongoing_requests`` is 100, or 40 in threads.
            **config: As in `BackendConfig`: how batches are formed, and where the code runs.

        Raises:
            TypeError: The code is not a handler, JSON can't be checked against its annotation, or
                an argument has the wrong type.
            ValueError: The path or the name is taken or malformed, the handler's parameters do not
                fit the path, or an option is out of range.
            RuntimeError: The application is open.
        """
        from shoal.http.app.code import declared_on

        example = path.strip("/") if isinstance(cast("object", path), str) else "x"
        checked_path(path, f'@app.endpoint("/{example}")')
        capitals = checked_methods(methods)
        refuse_unknown(config, beside=("methods", "name", "batch", "security", "responses"))
        documented = documented_as(security, responses, self.settings)

        def declare(handler: H) -> H:
            self._check_not_open(path)
            self._declared.check_free(path, capitals)
            code = declared_on(handler, config, batch)
            own_name = self._declared.checked_name(code.name if name is None else name, path)
            self._declared.add_code(path, capitals, own_name, code, handler, documented)
            return handler

        return declare

    def get(self, path: str, **options: Any) -> Callable[[H], H]:
        """Declares code that takes one request at a time, by ``GET``.

        The arguments are those of `endpoint`, without ``methods`` and ``batch``.
        """
        return self.endpoint(path, methods=("GET",), batch=False, **options)

    def post(self, path: str, **options: Any) -> Callable[[H], H]:
        """Declares code that takes one request at a time, by ``POST``."""
        return self.endpoint(path, methods=("POST",), batch=False, **options)

    def backend(
        self, tag: str, definition: Any, *init_args: Any, **config: Unpack[BackendKeywords]
    ) -> None:
        """Declares a backend.

        Args:
            tag: The backend's name.
            definition: A function, a class, or an import path ``"package.module:Name"``.
            *init_args: The arguments that a class is instantiated with.
            **config: As in `BackendConfig`.

        Raises:
            TypeError: The definition is not code, or an option is unknown or has the wrong type.
            ValueError: The tag is taken or malformed, or an option is out of range.
            RuntimeError: The application is open.
        """
        self._check_not_open(tag)
        checked_tag("a backend's tag", tag)
        code = Definition(definition, init_args).checked()
        self._declared.add_backend(tag, code, BackendConfig.of(config))

    def route(
        self,
        name: str,
        *,
        backend: str | Mapping[str, float],
        path: str | None = None,
        methods: Sequence[str] = DEFAULT_METHODS,
        security: SecurityRequirements | None = None,
        responses: Mapping[int, str] | None = None,
    ) -> None:
        """Declares an endpoint for backends that are declared already.

        Args:
            name: The endpoint's name.
            backend: The backend that gets its requests, or the share of each backend.
            path: Its path; None if it is called by handles only.
            methods: The HTTP methods of the endpoint.
            security: As for `endpoint`.
            responses: As for `endpoint`.

        Raises:
            NoSuchName: There is no such backend.
            TypeError: An argument has the wrong type.
            ValueError: An argument is out of range, or a name or path is taken.
            RuntimeError: The application is open.
        """
        self._check_not_open(name)
        checked_tag("an endpoint's name", name)
        weights = {backend: 1.0} if isinstance(backend, str) else backend
        endpoint = EndpointRecord(
            name=name,
            route=None if path is None else checked_path(path, 'app.route(..., path="/x")'),
            methods=checked_methods(methods),
            traffic=Traffic.checked(weights, self._declared.backends).weights,
        )
        self._declared.add_endpoint(endpoint, documented_as(security, responses, self.settings))

    def traffic(self, endpoint: str, weights: Mapping[str, float]) -> None:
        """Declares how the requests of an endpoint are divided, as `Client.set_traffic` does.

        Raises:
            NoSuchName: There is no such endpoint or backend.
            TypeError: A weight is not a number.
            ValueError: A weight is negative, or they don't sum to 1.
            RuntimeError: The application is open.
        """
        declared = self._endpoint_to_change(endpoint)
        traffic = Traffic.checked(weights, self._declared.backends).weights
        self._declared.change(replace(declared, traffic=traffic))

    def shadow(
        self,
        endpoint: str,
        backend: str,
        proportion: float,
        *,
        compare: Callable[[Any, Any], bool] | str | None = None,
    ) -> None:
        """Declares shadow traffic, as `Client.shadow_traffic` does.

        Raises:
            NoSuchName: There is no such endpoint or backend.
            TypeError: The proportion is not a number.
            ValueError: The proportion is not from 0 to 1.
            RuntimeError: The application is open.
        """
        declared = self._endpoint_to_change(endpoint)
        found("backend", backend, self._declared.backends)
        self._declared.change(declared.with_shadow(backend, Shadow(proportion, compare)))

    def mount(self, path: str, app: ASGIApp, *, lifespan: bool = False) -> None:
        """Serves another ASGI application under a prefix, except at paths of endpoints.

        Args:
            path: The prefix of its paths; ``"/"`` for all paths that nothing else answers.
            app: The application.
            lifespan: Whether its lifespan is run within this one, after those of applications that
                were mounted before; else the program opens it.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: The path is malformed, or is taken by another mount.
            RuntimeError: The application is open already, so that the lifespan would not run.
        """
        example = 'app.mount("/static", application)'
        prefix = checked_path(path, example, may_have_parameters=False).rstrip("/")
        if lifespan and self._is_up():
            raise RuntimeError(f"{path}: with a lifespan, mount before the application is opened")
        self._declared.add_mount(prefix, Mounted(app) if lifespan else app)

    @property
    def metrics(self) -> CollectorRegistry:
        """The registry of the metrics of ``/-/metrics``."""
        return self.own_pages.registry

    def openapi(self) -> dict[str, Any]:
        """Returns the current OpenAPI document, without a prefix."""
        return self.own_pages.document()

    def _endpoint_to_change(self, name: str) -> EndpointRecord:
        self._check_not_open(name)
        return found("endpoint", name, self._declared.endpoints)

    def _check_not_open(self, what: str) -> None:
        if self._is_up():
            raise RuntimeError(
                f"{what}: backends and endpoints are declared before the application is opened; "
                "change them through app.controller while it is open"
            )

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncGenerator[None]:
        """Opens the application: creates what it declares, and keeps it open.

        Its backends start concurrently, except those of batched functions: these have started
        before the backends that are declared after them start.

        Leaving closes it: queued requests are run, and fail after ``graceful_shutdown_timeout_s``.

        Args:
            _app: The application that this one is mounted in, as Starlette passes it; unused.

        Raises:
            RuntimeError: It is open already.
            Exception: What a class raised when it was instantiated, or a batcher when opened.
        """
        if self._is_up():
            raise RuntimeError("the application is open already")
        self._enter_phase("opening")
        self._declared.loading = [*self._declared.backends]
        try:
            async with (
                BatcherBlock(convert_error=own_copy),  # a handler must not end the server
                self._controller() as controller,
                self.answering(controller, is_complete=False),
            ):
                async with lifespans_of(self._declared.mounts.values()):
                    self._serve(controller)
                    yield
                # Before the batched functions lose their batchers: queued requests may call them.
                await controller.shutdown()
        finally:
            self._enter_phase("closed")

    def _controller(self) -> Controller:
        if self.state is None or self.allowed_modules is None:
            return Controller(self.state, observers=self.observers)
        rule, program = ImportRule(self.allowed_modules), self._declared.as_program()
        return Controller(self.state, rule, program, observers=self.observers)

    @asynccontextmanager
    async def answering(
        self, controller: Controller, *, is_complete: bool = True
    ) -> AsyncGenerator[None]:
        """Serves an open controller, after adding the application's own declarations to it.

        Requests are answered from then on if that makes it complete.

        Raises:
            Exception: A declaration failed.
        """
        with ExitStack() as lending:
            await self._declared.apply(controller, lending)
            self.controller = controller
            self.own_pages.dashboard.observe(controller)
            for one in self._batch_observers:
                is_log = isinstance(one, FailedBatchLog)
                controller.observers.add(one, only_failures=is_log)
            if is_complete:
                self._serve(controller)
            try:
                async with self._shared.disconnects.watching():
                    yield
            finally:
                self._router.set_controller(None)
                for one in self._batch_observers:
                    controller.observers.remove(one)
                self._enter_phase("closed")

    def _serve(self, controller: Controller) -> None:
        self._router.set_controller(controller)
        self._enter_phase("open")

    def begin_drain(self) -> None:
        """Prepares the shutdown: the application is no longer ready, and batches start at once.

        Calls are still accepted, since a load balancer routes them here until it notices.
        """
        if self._phase == "open":
            self._enter_phase("draining")
            assert self.controller is not None
            self.controller.drain()

    def trace_requests(self, tracer: Tracer) -> Callable[[], object]:
        """Makes a span for each request from now on; returns a function that stops that."""
        from shoal.http.app.traced import RequestTracer  # with OpenTelemetry

        self._trace_with(RequestTracer(tracer, self._router.declared_path))
        return partial(self._trace_with, None)

    def _trace_with(self, tracer: RequestTracer | None) -> None:
        self.tracer = tracer
        self._enter_phase(self._phase)

    def count_refusal(self, status: int, took_s: float) -> None:
        """Counts a request in the metrics that this package's server has answered itself."""
        self._shared.times.count(NO_ENDPOINT, "other", status, took_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._apps[scope["type"]](scope, receive, send)

    def _enter_phase(self, phase: Phase) -> None:
        self._phase: Phase = phase
        # What answers each type of scope.
        self._apps = self._layers.apps(self.tracer, is_opening=phase == "opening")
        self._apps["lifespan"] = partial(run_lifespan, self.lifespan)
        is_bare = self._layers.is_bare and self.tracer is None and type(self) is App
        self._shared.bare_app = self if is_bare and phase in ("open", "draining") else None

    def _is_up(self) -> bool:
        return self._phase in ("opening", "open", "draining")

    def _now(self) -> tuple[Phase, Controller | None]:
        return self._phase, self.controller
