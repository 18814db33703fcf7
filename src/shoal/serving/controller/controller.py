"""The controller: it owns backends and endpoints, and is the client of the program that it is in.

What is declared (the backends and endpoints there are, their configs, traffic and shadows) changes
under one lock, a change at a time: it is checked, written down where state is kept, and then takes
effect at once, with no pause in which a request could meet half of it. What takes long (to start
replicas, to drain them) is outside of that lock, and under one for each backend.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.core.options.checks import yes_or_no
from shoal.core.traffic import Traffic
from shoal.errors import InUse
from shoal.replicas.code.definition import Definition, named_arguments
from shoal.replicas.placements import placement_of
from shoal.serving.backends.status import status_of
from shoal.serving.backends.update import changed, restart
from shoal.serving.clients.sync import SyncFace
from shoal.serving.config.config import BackendConfig
from shoal.serving.controller.handle import EndpointHandle
from shoal.serving.controller.journal import declared_backend, declared_endpoint
from shoal.serving.controller.lifetime import Owner
from shoal.serving.endpoints.endpoint import Endpoint
from shoal.serving.endpoints.shadow import ShadowFlow
from shoal.serving.names import DEFAULT_METHODS, checked_methods, checked_route, checked_tag
from shoal.serving.status import Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import anyio

    from shoal.serving.clients.protocol import Client
    from shoal.serving.controller.lifetime import Leaving


class Controller(Owner):
    """Owns backends and endpoints, and drives them; see `Client` for its verbs.

    Open it with ``async with``. It starts nothing before, and nothing of it is left after.

    Args:
        state: Where to keep what is declared, and to restore it from; None to keep nothing.
        imports: What may be imported of what the state names; None for all.
        program: What the program declares by itself, and may restore whatever it names.

    Attributes:
        backends: The backends, by tag.
        endpoints: The endpoints, by name.
        routes: The endpoints by path and method.
        version: Another number whenever endpoints have come or gone.
        url: Where it is served over HTTP; None where it is not.
    """

    def _as_client(self) -> Client:
        return self

    @property
    def sync(self) -> SyncFace:
        """The same for threads."""
        return SyncFace(self, self.threads)

    async def create_backend(
        self,
        tag: str,
        definition: Any,
        *init_args: Any,
        config: BackendConfig | Mapping[str, Any] | None = None,
        init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """See `Client.create_backend`."""
        self.check_open()
        checked_tag("a backend's tag", tag)
        code = definition
        if not isinstance(definition, Definition):
            code = Definition(definition, init_args, named_arguments(init_kwargs)).checked()
        await self.declare_backend(tag, code, BackendConfig.of(config))

    async def declare_backend(
        self, tag: str, code: Definition, config: BackendConfig, after: anyio.Event | None = None
    ) -> None:
        """Creates a backend, that may have to start beside others and come after them.

        Args:
            tag: What to call it.
            code: The code.
            config: How it runs.
            after: Set when all is there that comes before it; None for nothing.

        Raises:
            As `create_backend`.
        """
        placement_of(config.placement)
        self._declarations.check_backend(tag, code, config)
        self._reserve(tag)
        try:
            async with self._starting(tag, code, config) as backend:
                await self._ready(backend)
                if after is not None:
                    await after.wait()
                async with self._declaring:
                    self.check_open()
                    await self._declarations.put_backend(tag, code, config)
                    self.backends[tag] = backend
        finally:
            self._reserved.discard(tag)

    async def update_backend_config(
        self, tag: str, config: BackendConfig | Mapping[str, Any]
    ) -> None:
        """See `Client.update_backend_config`."""
        async with self._changing_backend(tag) as backend:
            config = backend.config.changed(config)
            self._declarations.check_backend(tag, backend.definition, config)
            async with changed(backend, config), self._declaring:
                self.check_open()
                await self._declarations.put_backend(tag, backend.definition, config)

    async def scale_backend(self, tag: str, num_replicas: int) -> None:
        """See `Client.scale_backend`."""
        await self.update_backend_config(tag, {"num_replicas": num_replicas})

    async def restart_backend(self, tag: str) -> None:
        """See `Client.restart_backend`."""
        async with self._changing_backend(tag) as backend:
            await restart(backend)

    async def get_backend_config(self, tag: str) -> BackendConfig:
        """See `Client.get_backend_config`."""
        self.check_open()
        return self._backend(tag).config

    async def list_backends(self) -> dict[str, BackendConfig]:
        """See `Client.list_backends`."""
        self.check_open()
        return {tag: backend.config for tag, backend in self.backends.items()}

    async def delete_backend(self, tag: str, *, force: bool = False) -> None:
        """See `Client.delete_backend`."""
        self.check_open()
        at_once = yes_or_no("force", force)
        try:
            leaving = self._leaving.get(tag)
        except TypeError:  # as in `_backend`
            leaving = None
        if leaving is None:
            leaving = await self._deleted(tag, at_once=at_once)
        elif at_once:
            leaving.end_at_once()
        await leaving.has_gone.wait()

    async def _deleted(self, tag: str, *, at_once: bool) -> Leaving:
        async with self._changing_backend(tag), self._declaring:
            self.check_open()
            users = [name for name, e in self.endpoints.items() if e.uses(tag)]
            if users:
                raise InUse(
                    f"the backend {tag!r} gets traffic of {', '.join(users)}; send that "
                    "elsewhere first, or delete the endpoint"
                )
            await self._declarations.delete_backend(tag)
            return self._let_go(tag, at_once=at_once)

    async def create_endpoint(
        self,
        name: str,
        *,
        backend: str | None,
        route: str | None = None,
        methods: Sequence[str] = DEFAULT_METHODS,
    ) -> None:
        """See `Client.create_endpoint`."""
        weights = None if backend is None else {backend: 1.0}
        await self.declare_endpoint(name, route=route, methods=methods, weights=weights)

    async def declare_endpoint(
        self,
        name: str,
        *,
        route: str | None,
        methods: Sequence[str],
        weights: Mapping[str, float] | None,
        shadows: Iterable[tuple[str, float, Callable[[Any, Any], bool] | str | None]] = (),
    ) -> None:
        """Creates an endpoint with all that is to be said of it, whole or not at all.

        Args:
            name: Its name.
            route: Its path; None for handles alone.
            methods: The HTTP methods that it answers.
            weights: The share of each backend; None to hold its requests.
            shadows: The backend, the proportion and the comparison of each shadow.

        Raises:
            As `create_endpoint`, `set_traffic` and `shadow_traffic`.
        """
        self.check_open()
        checked_tag("an endpoint's name", name)
        path = None if route is None else checked_route(route)
        endpoint = Endpoint(name, path, checked_methods(methods), self._start_task)
        async with self._declaring:
            self.check_open()
            self._check_free(endpoint)
            if weights is not None:
                traffic = Traffic.checked(weights, self.backends)
                endpoint.set_traffic(traffic, {tag: self.backends[tag] for tag in traffic.weights})
            for tag, proportion, compare in shadows:
                flow = ShadowFlow(self._backend(tag), proportion, compare)
                endpoint.shadows.pop(tag, None)
                if proportion:
                    endpoint.shadows[tag] = flow
            await self._declarations.put_endpoint(endpoint)
            self._add_endpoint(endpoint)

    async def list_endpoints(self) -> dict[str, dict[str, Any]]:
        """See `Client.list_endpoints`."""
        self.check_open()
        return {
            name: {
                "route": endpoint.route,
                "methods": list(endpoint.methods),
                "traffic": {} if endpoint.traffic is None else dict(endpoint.traffic.weights),
                "shadows": {tag: flow.proportion for tag, flow in endpoint.shadows.items()},
            }
            for name, endpoint in self.endpoints.items()
        }

    async def delete_endpoint(self, name: str) -> None:
        """See `Client.delete_endpoint`."""
        self.check_open()
        async with self._declaring:
            self.check_open()
            endpoint = self.endpoint(name)
            await self._declarations.delete_endpoint(name)
            self._remove_endpoint(endpoint)

    async def set_traffic(self, endpoint: str, weights: Mapping[str, float]) -> None:
        """See `Client.set_traffic`."""
        self.check_open()
        async with self._declaring:
            self.check_open()
            found = self.endpoint(endpoint)
            traffic = Traffic.checked(weights, self.backends)
            await self._declarations.put_endpoint(found, traffic=traffic)
            found.set_traffic(traffic, {tag: self.backends[tag] for tag in traffic.weights})

    async def shadow_traffic(
        self,
        endpoint: str,
        backend: str,
        proportion: float,
        *,
        compare: Callable[[Any, Any], bool] | str | None = None,
    ) -> None:
        """See `Client.shadow_traffic`."""
        self.check_open()
        async with self._declaring:
            self.check_open()
            found = self.endpoint(endpoint)
            flow = ShadowFlow(self._backend(backend), proportion, compare)
            shadows = {**found.shadows, backend: flow}
            if not proportion:
                del shadows[backend]
            await self._declarations.put_endpoint(found, shadows=shadows)
            if backend in shadows and backend in found.shadows:
                found.shadows[backend].change(flow)
            else:
                found.shadows = shadows

    async def get_handle(self, endpoint: str, missing_ok: bool = False) -> EndpointHandle:
        """See `Client.get_handle`."""
        self.check_open()
        if missing_ok:
            checked_tag("an endpoint's name", endpoint)
        else:
            self.endpoint(endpoint)
        return EndpointHandle(self, endpoint)

    async def status(self) -> Status:
        """See `Client.status`."""
        self.check_open()
        return self.status_now()

    def lacks(self, *, backends: Iterable[str], endpoints: Iterable[str]) -> set[str]:
        """Says what of a program's own declarations is to be made.

        That is what is not there, and was not deleted: who operates the controller comes first.

        Args:
            backends: The tags of the backends that the program declares.
            endpoints: The names of its endpoints.

        Returns:
            Tags and names, as `declared_backend` and `declared_endpoint` call them.
        """
        there = {*map(declared_backend, self.backends), *map(declared_endpoint, self.endpoints)}
        wanted = {*map(declared_backend, backends), *map(declared_endpoint, endpoints)}
        self._declarations.of_program |= wanted
        return wanted - there - self._declarations.gone

    def status_now(self) -> Status:
        """Returns what there is, and how it is."""
        return Status(
            backends={tag: status_of(backend) for tag, backend in self.backends.items()},
            endpoints={name: endpoint.status() for name, endpoint in self.endpoints.items()},
        )
