"""The endpoints of a controller, by name and by route."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import NameTaken, NoSuchName

if TYPE_CHECKING:
    from shoal.serving.endpoints.endpoint import Endpoint


class Entries:
    """The endpoints.

    Attributes:
        endpoints: The endpoints, by name.
        routes: The same by path and method.
        version: Another number whenever endpoints have come or gone.
    """

    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self.routes: dict[str, dict[str, Endpoint]] = {}
        self.version = 0

    def endpoint(self, name: str) -> Endpoint:
        """Returns an endpoint.

        Raises:
            NoSuchName: There is none of that name.
        """
        try:
            found = self.endpoints.get(name)
        except TypeError:  # what can't be hashed is no name either
            found = None
        if found is None:
            there = ", ".join(sorted(self.endpoints)) or "none"
            raise NoSuchName(f"there is no endpoint {name!r}; there are: {there}")
        return found

    def _check_free(self, endpoint: Endpoint) -> None:
        """Checks that an endpoint's name and route are free.

        Raises:
            NameTaken: One is not.
        """
        there = self.endpoints.get(endpoint.name)
        if there is not None:
            same = (there.route, set(there.methods)) == (endpoint.route, set(endpoint.methods))
            raise NameTaken(
                f"there is an endpoint {endpoint.name!r} already, with route={there.route!r} and "
                f"methods={list(there.methods)!r}"
                + ("; set its traffic to send it to another backend" if same else "")
            )
        for method in endpoint.methods if endpoint.route is not None else ():
            taken = self.routes.get(endpoint.route or "", {}).get(method)
            if taken is not None:
                raise NameTaken(
                    f"{method} {endpoint.route} is answered by the endpoint {taken.name!r} already"
                )

    def _add_endpoint(self, endpoint: Endpoint) -> None:
        self.version += 1
        self.endpoints[endpoint.name] = endpoint
        if endpoint.route is not None:
            by_method = dict.fromkeys(endpoint.methods, endpoint)
            self.routes.setdefault(endpoint.route, {}).update(by_method)

    def _remove_endpoint(self, endpoint: Endpoint) -> None:
        self.version += 1
        del self.endpoints[endpoint.name]
        if endpoint.route is not None:
            methods = self.routes[endpoint.route]
            for method in endpoint.methods:
                del methods[method]
            if not methods:
                del self.routes[endpoint.route]
        endpoint.close(NoSuchName(f"the endpoint {endpoint.name!r} was deleted"))
