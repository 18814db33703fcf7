"""The declarations of an application, and how they are applied to a controller.

A controller that was restored from a state file may differ from the program, since its operator has
changed it. Existing backends and endpoints are therefore left unchanged; the others are created.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import isclass
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from shoal.core.extras import need
from shoal.errors import NameTaken, NoSuchName
from shoal.failures.exceptions import alone, in_one_line
from shoal.http.openapi.served import Documented
from shoal.http.requests.dispatch import PathTable, Route
from shoal.replicas.code.definition import Definition, handle_names
from shoal.replicas.code.instance import call_of
from shoal.serving.backend_config import BackendConfig
from shoal.serving.controller.journal import Program
from shoal.serving.names import TAG_FORM, check_free, found, is_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack

    from starlette.types import ASGIApp

    from shoal.http.app.code import Declared
    from shoal.serving.app_file.file import AppFile
    from shoal.serving.controller.controller import Controller


class ShadowDeclaration(NamedTuple):
    backend: str
    proportion: float
    compare: Callable[[Any, Any], bool] | str | None


@dataclass(kw_only=True)
class EndpointDeclaration:
    """A declaration of an endpoint; without a path it is called by handles only."""

    name: str
    path: str | None
    methods: tuple[str, ...]
    traffic: Mapping[str, float]
    shadows: list[ShadowDeclaration] = field(default_factory=list[ShadowDeclaration])
    code: Declared | None = None
    documented: Documented = field(default_factory=Documented)


class Declarations:
    def __init__(self) -> None:
        # Tags of backends that are not ready yet, while they are created.
        self.loading: list[str] = []
        self.backends: dict[str, tuple[Definition, BackendConfig]] = {}
        self.endpoints: dict[str, EndpointDeclaration] = {}
        # Mounted applications, by prefix.
        self.mounts: dict[str, ASGIApp] = {}

    def add_mount(self, prefix: str, app: ASGIApp) -> None:
        """Raises TypeError for other objects, ValueError if the prefix is taken."""
        if not callable(getattr(app, "app", app)):
            raise TypeError(f"mount() takes an ASGI application, not {app!r}")
        if prefix in self.mounts:
            raise ValueError(f"{prefix or '/'!r} is mounted already")
        self.mounts[prefix] = app

    def mounted_at(self, path: str) -> tuple[str, ASGIApp] | None:
        prefixes = [one for one in self.mounts if path == one or path.startswith(f"{one}/")]
        longest = max(prefixes, key=len, default=None)
        return None if longest is None else (longest, self.mounts[longest])

    def add_backend(self, tag: str, definition: Definition, config: BackendConfig) -> None:
        if config.batching.get("cache") is not None:
            need("cache=", "cachetools", "cache")
        if config.placement == "ray":
            need("placement='ray'", "ray", "ray")
        if tag in self.backends:
            raise NameTaken(f"a backend {tag!r} is declared already; choose another tag")
        self.backends[tag] = definition, config

    def add_file(self, file: AppFile) -> None:
        """Declares the contents of a file; the replicas import the code."""
        for tag, one in file.backends.items():
            code = Definition(one.import_path, one.init_args, tuple(one.init_kwargs.items()))
            self.add_backend(tag, code, BackendConfig.of(one.config))
        for name, endpoint in file.endpoints.items():
            self.add_endpoint(
                EndpointDeclaration(
                    name=name,
                    path=endpoint.route,
                    methods=endpoint.methods,
                    traffic=endpoint.traffic,
                    shadows=[
                        ShadowDeclaration(tag, shadow.proportion, shadow.compare)
                        for tag, shadow in endpoint.shadows.items()
                    ],
                )
            )

    def add_endpoint(self, endpoint: EndpointDeclaration) -> None:
        there = self.endpoints.get(endpoint.name)
        if there is not None:
            raise NameTaken(
                f"the endpoint {there.path or there.name} is named {there.name!r} already; give "
                f'{endpoint.path} another with name="..."'
            )
        self.check_free(endpoint.path, endpoint.methods)
        self.endpoints[endpoint.name] = endpoint

    def check_free(self, path: str | None, methods: tuple[str, ...]) -> None:
        others = [(one.name, one.path, one.methods) for one in self.endpoints.values()]
        check_free(path, methods, others)

    def checked_name(self, name: Any, path: str) -> str:
        if not isinstance(name, str) or not is_tag(name):
            raise ValueError(
                f'{name!r} can\'t name the endpoint {path}: {TAG_FORM}; give one with name="..."'
            )
        return name

    def routed_to(self, route: Route) -> PathTable[Route]:
        table = PathTable[Route]()
        for endpoint in self.endpoints.values():
            if endpoint.path is not None:
                table.add(endpoint.path, endpoint.methods, route)
        return table

    def add_code(
        self,
        path: str,
        methods: tuple[str, ...],
        name: str,
        code: Declared,
        target: object,
        documented: Documented,
    ) -> None:
        from shoal.http.json.queries import check_items

        for there in self.endpoints.values():
            if code.face is not None and there.code is not None and there.code.face is code.face:
                raise ValueError(
                    f"{target!r} has one batcher, and {there.path} serves it already; decorate "
                    "the handler a second time for another"
                )
        if code.config.decode is None:
            check_items(code.signature, path)
        endpoint = EndpointDeclaration(
            name=name,
            path=path,
            methods=methods,
            traffic={name: 1.0},
            code=code,
            documented=documented,
        )
        self.add_endpoint(endpoint)
        try:
            self.add_backend(name, code.definition, code.config)
        except BaseException:
            del self.endpoints[name]
            raise

    def as_program(self) -> Program:
        """Returns the declared code and comparisons, which a state file may refer to."""
        comparisons = {
            shadow.compare
            for endpoint in self.endpoints.values()
            for shadow in endpoint.shadows
            if isinstance(shadow.compare, str)
        }
        return Program(self.backends, comparisons)

    async def apply(self, controller: Controller, lending: ExitStack) -> None:
        """Creates the declared backends and endpoints that the controller lacks."""
        # Until `lending` is closed, batched functions use the controller's batchers.
        self._check_given(controller)
        lacking = controller.lacks(backends=self.backends, endpoints=self.endpoints)
        self.loading = [tag for tag in self.backends if ("backend", tag) in lacking]
        controller.announce_endpoints([*self.endpoints])
        await self._open_backends(controller, lending, lacking)
        for endpoint in self.endpoints.values():
            if ("endpoint", endpoint.name) in lacking:
                await controller.declare_endpoint(
                    endpoint.name,
                    route=endpoint.path,
                    methods=endpoint.methods,
                    weights=endpoint.traffic or None,
                    shadows=endpoint.shadows,
                )
        controller.announce_endpoints(())

    def _check_given(self, controller: Controller) -> None:
        """Checks that code receives handles of existing endpoints only."""
        known = {**self.endpoints, **controller.endpoints}
        for tag, (definition, _) in self.backends.items():
            code = definition.target
            if isinstance(code, str):
                continue  # it is loaded where it runs
            parts = (code, call_of(code)) if isclass(code) else (code,)
            for parameter, name in (pair for one in parts for pair in handle_names(one).items()):
                try:
                    found("endpoint", name, known)
                except NoSuchName as error:
                    error.add_note(f"the parameter {parameter!r} of {tag!r} is given its handle")
                    raise

    def _code(self, tag: str) -> Declared | None:
        endpoint = self.endpoints.get(tag)
        return None if endpoint is None else endpoint.code

    async def _open_backends(
        self, controller: Controller, lending: ExitStack, lacking: set[tuple[str, str]]
    ) -> None:
        """Starts backends concurrently; the first that fails cancels the others."""
        # They are added in their order. A batched function's backend starts alone: code that is
        # declared after it may call that function when it starts.
        failures: list[Exception] = []

        async def open_one(tag: str, before: anyio.Event, opened: anyio.Event) -> None:
            try:
                await self._open(controller, lending, tag, lacking, before)
                await before.wait()
                opened.set()
            except Exception as error:
                failures.append(error)
                tasks.cancel_scope.cancel()

        before = anyio.Event()
        before.set()
        async with anyio.create_task_group() as tasks:
            for tag in self.backends:
                code, opened = self._code(tag), anyio.Event()
                is_alone = code is not None and code.face is not None
                if is_alone:
                    await before.wait()
                tasks.start_soon(open_one, tag, before, opened)
                before = opened
                if is_alone:
                    await before.wait()
        try:
            if failures:
                raise failures[0]
        finally:
            failures.clear()  # their tracebacks hold this frame

    async def _open(
        self,
        controller: Controller,
        lending: ExitStack,
        tag: str,
        lacking: set[tuple[str, str]],
        after: anyio.Event,
    ) -> None:
        definition, config = self.backends[tag]
        code = self._code(tag)

        async def turn() -> None:
            self.loading.remove(tag)
            await after.wait()

        where = f"the endpoint {self.endpoints[tag].path}" if code else f"the backend {tag}"
        try:
            if ("backend", tag) in lacking:
                await controller.declare_backend(tag, definition, config, turn)
            if code is not None and tag in controller.backends:
                method_batcher = await controller.backends[tag].method_batcher("__call__")
                if code.face is not None:
                    lending.enter_context(code.face.lent(method_batcher.batcher))
        except Exception as error:
            cause = alone(error.__cause__ if isinstance(error.__cause__, Exception) else error)
            cause.add_note(f"{where} could not be opened: {in_one_line(cause)}")
            try:
                raise cause from None
            finally:
                del cause  # its traceback holds this frame
