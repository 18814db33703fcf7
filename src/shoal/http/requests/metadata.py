"""What a handler may read of the request of a call over HTTP."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from starlette.datastructures import Headers

if TYPE_CHECKING:
    from starlette.types import Scope

    from shoal.batching.calls.leaving import WhenLeft


class Caller(Protocol):
    """What a call needs of the request that it is made for."""

    @property
    def request_id(self) -> str:
        """The id of the request, for the log."""
        ...

    @property
    def scope(self) -> Scope:
        """The ASGI scope."""
        ...

    @property
    def when_left(self) -> WhenLeft:
        """Sets what is called once when the client leaves; at once if it has left already."""
        ...


class HttpMetadata(Mapping[str, Any]):
    """The ``request.metadata`` of a call over HTTP.

    Its keys are ``endpoint``, ``context`` (``"http"``), ``request_id``, ``method``, ``path``,
    ``path_params`` (the values of the route's parameters), ``headers`` (a Starlette `Headers`); and
    ``user`` and ``auth``, which authentication middleware has put into the scope, None without it.
    If the request names them, ``method_name`` and ``shard_key`` (``X-Serve-Call-Method``,
    ``X-Serve-Shard-Key``); for a shadow's copy, ``shadow``.
    """

    __slots__ = ("_caller", "_endpoint")

    def __init__(self, endpoint: str, caller: Caller) -> None:
        self._endpoint = endpoint
        self._caller = caller

    @property
    def caller(self) -> Caller:
        """The request that the call is made for."""
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
        """What must be equal, beside the item, for calls that share a result.

        That is who calls, by the headers that say so and by what a middleware has found out, and
        what a handler is likely to read of the request.
        """
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
