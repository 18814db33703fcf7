"""The ``request.metadata`` of a call over HTTP.

Its keys are ``endpoint``, ``context`` (``"http"``), ``request_id``, ``method``, ``path``,
``path_params`` (the values of the route's parameters) and ``headers`` (a Starlette `Headers`).
``user`` and ``auth`` come from authentication middleware, and are None without it. ``method_name``
and ``shard_key`` are there if the request has ``X-Serve-Call-Method`` or ``X-Serve-Shard-Key``, and
``shadow`` in the copy for a shadow.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from starlette.datastructures import Headers

if TYPE_CHECKING:
    from starlette.types import Scope

    from shoal.batching.calls.leaving import WhenLeft


class Caller(Protocol):
    """The request that a call is made for."""

    @property
    def request_id(self) -> str: ...

    @property
    def scope(self) -> Scope: ...

    @property
    def when_left(self) -> WhenLeft: ...


class HttpMetadata(Mapping[str, Any]):
    __slots__ = ("_caller", "_endpoint")

    def __init__(self, endpoint: str, caller: Caller) -> None:
        self._endpoint = endpoint
        self._caller = caller

    @property
    def caller(self) -> Caller:
        return self._caller

    def __getitem__(self, key: str) -> Any:
        match key:
            case "endpoint":
                return self._endpoint
            case "context":
                return "http"
            case "request_id":
                return self._caller.request_id
            case "method" | "path":
                return self._caller.scope[key]
            case "path_params":
                return self._caller.scope.get("path_params", {})
            case "user" | "auth":
                return self._caller.scope.get(key)
            case "headers":
                return Headers(scope=self._caller.scope)
            case _:
                return self._of_ray[key]

    @property
    def _of_ray(self) -> dict[str, str]:
        headers = self._caller.scope["headers"]
        return {_OF_RAY[name]: v.decode("latin-1") for name, v in headers if name in _OF_RAY}

    @property
    def user_context(self) -> Hashable:
        """The part of a request that must be equal for calls to share a result."""
        # The caller, by credentials in headers and by middleware's findings, and what handlers are
        # likely to read.
        scope = self._caller.scope
        found_out = [scope.get("user"), scope.get("auth")]
        return (
            scope["method"],
            tuple(sorted(scope.get("path_params", {}).items())),
            tuple([pair for pair in scope["headers"] if pair[0] in _OF_USERS]),
            *(one if one is None or one.__hash__ is not None else object() for one in found_out),
        )

    def __iter__(self) -> Iterator[str]:
        return iter((*_KEYS, *self._of_ray))

    def __len__(self) -> int:
        return len(_KEYS) + len(self._of_ray)


_OF_USERS: Final = (b"authorization", b"cookie", b"proxy-authorization", b"x-api-key")
_KEYS: Final = (
    *("endpoint", "context", "request_id", "method", "path", "path_params"),
    *("headers", "user", "auth"),
)
_OF_RAY: Final = {b"x-serve-call-method": "method_name", b"x-serve-shard-key": "shard_key"}
