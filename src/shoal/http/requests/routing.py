"""Which path is answered by what: a table of whole paths, and prefixes for what is mounted.

A path has no parameters, since what a call takes is in its body; so one look-up finds its route.
The application's routes win over what is mounted.
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
    """What answers at a path to a method."""

    @property
    def name(self) -> str:
        """What its answers are counted under."""
        ...

    async def answer(self, exchange: Exchange) -> None:
        """Answers one request."""
        ...


class Page:
    """A route of the application's own."""

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
    """The table.

    Attributes:
        mounts: What is mounted, by prefix, the longest first: it is the most special one that fits.
    """

    def __init__(self) -> None:
        self._table: dict[str, dict[str, Route]] = {}
        self.mounts: dict[str, ASGIApp] = {}

    def at(self, path: str) -> dict[str, Route] | None:
        """Returns what answers at a path, by method; None if nothing does."""
        return self._table.get(path)

    def check_free(self, path: str, methods: tuple[str, ...]) -> None:
        """Checks that nothing answers yet.

        Raises:
            ValueError: Something does.
        """
        for method in methods:
            if (taken := self._table.get(path, {}).get(method)) is not None:
                raise ValueError(f"{method} {path} is declared already, as {taken.name!r}")

    def add(self, path: str, methods: tuple[str, ...], route: Route) -> None:
        """Lets a route answer at a path."""
        self._table.setdefault(path, {}).update(dict.fromkeys(methods, route))

    def mount(self, prefix: str, app: ASGIApp) -> None:
        """Lets an application answer under a prefix, which has no slash at its end.

        Raises:
            ValueError: Another one does.
        """
        if prefix in self.mounts:
            raise ValueError(f"{prefix or '/'!r} is mounted already")
        self.mounts[prefix] = app
        self.mounts = dict(sorted(self.mounts.items(), key=lambda item: -len(item[0])))

    def mounted_at(self, path: str) -> tuple[str, ASGIApp] | None:
        """Returns the prefix and the application that answer under it at a path, if any do."""
        for prefix, app in self.mounts.items():
            if path == prefix or path.startswith(f"{prefix}/"):
                return prefix, app
        return None
