"""The endpoints of a controller, by name and by route."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.core.request_times import RequestTimes
from shoal.errors import NameTaken, NoSuchName, ShutDown
from shoal.serving.names import found, without_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.serving.endpoints.endpoint import Endpoint


class Endpoints:
    def __init__(self) -> None:
        self.by_name: dict[str, Endpoint] = {}
        self.times = RequestTimes()
        self._by_route: dict[str, dict[str, Endpoint]] = {}
        self.version = 0  # changes whenever an endpoint is added or removed
        # names of endpoints to come once a program's backends have started
        self.coming: Sequence[str] = ()

    def find(self, name: str) -> Endpoint:
        try:
            return found("endpoint", name, self.by_name)
        except NoSuchName:
            if name not in self.coming:
                raise
        raise NoSuchName(
            f"the endpoint {name!r} is not there yet: endpoints are created once all backends have "
            "started; keep the handle in the constructor, and call it in the methods"
        )

    def users_of(self, tag: str) -> list[str]:
        """Returns the names of the endpoints that have traffic or shadows to a backend."""
        return [name for name, endpoint in self.by_name.items() if endpoint.uses(tag)]

    def check_free(self, endpoint: Endpoint) -> None:
        """Raises `NameTaken` if the name or route is taken."""
        there = self.by_name.get(endpoint.name)
        if there is not None:
            same = (there.route, set(there.methods)) == (endpoint.route, set(endpoint.methods))
            raise NameTaken(
                f"there is an endpoint {endpoint.name!r} already, with route={there.route!r} and "
                f"methods={list(there.methods)!r}"
                + ("; set its traffic to send it to another backend" if same else "")
            )
        there_too = self._by_route.get(without_names(endpoint.route or ""), {})
        for method in endpoint.methods:
            taken = there_too.get(method)
            if taken is not None:
                raise NameTaken(
                    f"{method} {endpoint.route} is answered by the endpoint {taken.name!r} already"
                )

    def add(self, endpoint: Endpoint) -> None:
        self.version += 1
        self.by_name[endpoint.name] = endpoint
        if endpoint.route is not None:
            by_method = dict.fromkeys(endpoint.methods, endpoint)
            self._by_route.setdefault(without_names(endpoint.route), {}).update(by_method)

    def remove(self, endpoint: Endpoint) -> None:
        """Removes an endpoint, and fails the requests that wait for its traffic."""
        self.version += 1
        del self.by_name[endpoint.name]
        if endpoint.route is not None:
            path = without_names(endpoint.route)
            methods = self._by_route[path]
            for method in endpoint.methods:
                del methods[method]
            if not methods:
                del self._by_route[path]
        endpoint.close(NoSuchName(f"the endpoint {endpoint.name!r} was deleted"))

    def drain(self) -> None:
        """Fails the requests that wait for traffic, and refuses further ones."""
        for endpoint in self.by_name.values():
            if endpoint.traffic is None:
                endpoint.close(ShutDown("the controller is being shut down"))
