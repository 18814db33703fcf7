"""Query parameters, the item of code without annotations for a request without a body.

Ray Serve 1.x passes a request to the code, and its own examples read
``request.query_params["name"]``. A Starlette request has that too, but exists only in the server's
process, and a call from Python has no request. `Query` is a dict, so it can be sent to other
processes and written as JSON, and code can read its data as ``data["name"]``.
"""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, NoReturn, Self
from urllib.parse import parse_qsl, urlencode

from shoal.core.request import NOTHING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Query(dict[str, str]):
    """The query parameters of a request without a body, or a Python call's keyword arguments."""

    # As a dict it maps each name to its last value.

    def __init__(self, pairs: Iterable[tuple[str, Any]] = ()) -> None:
        self._pairs = tuple(pairs)
        super().__init__(self._pairs)

    @classmethod
    def of(cls, query_string: bytes) -> Self:
        return cls(parse_qsl(query_string.decode("latin-1"), keep_blank_values=True))

    @property
    def query_params(self) -> Self:
        """Itself, under the name that code for Ray Serve uses."""
        return self

    def getlist(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"code without annotations gets the query parameters of a request that has no body, "
            f"and they have no {name!r}; to get the whole request write\n"
            "    from starlette.requests import Request\n"
            "    def handler(request: Request): ...",
            name=name,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._pairs,)


def takes_query(signature: Signature) -> bool:
    """Whether code takes one item of any type, so that a whole query can be the item."""
    parameters = list(signature.parameters.values())
    return len(parameters) == 1 and parameters[0].annotation in (Parameter.empty, Any)


def item_without_data(
    signature: Signature,
    method: str | None,
    headers: Mapping[str, str] | None,
    given: Mapping[str, Any] = NOTHING,
) -> Any:
    """Returns a `Query` or a Starlette request, as the code's parameter requires, or None."""
    parameters = list(signature.parameters.values())
    if len(parameters) != 1 or parameters[0].kind is Parameter.VAR_KEYWORD:
        return None
    [parameter] = parameters
    if parameter.name in given or (not given and parameter.default is not Parameter.empty):
        return None
    annotation = parameter.annotation
    if takes_query(signature):
        return Query(given.items())
    # Compared by name, since Starlette need not be installed for other code.
    if getattr(annotation, "__module__", None) == "starlette.requests":
        query = urlencode(given, doseq=True)
        return annotation(_scope(method or "GET", headers or {}, query), _no_body)
    return None


def _scope(method: str, headers: Mapping[str, str], query: str) -> dict[str, Any]:
    raw = [(name.lower().encode("latin-1"), headers[name].encode("latin-1")) for name in headers]
    return {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": "/",
        "query_string": query.encode("ascii"),
        "headers": raw,
    }


async def _no_body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"", "more_body": False}
