"""Routing: a table of paths, and prefixes of mounted applications.

One look-up finds a route at a path without parameters. A path may have parameters, as in Starlette:
``/users/{id:int}``. Such paths come after the others, in the order of their declaration, until one
has a route for the request's method. The application's routes take precedence over mounted
applications.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from typing_extensions import override

from shoal.http.requests.codec import problem_json
from shoal.http.requests.problem import Refused
from shoal.observe.metrics import NO_ENDPOINT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from starlette.convertors import Convertor
    from starlette.types import ASGIApp

    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.problem import Problem

R = TypeVar("R")


class Route(ABC):
    """Answers the requests with one method at a path; counted under its name and protocol."""

    protocol: ClassVar[str] = "other"

    def __init__(self, name: str = NO_ENDPOINT) -> None:
        self.name = name

    @abstractmethod
    async def answer(self, exchange: Exchange) -> None:
        """Raises `CallerLeft` if the client is gone, or did not read in time."""

    def problem(self, problem: Problem, request_id: str) -> tuple[bytes, bytes]:
        """Returns the media type and the body of the response to a failed request."""
        return problem_json(problem, request_id)


class Page(Route):
    """A route of the application itself, other than an endpoint."""

    def __init__(self, answer: Callable[[Exchange], Awaitable[None]]) -> None:
        super().__init__()
        self._answer = answer

    @override
    async def answer(self, exchange: Exchange) -> None:
        await self._answer(exchange)


class ProblemRoute(Route):
    def __init__(self, problem: Problem) -> None:
        super().__init__()
        self._problem = problem

    @override
    async def answer(self, exchange: Exchange) -> None:
        raise Refused(self._problem)


class PathMatch(NamedTuple, Generic[R]):
    """The routes at a path, by method; `path` is as declared, or empty for several or none."""

    routes: Mapping[str, R]
    params: Mapping[str, Any]
    path: str = ""


class _Pattern(NamedTuple, Generic[R]):
    """A path with parameters; `longest` bounds the length of a matching path."""

    regex: re.Pattern[str]
    convertors: Mapping[str, Convertor[Any]]
    longest: float
    routes: dict[str, R]
    path: str


_LONGEST_AMBIGUOUS: Final = 512
_PARAMETER: Final = re.compile(r"{[^{}:]*(?::([^{}]*))?}")


def _is_ambiguous(path: str) -> bool:
    """Returns whether a path's parameters may divide the same text in several ways."""
    # Then a regular expression takes quadratic time or more for a long text. Parameters divided by
    # a slash are not ambiguous, unless one may contain slashes.
    kinds = [one[1] for one in _PARAMETER.finditer(path)]
    if len(kinds) > 1 and "path" in kinds:
        return True
    return any(len(_PARAMETER.findall(segment)) > 1 for segment in path.split("/"))


class PathTable(Generic[R]):
    """Routes by path and method; the first of two with the same wins."""

    def __init__(self) -> None:
        self._plain: dict[str, PathMatch[R]] = {}
        self._by_path: dict[str, dict[str, R]] = {}
        self._patterns: list[_Pattern[R]] = []

    def add(self, path: str, methods: tuple[str, ...], route: R) -> None:
        routes = self._by_path.get(path)
        if routes is None:
            routes = self._by_path[path] = {}
            if "{" in path:
                from starlette.routing import compile_path

                regex, _, convertors = compile_path(path)
                longest = _LONGEST_AMBIGUOUS if _is_ambiguous(path) else math.inf
                self._patterns.append(_Pattern(regex, convertors, longest, routes, path))
            else:
                self._plain[path] = PathMatch(routes, {}, path)
        for method in methods:
            routes.setdefault(method, route)

    def at(self, path: str, method: str) -> PathMatch[R] | None:
        """Returns the first match with a route for the method, else all matching routes."""
        match = self._plain.get(path)
        if not self._patterns or (match is not None and method in match.routes):
            return match
        matching = [*([] if match is None else [match]), *self._matching(path)]
        wanted = {method, "GET"} if method == "HEAD" else {method}
        for match in matching:
            if not wanted.isdisjoint(match.routes):
                return match
        routes: dict[str, R] = {}
        for match in matching:
            routes |= match.routes
        return PathMatch(routes, {}) if matching else None

    def _matching(self, path: str) -> Iterator[PathMatch[R]]:
        """Yields the routes of each path with parameters that matches."""
        for pattern in self._patterns:
            match = pattern.regex.fullmatch(path) if len(path) <= pattern.longest else None
            if match is None:
                continue
            with suppress(ValueError):  # such as a number of too many digits
                params = {n: one.convert(match[n]) for n, one in pattern.convertors.items()}
                yield PathMatch(pattern.routes, params, pattern.path)


class Mounts:
    """Mounted applications, by prefix, in the order of mounting."""

    def __init__(self) -> None:
        self.by_prefix: dict[str, ASGIApp] = {}
        # The longest prefix first, so that the first match is the most specific one.
        self._by_length: list[tuple[str, ASGIApp]] = []

    def add(self, prefix: str, app: ASGIApp) -> None:
        """Raises TypeError for other objects, ValueError if the prefix is taken."""
        if not callable(getattr(app, "app", app)):
            raise TypeError(f"mount() takes an ASGI application, not {app!r}")
        if prefix in self.by_prefix:
            raise ValueError(f"{prefix or '/'!r} is mounted already")
        self.by_prefix[prefix] = app
        self._by_length = sorted(self.by_prefix.items(), key=lambda item: -len(item[0]))

    def at(self, path: str) -> tuple[str, ASGIApp] | None:
        for prefix, app in self._by_length:
            if path == prefix or path.startswith(f"{prefix}/"):
                return prefix, app
        return None
