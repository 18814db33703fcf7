"""The controller: it owns backends and endpoints, and is the client of its own process.

The declarations (backends and endpoints, their configs, traffic and shadows) change one at a time,
under a lock. A change is checked, recorded if state is kept, and then takes effect without an
``await`` in between, so no request sees half of it. Slow steps (starting and draining replicas) run
outside of that lock, under a lock of each backend.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import anyio

from shoal.core.events import Observers
from shoal.core.options.option import yes_or_no
from shoal.core.traffic import Shadow, Traffic
from shoal.errors import InUse
from shoal.replicas.code.definition import Definition, named_arguments
from shoal.replicas.code.endpoint_call import IS_THERE, CallOut, HandleOptions
from shoal.replicas.placements import placement_of
from shoal.serving.backend_config import BackendConfig
from shoal.serving.clients.handles import running_controller
from shoal.serving.clients.protocol import BlockingClient, Client
from shoal.serving.controller.backends import Backends, applied
from shoal.serving.controller.endpoints import EndpointHandle, Endpoints
from shoal.serving.controller.journal import DeclaredName, Journal, Program, declared_names
from shoal.serving.controller.lifetime import Lifetime
from shoal.serving.devices import Devices
from shoal.serving.endpoint import Endpoint
from shoal.serving.names import DEFAULT_METHODS, checked_methods, checked_route, checked_tag
from shoal.serving.shadow import ShadowFlow
from shoal.serving.state_records import EndpointRecord
from shoal.status import ModelServerStatus, Status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from shoal.core.counters import BatcherStatistics
    from shoal.core.histogram import RequestTimes
    from shoal.replicas.contract import Replica
    from shoal.replicas.gpus import GpuReading
    from shoal.serving.backends.backend import Backend
    from shoal.serving.imports import ImportRule
    from shoal.serving.state_file import StateFile


class Controller(Client):
    """Owns and operates backends and endpoints; `Client` documents its verbs."""

    # Open it with ``async with``. It starts nothing before that, and leaves nothing running after.
    # It stores declarations in `state`, and restores them from it. `imports` checks which import
    # paths of the file may be loaded; the declarations of `program` may always be restored.

    def __init__(
        self,
        state: StateFile | None = None,
        imports: ImportRule | None = None,
        program: Program | None = None,
        observers: Observers | None = None,
    ) -> None:
        self.observers = Observers() if observers is None else observers
        self.url: str | None = None  # where it is served over HTTP
        self.is_draining = False
        # Of its listener for other Shoal servers, if it has one.
        self.model_server_status: Callable[[], ModelServerStatus | None] = lambda: None
        self._journal = Journal(state, imports, program)
        self._declaring = anyio.Lock()
        self._lifetime = Lifetime(self._restore, self._drain_and_close, self._journal.close)
        self.registry = Endpoints()
        self.devices = Devices()
        self._backends = Backends(
            self._lifetime, self._prepare, self._enter, self.observers, self.devices
        )

    async def __aenter__(self) -> Self:
        await self._lifetime.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lifetime.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a client can't be pickled; give code in other processes a handle of an endpoint, or "
            "let it connect with shoal.connect()"
        )

    @property
    def backends(self) -> Mapping[str, Backend]:
        return self._backends.by_tag

    @property
    def endpoints(self) -> Mapping[str, Endpoint]:
        return self.registry.by_name

    @property
    def times(self) -> RequestTimes:
        """How long calls by handles took; the server counts those over HTTP."""
        return self.registry.times

    @property
    def sync(self) -> BlockingClient:
        return BlockingClient(self, self._lifetime.threads)

    async def create_backend(
        self,
        tag: str,
        definition: Any,
        *init_args: Any,
        config: BackendConfig | Mapping[str, Any] | None = None,
        init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.check_open()
        checked_tag("a backend's tag", tag)
        code = definition
        if not isinstance(definition, Definition):
            code = Definition(definition, init_args, named_arguments(init_kwargs)).checked()
        await self.declare_backend(tag, code, BackendConfig.of(config))

    async def declare_backend(
        self,
        tag: str,
        code: Definition,
        config: BackendConfig,
        when_ready: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        """Creates a backend, which may start while others do."""
        # Once it is ready it waits for `when_ready`, so that backends are added in order.
        placement_of(config.placement, config.for_placement())
        record = self._journal.backend_record(tag, code, config)
        async with self._backends.starting(tag, code, config) as backend:
            if when_ready is not None:
                await when_ready()
            async with self._declaring:
                self.check_open()
                await self._journal.put(record)
                self._backends.add(backend)

    async def update_backend_config(
        self, tag: str, config: BackendConfig | Mapping[str, Any]
    ) -> None:
        async with self._backends.locked(tag) as backend:
            config = backend.config.changed(config)
            record = self._journal.backend_record(tag, backend.definition, config)
            async with applied(backend, config), self._declaring:
                self.check_open()
                await self._journal.put(record)

    async def scale_backend(self, tag: str, num_replicas: int) -> None:
        await self.update_backend_config(tag, {"num_replicas": num_replicas})

    async def restart_backend(self, tag: str) -> None:
        async with (
            self._backends.locked(tag) as backend,
            applied(backend, backend.config, restarts=True),
        ):
            pass

    def statistics(self) -> Iterator[tuple[str, str, BatcherStatistics]]:
        """Yields the backend, the method and the statistics of each batcher."""
        for tag, backend in self.backends.items():
            for method, method_batcher in backend.method_batchers.items():
                yield tag, method, method_batcher.batcher.statistics()

    async def get_backend_config(self, tag: str) -> BackendConfig:
        self.check_open()
        return self._backends.find(tag).config

    async def list_backends(self) -> dict[str, BackendConfig]:
        self.check_open()
        return {tag: backend.config for tag, backend in self.backends.items()}

    async def delete_backend(self, tag: str, *, force: bool = False) -> None:
        self.check_open()
        at_once = yes_or_no("force", force)
        backend = self._backends.leaving(tag) or self._backends.find(tag)
        async with backend.change_lock, self._declaring:
            if self.backends.get(tag) is backend:  # else another call has deleted it
                self.check_open()
                if users := self.registry.users_of(tag):
                    raise InUse(
                        f"the backend {tag!r} gets traffic of {', '.join(users)}; send that "
                        "elsewhere first, or delete the endpoint"
                    )
                await self._journal.delete("backend", tag)
                self._backends.remove(tag)
        if at_once:
            backend.end_at_once()
        await backend.gone.wait()

    async def create_endpoint(
        self,
        name: str,
        *,
        backend: str | None,
        route: str | None = None,
        methods: Sequence[str] = DEFAULT_METHODS,
    ) -> None:
        traffic = {} if backend is None else {backend: 1.0}
        await self.declare_endpoint(
            EndpointRecord(name=name, route=route, methods=cast("Any", methods), traffic=traffic)
        )

    async def declare_endpoint(self, given: EndpointRecord) -> None:
        """Creates an endpoint with its traffic and shadows, as one atomic change."""
        self.check_open()
        declared = EndpointRecord(
            name=checked_tag("an endpoint's name", given.name),
            route=checked_route(given.route),
            methods=checked_methods(given.methods),
            traffic=given.traffic,
            shadows=given.shadows,
        )
        async with self._declaring:
            self.check_open()
            self.registry.check_free(declared)
            endpoint = self._made(declared, ShadowFlow)
            await self._journal.put(endpoint.declared)
            self.registry.add(endpoint)

    def _made(self, declared: EndpointRecord, flow: Callable[..., ShadowFlow]) -> Endpoint:
        endpoint = Endpoint(declared, self._lifetime.start_soon)
        if declared.traffic:
            traffic = Traffic.checked(declared.traffic, self.backends)
            endpoint.set_traffic(traffic, self.backends)
        for tag, shadow in declared.shadows.items():
            shadowed = endpoint.declared.with_shadow(tag, shadow)  # not those with a share of 0
            endpoint.set_shadow(shadowed, flow(self._backends.find(tag), shadow))
        return endpoint

    async def list_endpoints(self) -> dict[str, dict[str, Any]]:
        self.check_open()
        return {
            name: {
                "route": endpoint.route,
                "methods": list(endpoint.methods),
                "traffic": dict(endpoint.declared.traffic),
                "shadows": {
                    tag: shadow.proportion for tag, shadow in endpoint.declared.shadows.items()
                },
            }
            for name, endpoint in self.endpoints.items()
        }

    async def delete_endpoint(self, name: str) -> None:
        async with self._declaring:
            self.check_open()
            endpoint = self.endpoint(name)
            await self._journal.delete("endpoint", name)
            self.registry.remove(endpoint)

    async def set_traffic(self, endpoint: str, weights: Mapping[str, float]) -> None:
        async with self._declaring:
            self.check_open()
            found = self.endpoint(endpoint)
            traffic = Traffic.checked(weights, self.backends)
            weights = dict(traffic.weights)
            await self._journal.put(replace(found.declared, traffic=weights))
            found.set_traffic(traffic, self.backends)

    async def shadow_traffic(
        self,
        endpoint: str,
        backend: str,
        proportion: float,
        *,
        compare: Callable[[Any, Any], bool] | str | None = None,
    ) -> None:
        async with self._declaring:
            self.check_open()
            found = self.endpoint(endpoint)
            flow = ShadowFlow(self._backends.find(backend), Shadow(proportion, compare))
            declared = found.declared.with_shadow(backend, flow.declared)
            await self._journal.put(declared)
            found.set_shadow(declared, flow)

    async def get_handle(self, endpoint: str, missing_ok: bool = False) -> EndpointHandle:
        self.check_open()
        if missing_ok:
            checked_tag("an endpoint's name", endpoint)
        else:
            self.endpoint(endpoint)
        return EndpointHandle(endpoint, self._lifetime, self.registry)

    async def status(self) -> Status:
        self.check_open()
        readings = await self.devices.meter.read()
        self.check_open()
        return self.status_now(readings)

    def lacks(self, *, backends: Iterable[str], endpoints: Iterable[str]) -> set[DeclaredName]:
        """Returns the declarations to create: missing ones that nobody has deleted."""
        names = self._journal.not_deleted(declared_names(backends, endpoints))
        return names - declared_names(self.backends, self.endpoints)

    def announce_endpoints(self, names: Sequence[str]) -> None:
        """Names the endpoints to come once backends have started, for messages."""
        self.registry.coming = names

    def status_now(self, readings: Mapping[str, GpuReading] | None = None) -> Status:
        return Status(
            backends={tag: backend.status() for tag, backend in self.backends.items()},
            endpoints={name: endpoint.status() for name, endpoint in self.endpoints.items()},
            gpus=self.devices.status(readings),
            model_server=self.model_server_status(),
        )

    def endpoint(self, name: str) -> Endpoint:
        return self.registry.find(name)

    def check_open(self) -> None:
        self._lifetime.check_open()

    async def shutdown(self) -> None:
        await self._lifetime.shutdown()

    async def wait_ending(self) -> None:
        await self._lifetime.wait_ending()

    def drain(self) -> None:
        """Stops batches from waiting to fill, and requests from waiting for traffic."""
        # Calls are still accepted.
        self.is_draining = True
        self.registry.close_unrouted()
        self._backends.drain()

    def handle(self, endpoint: str, handle_options: HandleOptions) -> EndpointHandle:
        """Makes a handle for code in a replica of this controller."""
        return EndpointHandle(
            endpoint, self._lifetime, self.registry, True, handle_options=handle_options
        )

    async def answer_call_out(self, call: CallOut) -> Any:
        """Makes a call for code in a replica's process."""
        if call.options == IS_THERE:
            return call.endpoint in self.endpoints
        handle = self.handle(call.endpoint, call.options)
        if call.stream:
            return handle.stream(*call.args, **call.kwargs)
        return await handle.call(*call.args, **call.kwargs)

    async def _drain_and_close(self) -> None:
        self.drain()
        await self._backends.close()

    async def _restore(self) -> None:
        """Restores the state file; backends that can't start are retried for ever."""
        backends, endpoints = await self._journal.restored()
        for tag, code, config in backends:
            self._backends.add(await self._backends.start(tag, code, config))
        flow = partial(ShadowFlow.restored, self._journal.comparison)
        for declared in endpoints:
            self.registry.add(self._made(declared, flow))

    def _enter(self) -> None:
        """Sets this controller in the context of a task that may run code of its backends."""
        running_controller.set(self)

    def _prepare(self, replica: Replica) -> None:
        """Lets code of a replica in another process call endpoints of this controller."""
        replica.on_call_out = self.answer_call_out
