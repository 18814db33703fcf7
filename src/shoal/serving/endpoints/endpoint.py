"""An endpoint: where its requests go, and what waits for that to be said.

Choosing a backend takes no lock and no pause, so each request goes by the traffic that is set at
the moment when it is routed, and changes need not wait for any. An endpoint without traffic holds
its requests, in the order of their arrival and only so many.
"""

from __future__ import annotations

import random
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.failures.exceptions import own_copy
from shoal.batching.handlers.binding import Binding
from shoal.errors import DeadlineExceeded, Overloaded
from shoal.serving.endpoints.shadow import PrimaryAnswer
from shoal.serving.status import EndpointStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shoal.core.traffic import Traffic
    from shoal.serving.backends.backend import Backend
    from shoal.serving.backends.method_batcher import MethodBatcher
    from shoal.serving.endpoints.shadow import ShadowFlow

MOST_HELD: Final = 1024
"""How many requests an endpoint holds that has no traffic, or no replica that has been ready."""


class Endpoint:
    """A named entry.

    Attributes:
        name: Its name.
        route: Its path; None if it is for handles alone.
        methods: The HTTP methods that it answers.
        traffic: The share of each backend; None while it holds its requests.
        shadows: Its shadow traffic, by backend.
        requests: How many requests came.
        errors: How many of them failed.
    """

    def __init__(
        self,
        name: str,
        route: str | None,
        methods: Sequence[str],
        start_task: Callable[..., None],
    ) -> None:
        self.name = name
        self.route = route
        self.methods = tuple(methods)
        self.traffic: Traffic | None = None
        self.shadows: dict[str, ShadowFlow] = {}
        self.requests = 0
        self.errors = 0
        self.held = 0
        self._backends: Mapping[str, Backend] = {}
        self._only: Backend | None = None
        self._start_task = start_task
        # Woken one by one: tasks that are woken together run in any order.
        self._waiting: deque[anyio.Event] = deque()
        self._gone: Exception | None = None

    def set_traffic(self, traffic: Traffic, backends: Mapping[str, Backend]) -> None:
        """Divides its requests anew, and lets go of those that it holds."""
        self.traffic = traffic
        self._backends = backends
        self._only = None if traffic.only is None else backends[traffic.only]
        self._wake_next()

    def backends(self) -> list[Backend]:
        """Returns the backends that its traffic names."""
        return list(self._backends.values())

    def close(self, gone: Exception) -> None:
        """Fails what it holds, and takes no more.

        Args:
            gone: What its callers are told.
        """
        self._gone = gone
        self._only = None
        self._wake_next()

    def backend_for(self, shard_key: str | None) -> Backend | None:
        """Chooses the backend of a request; None while there is no traffic.

        Raises:
            ShoalError: The endpoint was deleted, or closed.
        """
        if self._only is not None:
            return self._only
        return self._chosen(shard_key)

    def _chosen(self, shard_key: str | None) -> Backend | None:
        if self._gone is not None:
            raise own_copy(self._gone)
        if self.traffic is None:
            return None
        if shard_key is not None:
            return self._backends[self.traffic.choose_for(shard_key)]
        return self._backends[self.traffic.choose(random.random())]  # noqa: S311 - no secret

    async def routed(
        self, method: str, shard_key: str | None, timeout_s: float | None
    ) -> MethodBatcher:
        """Chooses where a request goes, and waits for traffic if there is none.

        Args:
            method: The method of the backend's code.
            shard_key: Requests with equal keys go to the same backend.
            timeout_s: How long it may wait, in seconds; None for as long as it takes.

        Raises:
            ShoalError: The endpoint was deleted, or closed.
            NoSuchName: The backend has no such method.
            Overloaded: Too many requests wait.
            DeadlineExceeded: There was no traffic, or no replica, in time.
            BackendUnavailable: The backend has no replica, nor will have one soon.
        """
        if self.held >= MOST_HELD:
            raise Overloaded(
                f"{self.held} requests to the endpoint {self.name!r} wait for traffic or a replica"
            )
        self.held += 1
        try:
            with anyio.move_on_after(timeout_s):
                backend = self.backend_for(shard_key) or await self._hold(shard_key)
                return backend.method_batchers.get(method) or await backend.method_batcher(method)
        finally:
            self.held -= 1
        raise DeadlineExceeded(
            f"the endpoint {self.name!r} had no backend for the call within {timeout_s} s"
        )

    def copied(
        self, method_batcher: MethodBatcher, item: Any, metadata: Mapping[str, Any]
    ) -> PrimaryAnswer | None:
        """Sends copies of a request to the shadows that take it.

        A backend that has traffic as well gets no copy of a request that it answers itself: that
        would be compared with itself, and stand in the line of its neighbours.

        Args:
            method_batcher: The line that the request enters.
            item: Its item.
            metadata: Its metadata.

        Returns:
            What wants to be told the answer; None if nothing does.
        """
        method = method_batcher.method.name
        others = [
            f
            for f in self.shadows.values()
            if f.backend.method_batchers.get(method) is not method_batcher
        ]
        taking = [f for f in others if f.takes(random.random())]  # noqa: S311
        if not taking:
            return None
        args, kwargs = Binding.of_items(method_batcher.batcher.signature, "arguments").columns(
            [item]
        )
        answer = PrimaryAnswer()
        copied = {**metadata, "shadow": True}
        for flow in taking:
            self._start_task(flow.copy, method, tuple(args), kwargs, copied, answer)
        if not any(flow.compares for flow in taking):
            return None
        return answer

    async def _hold(self, shard_key: str | None) -> Backend:
        turn = anyio.Event()
        self._waiting.append(turn)
        try:
            while True:
                await turn.wait()
                if (backend := self._chosen(shard_key)) is not None:
                    return backend
                turn = self._waiting[0] = anyio.Event()
        finally:
            was_first = self._waiting[0] is turn
            self._waiting.remove(turn)
            if was_first:
                self._wake_next()

    def _wake_next(self) -> None:
        """Lets the first of those that wait look whether it can go on."""
        if self._waiting and (self.traffic is not None or self._gone is not None):
            self._waiting[0].set()

    def uses(self, tag: str) -> bool:
        """Says whether it sends anything to a backend, or would if weights were other than 0."""
        return tag in self.shadows or (self.traffic is not None and tag in self.traffic.weights)

    def status(self) -> EndpointStatus:
        """Returns what it is, and its counts."""
        return EndpointStatus(
            name=self.name,
            route=self.route,
            methods=list(self.methods),
            traffic={} if self.traffic is None else dict(self.traffic.weights),
            shadows=[flow.status() for flow in self.shadows.values()],
            held=self.held,
            requests=self.requests,
            errors=self.errors,
        )
