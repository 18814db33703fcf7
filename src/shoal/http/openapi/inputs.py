"""How the item of a call is sent, in OpenAPI's terms: bodies, and parameters of path and query."""

from __future__ import annotations

import re
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter
from starlette.requests import Request

from shoal.http.openapi.schemas import scalars
from shoal.http.requests.arrays import NPY, is_array
from shoal.http.requests.payload import fields_adapter
from shoal.http.requests.queries import is_record, takes_body
from shoal.serving.query import takes_query

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shoal.http.openapi.schemas import Schema, Schemas
    from shoal.http.openapi.served import ServedEndpoint

_PARAMETER: Final = re.compile(r"\{(\w+)(?::(\w+))?\}")
_STEPS: Final[dict[str, Schema]] = {
    "str": {"type": "string", "minLength": 1, "pattern": "^[^/]+$"},
    "path": {"type": "string"},
    "int": {"type": "integer", "minimum": 0},
    "float": {"type": "number", "minimum": 0},
    "uuid": {"type": "string", "format": "uuid"},
}
_BYTES: Final[Schema] = {"type": "string", "format": "binary"}
_ANY_BYTES: Final[dict[str, Any]] = {"application/octet-stream": {"schema": _BYTES}}

JSON: Final = "application/json"


class Inputs:
    """The forms of the items of one endpoint.

    Args:
        endpoint: The endpoint.
        schemas: The schemas of the document; the endpoint's types are added to them.
    """

    def __init__(self, endpoint: ServedEndpoint, schemas: Schemas) -> None:
        self._endpoint = endpoint
        self._schemas = schemas
        signature = endpoint.signature
        self._parameters = [] if signature is None else list(signature.parameters.values())
        self._is_known = signature is not None
        self._takes_query = signature is not None and takes_query(signature)
        self._annotation: Any = self._parameters[0].annotation if self._parameters else None
        self._is_array = is_array(self._annotation)
        self._has_body = self._annotation not in (bytes, Request)
        self.reads_json = not self._is_known or (bool(self._parameters) and self._has_body)
        if self._parameters and self._has_body and not self._is_array:
            try:
                self._add_types()
            except Exception:  # only handles can call it; or a hook of the user's types raised
                self._is_known = False

    def _add_types(self) -> None:
        name, parameters = self._endpoint.name, self._parameters
        fields = fields_adapter(parameters, _type_name(name))
        if len(parameters) > 1:
            self._schemas.add((name, "item"), fields)
        elif self._annotation is not Parameter.empty:
            self._schemas.add((name, "item"), TypeAdapter(self._annotation))
        if not self._takes_query:
            is_whole = len(parameters) == 1 and is_record(self._annotation)
            adapter = TypeAdapter[Any](self._annotation) if is_whole else fields
            self._schemas.add((name, "query"), adapter)

    def takes_body(self, method: str) -> bool:
        """Returns whether requests with a method have a body."""
        if not self._is_known:
            return method not in ("GET", "HEAD", "OPTIONS")
        return bool(self._parameters) and takes_body(method, self._parameters)

    def body(self) -> dict[str, Any] | None:
        """Returns the request body, after the schemas were made; None if there is none."""
        if not self._is_known:
            return {
                "description": "The code is not known here, so neither is what it takes.",
                "content": {JSON: {"schema": {}}, **_ANY_BYTES},
            }
        if not self._parameters:
            return None
        if not self._has_body:
            return {
                "description": "The item itself, of any media type.",
                "content": {**_ANY_BYTES, "*/*": {"schema": _BYTES}},
            }
        if self._is_array:
            content: dict[str, Any] = {
                JSON: {"schema": self._schemas.array()},
                NPY.decode(): {"schema": _BYTES},
            }
            return {"description": "An array.", "required": True, "content": content}
        schema = self._schemas.of((self._endpoint.name, "item"))
        return {"required": True, "content": {JSON: {"schema": schema}}}

    def query(self) -> Iterator[dict[str, Any]]:
        """Yields the parameters in the query of a request without a body."""
        if not self._parameters or not self._has_body or self._is_array:
            return
        if self._takes_query:
            yield {
                "name": "query",
                "in": "query",
                "description": "Parameters of any names: the item is a dict of them.",
                "style": "form",
                "explode": True,
                "schema": {"type": "object", "additionalProperties": {"type": "string"}},
            }
            return
        found = self._schemas.of((self._endpoint.name, "query"))
        for name, schema, required in scalars(self._schemas, found):
            yield {"name": name, "in": "query", "required": required, "schema": schema}


def path_of(route: str) -> str:
    """Returns a route as a path of OpenAPI, which has no types of parameters."""
    return _PARAMETER.sub(r"{\1}", route)


def path_parameters(route: str) -> Iterator[dict[str, Any]]:
    """Yields the parameters in a route."""
    for name, kind in _PARAMETER.findall(route):
        schema = _STEPS[kind or "str"]
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _type_name(endpoint: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", " ", endpoint).title().replace(" ", "") + "Item"
