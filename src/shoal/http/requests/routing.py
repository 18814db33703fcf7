"""Routing: a table of whole paths, and prefixes of mounted applications.

Paths have no parameters, since the arguments of a call are in its body. So one look-up finds a
route. The application's routes take precedence over mounted applications.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from shoal.http.requests.problem import Refused, not_open
from shoal.observe.metrics import NO_ENDPOINT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp

    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.settings import HttpSettings


class Route(Protocol):
    """Answers the requests with one method at a path."""

    @property
    def name(self) -> str:
        """The name that its answers are counted under."""
        ...

    async def answer(self, exchange: Exchange) -> None:
        """Answers one request."""
        ...


class Page:
    """A route of the application itself, other than an endpoint."""

    name = NO_ENDPOINT

    def __init__(self, answer: Callable[[Exchange], Awaitable[None]]) -> None:
        self._answer = answer

    async def answer(self, exchange: Exchange) -> None:
        """Answers one request."""
        await self._answer(exchange)


class NotOpenRoute:
    """Answers at the paths of endpoints while the application is not open."""

    name = NO_ENDPOINT

    def __init__(self, settings: HttpSettings) -> None:
        self._settings = settings

    async def answer(self, exchange: Exchange) -> None:
        """Refuses one request."""
        raise Refused(not_open(self._settings))


class Routes:
    """The table of routes.

    Attributes:
        mounts: Mounted applications by prefix, the longest first, so that the first match is the
            most specific one.
    """

    def __init__(self) -> None:
        self._table: dict[str, dict[str, Route]] = {}
        self.mounts: dict[str, ASGIApp] = {}

    def at(self, path: str) -> dict[str, Route] | None:
        """Returns the routes at a path by method; None if there are none."""
        return self._table.get(path)

    def check_free(self, path: str, methods: tuple[str, ...]) -> None:
        """Checks that a path has no route for any of these methods yet.

        Raises:
            ValueError: It has one.
        """
        for method in methods:
            if (taken := self._table.get(path, {}).get(method)) is not None:
                raise ValueError(f"{method} {path} is declared already, as {taken.name!r}")

    def add(self, path: str, methods: tuple[str, ...], route: Route) -> None:
        """Adds a route at a path."""
        self._table.setdefault(path, {}).update(dict.fromkeys(methods, route))

    def mount(self, prefix: str, app: ASGIApp) -> None:
        """Mounts an application under a prefix, which has no slash at its end.

        Raises:
            ValueError: The prefix is taken.
        """
        if prefix in self.mounts:
            raise ValueError(f"{prefix or '/'!r} is mounted already")
        self.mounts[prefix] = app
        self.mounts = dict(sorted(self.mounts.items(), key=lambda item: -len(item[0])))

    def mounted_at(self, path: str) -> tuple[str, ASGIApp] | None:
        """Returns the mounted application for a path, with its prefix; None if there is none."""
        for prefix, app in self.mounts.items():
            if path == prefix or path.startswith(f"{prefix}/"):
                return prefix, app
        return None
