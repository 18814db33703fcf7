"""An endpoint: it routes requests to backends, and holds them while it has no traffic.

Choosing a backend takes no lock and does not wait, so each request is routed by the traffic that is
set at that moment, and changes of traffic need not wait for requests. An endpoint without traffic
holds up to `MOST_HELD` requests, in the order of arrival.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.handlers.binding import Binding
from shoal.errors import DeadlineExceeded, Overloaded
from shoal.failures.exceptions import own_copy
from shoal.serving.names import found
from shoal.serving.shadow import PrimaryAnswer, ShadowFlow
from shoal.status import EndpointStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from shoal.core.traffic import Traffic
    from shoal.serving.backends.backend import Backend
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.state_records import EndpointRecord


def known_among(backends: Iterable[Backend]) -> Iterator[tuple[Backend, MethodBatcher]]:
    for backend in backends:
        if (method_batcher := backend.method_batchers.get("__call__")) is not None:
            yield backend, method_batcher


MOST_HELD: Final = 1024
"""The most requests that wait at an endpoint for traffic, or for a first replica to be ready."""


class Endpoint:
    def __init__(self, declared: EndpointRecord, start_task: Callable[..., None]) -> None:
        self.declared = declared
        self.name = declared.name
        self.route = declared.route
        self.methods = declared.methods
        self.traffic: Traffic | None = None  # None if it is not set, and requests wait
        self.shadows: dict[str, ShadowFlow] = {}
        self.requests = 0  # received
        self.errors = 0
        self.held = 0  # requests that wait for traffic or a replica
        self.backends: Mapping[str, Backend] = {}
        self.only: Backend | None = None  # the one to which all requests go
        self._start_task = start_task
        # The first request that waits for traffic holds it, so that all go on in their order.
        self._turn = anyio.Lock()
        self._changed = anyio.Event()
        self._gone: Exception | None = None

    def set_traffic(self, traffic: Traffic, backends: Mapping[str, Backend]) -> None:
        self.declared = replace(self.declared, traffic=dict(traffic.weights))
        self.traffic = traffic
        self._gone = None  # a draining controller had closed it, since it had no traffic
        self.backends = {tag: backends[tag] for tag in traffic.weights}
        self.only = None if traffic.only is None else backends[traffic.only]
        self._changed.set()

    def set_shadow(self, declared: EndpointRecord, flow: ShadowFlow) -> None:
        self.declared = declared
        tag = flow.backend.tag
        if tag not in declared.shadows:
            self.shadows.pop(tag, None)
        elif tag in self.shadows:
            self.shadows[tag].change(flow)
        else:
            self.shadows[tag] = flow

    def known(self) -> tuple[Backend, MethodBatcher] | None:
        """Returns the first backend whose code is known, and the batcher of its calls."""
        return next(known_among(self.backends.values()), None)

    def close(self, gone: Exception) -> None:
        """Fails waiting and further requests with copies of `gone`."""
        self._gone = gone
        self.only = None
        self.backends = {}
        self._changed.set()

    @property
    def is_gone(self) -> bool:
        return self._gone is not None

    def backend_for(self, shard_key: str | None, tag: str | None = None) -> Backend | None:
        """Chooses the backend of a request; None while there is no traffic."""
        # Requests with equal shard keys go to the same backend. A `tag` asks for a backend by name.
        if tag is not None:
            return found("backend", tag, self.backends)
        if self._gone is not None:
            raise own_copy(self._gone)
        if self.traffic is None:
            return None
        if shard_key is not None:
            return self.backends[self.traffic.choose_for(shard_key)]
        return self.backends[self.traffic.choose(random.random())]  # noqa: S311 - no secret

    async def routed(
        self, method: str, shard_key: str | None, timeout_s: float | None, tag: str | None = None
    ) -> MethodBatcher:
        """Chooses the batcher for a request, and waits for traffic if there is none."""
        if self.held >= MOST_HELD:
            raise Overloaded(
                f"{self.held} requests to the endpoint {self.name!r} wait for traffic or a replica"
            )
        self.held += 1
        try:
            with anyio.move_on_after(timeout_s):
                backend = self.backend_for(shard_key, tag) or await self._hold(shard_key)
                return backend.method_batchers.get(method) or await backend.method_batcher(method)
        finally:
            self.held -= 1
        raise DeadlineExceeded(
            f"the endpoint {self.name!r} had no backend for the call within {timeout_s} s"
        )

    def copied(
        self, method_batcher: MethodBatcher, item: Any, metadata: Mapping[str, Any]
    ) -> PrimaryAnswer:
        """Sends copies of a request to shadows; returns where to set the answer to compare."""
        method = method_batcher.method.name
        # A backend that has traffic too gets no copy of a request that it answers itself: the
        # answer would be compared with itself, and the copy would take room in the queue of real
        # requests.
        others = [
            f
            for f in self.shadows.values()
            if f.backend.method_batchers.get(method) is not method_batcher
        ]
        taking = [f for f in others if f.takes(random.random())]  # noqa: S311
        answer = PrimaryAnswer()
        if taking:
            binding = Binding.of_items(method_batcher.batcher.signature, "arguments")
            args, kwargs = binding.columns([item])
            copied = {**metadata, "shadow": True}
            for flow in taking:
                self._start_task(flow.copy, method, tuple(args), kwargs, copied, answer)
        return answer

    async def _hold(self, shard_key: str | None) -> Backend:
        async with self._turn:
            while (backend := self.backend_for(shard_key)) is None:
                self._changed = anyio.Event()
                await self._changed.wait()
            return backend

    def uses(self, tag: str) -> bool:
        """Whether its traffic (of any weight) or its shadows name a backend."""
        return tag in self.shadows or tag in self.declared.traffic

    def status(self) -> EndpointStatus:
        return EndpointStatus(
            name=self.name,
            route=self.route,
            methods=list(self.methods),
            traffic=dict(self.declared.traffic),
            shadows=[flow.status() for flow in self.shadows.values()],
            held=self.held,
            requests=self.requests,
            errors=self.errors,
        )
