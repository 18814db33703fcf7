"""JSON schemas of items and results, made by pydantic, and the forms in which items are sent.

A type for which pydantic has no schema is described as any JSON: an endpoint is never missing from
the document because of its types.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from inspect import Parameter, Signature
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, Union

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaWarningKind
from starlette.responses import Response

from shoal.batching.calls.stream import Mark
from shoal.batching.handlers.array_types import is_array
from shoal.http.json.arrays import NPY
from shoal.http.json.lines import LINES
from shoal.http.json.payload import fields_adapter, reader_for
from shoal.http.json.queries import is_record, takes_body
from shoal.http.json.validation import adapter_of
from shoal.http.requests.plain import encoded
from shoal.serving.query import takes_query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_core import core_schema

    from shoal.http.openapi.served import ServedEndpoint

Schema: TypeAlias = dict[str, Any]
# The name of an endpoint, and the role of a type in it.
Key: TypeAlias = tuple[str, Literal["item", "query", "result"]]

_REF: Final = "#/components/schemas/"
# Pydantic names a component by a class, so it never has a full stop.
_ARRAY: Final = "shoal.Array"
_ARRAY_RESULT: Final = "shoal.ArrayResult"
_PROBLEM: Final = "shoal.Problem"
PROBLEM: Final[Schema] = {"$ref": f"{_REF}{_PROBLEM}"}


_TEXT: Final[Schema] = {"type": "string"}
_MISTAKE: Final[Schema] = {
    "type": "object",
    "required": ["loc", "msg", "type"],
    "properties": {"loc": {"type": "array"}, "msg": _TEXT, "type": _TEXT},
}
_PROBLEM_SCHEMA: Final[Schema] = {
    "type": "object",
    "title": "Problem",
    "description": "Why a request failed, as of RFC 9457.",
    "required": ["type", "title", "status", "instance"],
    "properties": {
        "type": {**_TEXT, "description": "A URN for programs to compare, or `about:blank`."},
        "title": _TEXT,
        "status": {"type": "integer", "minimum": 300, "maximum": 599},
        "detail": {"description": "What is wrong: text, or any JSON that the code chose."},
        "instance": {**_TEXT, "description": "The request's id, which is in the server's log."},
        "errors": {"type": "array", "items": _MISTAKE},
        "traceback": {"type": "array", "items": _TEXT},
    },
}


class _Generator(GenerateJsonSchema):
    """Describes a type without a schema as any JSON."""

    ignored_warning_kinds: set[JsonSchemaWarningKind] = {  # noqa: RUF012 - as pydantic has it
        *("skipped-choice", "non-serializable-default")
    }

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> Schema:
        return {}

    def float_schema(self, schema: core_schema.FloatSchema) -> Schema:
        number = super().float_schema(schema)
        if self.mode == "validation" or not schema.get("allow_inf_nan", True):
            return number
        # A result that is not finite is sent as null.
        return {"anyOf": [number, {"type": "null"}]}


class Schemas:
    def __init__(self) -> None:
        self.components: dict[str, Schema] = {_PROBLEM: _PROBLEM_SCHEMA}
        self._adapters: dict[Key, tuple[JsonSchemaMode, TypeAdapter[Any]]] = {}
        self._found: dict[Key, Schema] = {}

    def add(self, key: Key, adapter: TypeAdapter[Any]) -> None:
        mode: JsonSchemaMode = "serialization" if key[1] == "result" else "validation"
        if _is_describable(adapter, mode):
            self._adapters[key] = mode, adapter

    def add_result(self, key: Key, annotation: Any) -> None:
        """Adds the type of a result; one without a schema is any JSON."""
        if is_array(annotation):
            self._found[key] = self.array_result()
            return
        with suppress(Exception):  # the user's type and its hooks may raise anything
            self.add(key, TypeAdapter[Any](annotation))

    def make(self) -> None:
        schemas, shared = TypeAdapter.json_schemas(
            [(key, mode, adapter) for key, (mode, adapter) in self._adapters.items()],
            ref_template=f"{_REF}{{model}}",
            schema_generator=_Generator,
        )
        self.components |= shared.get("$defs", {})
        self._found |= {key: one for (key, _), one in schemas.items()}

    def of(self, key: Key) -> Schema:
        """Returns the schema of a type, or of any JSON."""
        return self._found.get(key, {})

    def resolved(self, schema: Schema) -> Schema:
        for _ in range(len(self.components) + 1):
            name = schema.get("$ref", "")
            if not name:
                break
            schema = self.components.get(name.removeprefix(_REF), {})
        return schema

    def array(self) -> Schema:
        return self._nested(_ARRAY, "number", "boolean")

    def array_result(self) -> Schema:
        """Returns the schema of an array whose numbers may not be finite."""
        return self._nested(_ARRAY_RESULT, "number", "boolean", "null")

    def _nested(self, name: str, *kinds: str) -> Schema:
        ref = {"$ref": f"{_REF}{name}"}
        self.components[name] = {
            "title": "Array",
            "description": "Numbers, in lists nested to any depth.",
            "anyOf": [*({"type": kind} for kind in kinds), {"type": "array", "items": ref}],
        }
        return ref


def results_of(annotation: Any, *, streams: bool) -> tuple[Any, ...]:
    """Returns the types that a call may return, or that the items of its stream may have."""
    # Without exceptions, and the marks that end or skip a step of a stream.
    if streams:
        origin: Any = typing.get_origin(annotation)
        if inspect.isclass(origin) and issubclass(origin, (Iterator, AsyncIterator)):
            annotation = typing.get_args(annotation)[0]
    if annotation is Parameter.empty or isinstance(annotation, str):
        return (Any,)
    if typing.get_origin(annotation) in (Union, UnionType):
        parts = tuple(part for part in typing.get_args(annotation) if not _is_mark(part))
        return parts or (Any,)
    return (annotation,)


def is_response(annotation: Any) -> bool:
    return inspect.isclass(annotation) and issubclass(annotation, Response)


def _is_mark(part: Any) -> bool:
    if typing.get_origin(part) is Literal:
        return all(isinstance(value, Mark) for value in typing.get_args(part))
    if typing.get_origin(part) is type:
        return all(_is_error(end) for end in typing.get_args(part))
    return part is Mark or _is_error(part)


def _is_error(part: Any) -> bool:
    return inspect.isclass(part) and issubclass(part, BaseException)


def _is_describable(adapter: TypeAdapter[Any], mode: JsonSchemaMode) -> bool:
    """Returns whether a type has a schema that can be sent."""
    try:
        encoded(adapter.json_schema(mode=mode, schema_generator=_Generator))
    except Exception:  # of the user's hooks, which pydantic calls
        return False
    return True


def scalars(schemas: Schemas, schema: Schema) -> Iterator[tuple[str, Schema, bool]]:
    """Yields the members of an object that a text can hold: name, schema, whether required."""
    record = schemas.resolved(schema)
    required = record.get("required", ())
    for name, member in record.get("properties", {}).items():
        if _is_scalar(schemas, member):
            yield name, member, name in required


def _is_scalar(schemas: Schemas, schema: Schema) -> bool:
    resolved = schemas.resolved(schema)
    if "anyOf" in resolved:
        return any(_is_scalar(schemas, one) for one in resolved["anyOf"])
    return resolved.get("type") not in ("array", "object")


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
            with suppress(Exception):  # only handles can call it; or a hook of the user's raised
                self._add(endpoint.signature)
                self._is_known = True

    @property
    def takes_lines(self) -> bool:
        """Whether a request may have many items, each in a line."""
        return self._is_known and JSON in self._media_types and not self._endpoint.streams

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

    def body(self) -> dict[str, Any]:
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
