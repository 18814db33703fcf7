"""How the item of a call is sent, in OpenAPI's terms: bodies, and parameters of path and query."""

from __future__ import annotations

import re
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request

from shoal.http.json.arrays import NPY
from shoal.http.json.lines import LINES
from shoal.http.json.payload import fields_adapter, reader_for
from shoal.http.json.queries import is_record, takes_body
from shoal.http.json.validation import adapter_of
from shoal.http.openapi.schemas import Schema, Schemas, scalars
from shoal.serving.query import takes_query

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shoal.http.openapi.served import ServedEndpoint

_PARAMETER: Final = re.compile(r"\{(\w+)(?::(\w+))?\}")
_STEPS: Final[dict[str, Schema]] = {
    "str": {"type": "string", "minLength": 1, "pattern": "^[^/]+$"},
    "path": {"type": "string"},
    "int": {"type": "integer", "minimum": 0},
    "float": {"type": "number", "minimum": 0},
    "uuid": {"type": "string", "format": "uuid"},
}

JSON: Final = "application/json"
BINARY: Final[Schema] = {"type": "string", "format": "binary"}

_ANY_BYTES: Final[dict[str, Any]] = {"application/octet-stream": {"schema": BINARY}}


class ItemForms:
    """The forms of the items of one endpoint, whose types are added to the schemas."""

    def __init__(self, endpoint: ServedEndpoint, schemas: Schemas) -> None:
        self._endpoint = endpoint
        self._schemas = schemas
        self._is_known = False
        self._parameters: list[Parameter] = []
        self._media_types: Sequence[str] = ()
        self._takes_query = False
        if endpoint.signature is not None and not endpoint.decodes:
            try:
                self._add(endpoint.signature)
                self._is_known = True
            except Exception:  # noqa: S110 - only handles can call it; or a hook of the user's raised
                pass

    @property
    def checks_types(self) -> bool:
        """Whether a body may be JSON, which is checked against a type."""
        return not self._is_known or JSON in self._media_types

    @property
    def takes_lines(self) -> bool:
        """Whether a request may have many items, each in a line."""
        return self._is_known and JSON in self._media_types and not self._endpoint.streams

    @property
    def reads_coding(self) -> bool:
        """Whether a content coding is removed; a `Request` has its body as it was sent."""
        return [one.annotation for one in self._parameters] != [Request]

    def _add(self, signature: Signature) -> None:
        self._media_types = reader_for(signature).media_types
        self._parameters = list(signature.parameters.values())
        self._takes_query = takes_query(signature)
        if JSON in self._media_types and NPY.decode() not in self._media_types:
            self._add_item()

    def _add_item(self) -> None:
        name, parameters = self._endpoint.name, self._parameters
        annotation = parameters[0].annotation
        is_object = len(parameters) > 1
        fields = fields_adapter(parameters, _type_name(name, "Item"))
        item = fields
        if not is_object:
            item = adapter_of(Any if annotation is Parameter.empty else annotation)
        if is_object or annotation is not Parameter.empty:
            self._schemas.add((name, "item"), item)
        if not self._takes_query:
            is_whole = len(parameters) == 1 and is_record(annotation)
            self._schemas.add((name, "query"), adapter_of(annotation) if is_whole else fields)

    def takes_body(self, method: str) -> bool:
        if not self._is_known:
            return method not in ("GET", "HEAD", "OPTIONS")
        return bool(self._media_types) and takes_body(method, self._parameters)

    def body(self) -> dict[str, Any] | None:
        """Returns the request body; the schemas have been made."""
        if self._endpoint.decodes:
            return {
                "description": "A body that the endpoint's own function decodes.",
                "content": {"*/*": {"schema": BINARY}},
            }
        if not self._is_known:
            return {
                "description": "The code is not known here, so neither is what it takes.",
                "content": {JSON: {"schema": {}}, **_ANY_BYTES},
            }
        if "*/*" in self._media_types:
            return {
                "description": "The item itself, of any media type.",
                "content": {**_ANY_BYTES, "*/*": {"schema": BINARY}},
            }
        npy = NPY.decode()
        if npy in self._media_types:
            array = {"schema": self._schemas.array()}
            content = {**dict.fromkeys(self._media_types, array), npy: {"schema": BINARY}}
            content |= self._lines()
            return {"description": "An array.", "required": True, "content": content}
        schema = self._schemas.of((self._endpoint.name, "item"))
        content = {one: {"schema": schema} for one in self._media_types}
        return {"required": True, "content": content | self._lines()}

    def _lines(self) -> dict[str, Any]:
        return {LINES.decode(): {"schema": {"type": "string"}}} if self.takes_lines else {}

    def parameters(self, *, is_in_query: bool) -> list[dict[str, Any]]:
        of_path = list(path_parameters(self._endpoint.path or ""))
        return [*of_path, *self._query()] if is_in_query and self._is_known else of_path

    def _query(self) -> Iterator[dict[str, Any]]:
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
        query = self._schemas.of((self._endpoint.name, "query"))
        for name, schema, required in scalars(self._schemas, query):
            yield _parameter("query", name, schema, required=required)


def path_of(route: str) -> str:
    """Returns a route as a path of OpenAPI, which has no types of parameters."""
    return _PARAMETER.sub(r"{\1}", route)


def path_parameters(route: str) -> Iterator[dict[str, Any]]:
    for name, kind in _PARAMETER.findall(route):
        yield _parameter("path", name, _STEPS[kind or "str"], required=True)


def _parameter(source: str, name: str, schema: Schema, *, required: bool) -> dict[str, Any]:
    return {"name": name, "in": source, "required": required, "schema": schema}


def _type_name(endpoint: str, end: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", " ", endpoint).title().replace(" ", "") + end
