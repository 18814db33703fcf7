"""The declarations of an application, and how they are applied to a controller.

A controller that was restored from a state file may differ from the program, since its operator has
changed it. Existing backends and endpoints are therefore left unchanged; the others are created.
"""

from __future__ import annotations

from inspect import isclass
from typing import TYPE_CHECKING, Any

import anyio

from shoal.core.extras import need
from shoal.errors import NameTaken, NoSuchName
from shoal.failures.exceptions import alone, in_one_line
from shoal.http.openapi.served import Documented
from shoal.http.requests.dispatch import PathTable, Route
from shoal.replicas.code.definition import Definition, handle_names
from shoal.replicas.code.instance import call_of
from shoal.serving.controller.journal import Program
from shoal.serving.names import TAG_FORM, check_free, found, is_tag
from shoal.serving.state_records import EndpointRecord

if TYPE_CHECKING:
    from contextlib import ExitStack

    from starlette.types import ASGIApp

    from shoal.http.app.code import Declared
    from shoal.serving.app_file.file import AppFile
    from shoal.serving.backend_config import BackendConfig
    from shoal.serving.controller.controller import Controller


class Declarations:
    def __init__(self) -> None:
        # Tags of backends that are not ready yet, while they are created.
        self.loading: list[str] = []
        self.backends: dict[str, tuple[Definition, BackendConfig]] = {}
        # Without a route an endpoint is called by handles only.
        self.endpoints: dict[str, EndpointRecord] = {}
        # Of endpoints with a backend of their own, and what their documentation says beside it.
        self.code: dict[str, Declared] = {}
        self.documented: dict[str, Documented] = {}
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
        for tag, (code, config) in file.backends.items():
            self.add_backend(tag, code, config)
        for endpoint in file.endpoints.values():
            self.add_endpoint(endpoint, Documented())

    def add_endpoint(self, endpoint: EndpointRecord, documented: Documented) -> None:
        there = self.endpoints.get(endpoint.name)
        if there is not None:
            raise NameTaken(
                f"the endpoint {there.route or there.name} is named {there.name!r} already; give "
                f'{endpoint.route} another with name="..."'
            )
        self.check_free(endpoint.route, endpoint.methods)
        self.endpoints[endpoint.name] = endpoint
        self.documented[endpoint.name] = documented

    def change(self, endpoint: EndpointRecord) -> None:
        self.endpoints[endpoint.name] = endpoint

    def check_free(self, path: str | None, methods: tuple[str, ...]) -> None:
        others = [(one.name, one.route, one.methods) for one in self.endpoints.values()]
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
            if endpoint.route is not None:
                table.add(endpoint.route, endpoint.methods, route)
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

        for there, known in self.code.items():
            if code.face is not None and known.face is code.face:
                raise ValueError(
                    f"{target!r} has one batcher, and {self.endpoints[there].route} serves it "
                    "already; decorate the handler a second time for another"
                )
        if code.config.decode is None:
            check_items(code.signature, path)
        endpoint = EndpointRecord(name=name, route=path, methods=methods, traffic={name: 1.0})
        self.add_endpoint(endpoint, documented)
        try:
            self.add_backend(name, code.definition, code.config)
        except BaseException:
            del self.endpoints[name], self.documented[name]
            raise
        self.code[name] = code

    def as_program(self) -> Program:
        """Returns the declared code and comparisons, which a state file may refer to."""
        comparisons = {
            shadow.compare
            for endpoint in self.endpoints.values()
            for shadow in endpoint.shadows.values()
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
                await controller.declare_endpoint(endpoint)
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

    async def _open_backends(
        self, controller: Controller, lending: ExitStack, lacking: set[tuple[str, str]]
    ) -> None:
        """Starts backends concurrently; the first that fails cancels the others."""
        # They are added in their order. Code that is declared after a batched function may call it
        # when it starts, so it starts once that function's backend is open.
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
                code, opened = self.code.get(tag), anyio.Event()
                tasks.start_soon(open_one, tag, before, opened)
                before = opened
                if code is not None and code.face is not None:
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
        code = self.code.get(tag)

        async def turn() -> None:
            self.loading.remove(tag)
            await after.wait()

        where = f"the endpoint {self.endpoints[tag].route}" if code else f"the backend {tag}"
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
