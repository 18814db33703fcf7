"""The OpenAPI document of an application, rebuilt when its endpoints have changed.

Two endpoints whose paths differ only in the names or types of parameters, such as ``/{id:int}`` and
``/{name}``, are one path to OpenAPI. The first of them is described there; another one only if it
has other methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Union
from urllib.parse import quote

from shoal.asgi.headers import PROBLEM_JSON
from shoal.batching.handlers.annotations import bare
from shoal.batching.handlers.array_types import is_array
from shoal.http.json.arrays import NPY
from shoal.http.json.endpoint import BYTES, BYTES_TYPES
from shoal.http.json.msgpack import MSGPACK, has_msgpack
from shoal.http.json.stream_forms import JsonLinesForm, ServerSentEvents
from shoal.http.openapi.schemas import (
    BINARY,
    JSON,
    PROBLEM,
    ItemForms,
    Schema,
    Schemas,
    is_response,
    path_of,
    path_parameters,
    results_of,
)
from shoal.http.requests.plain import encoded
from shoal.http.requests.problem import KINDS
from shoal.serving.names import without_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.openapi.served import ServedEndpoint


# Further endpoints are not described.
MOST_ENDPOINTS: Final = 1000

_DIALECT: Final = "3.1.1"


def _header(name: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": schema}


_GIVEN_ID: Final = _header(
    "X-Request-ID",
    "The id of the request: 1 to 64 of `A-Z a-z 0-9 _ . : -`. Another is ignored.",
    type="string",
)
_TIMEOUT: Final = _header(
    "X-Request-Timeout",
    "How long the call may take, in seconds, if that is less than usual.",
    type="string",
    pattern=r"^[0-9]{1,15}(\.[0-9]{1,15})?$",
    examples=["2.5"],
)
_COMMON: Final = {one["name"]: one for one in (_GIVEN_ID, _TIMEOUT)}


class Document:
    """The document of an application, kept until the endpoints change."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self.endpoints: list[ServedEndpoint] = []
        self._document: dict[str, Any] | None = None

    def as_json(self, endpoints: Sequence[ServedEndpoint], root: str) -> bytes:
        """`root` is the path at which the application is mounted, without a slash at its end."""
        current = list(endpoints[:MOST_ENDPOINTS])
        described = [one.facts for one in self.endpoints]
        if self._document is None or [one.facts for one in current] != described:
            self._document = document_of(current, self._options)
            self.endpoints = current
        return encoded({**self._document, "servers": [{"url": quote(root) or "/"}]})


def document_of(endpoints: Sequence[ServedEndpoint], options: HttpOptions) -> dict[str, Any]:
    """Returns the document without its ``servers``."""
    schemas = Schemas()
    operations = [Operations(one, schemas, options) for one in endpoints if one.path is not None]
    schemas.make()
    paths = _paths_of(operations)
    components: dict[str, Any] = {
        "schemas": dict(sorted(schemas.components.items())),
        "responses": {"Problem": _problem(_meaning_of(options))},
        "parameters": _COMMON,
    }
    if options.security_schemes:
        components["securitySchemes"] = options.security_schemes
    return {
        "openapi": _DIALECT,
        "info": {"title": options.title, "version": options.version},
        "paths": paths,
        "components": components,
    }


def _paths_of(described: Sequence[Operations]) -> dict[str, dict[str, Any]]:
    paths: dict[str, dict[str, Any]] = {}
    same: dict[str, str] = {}
    for one in described:
        endpoint = one.endpoint
        own = path_of(endpoint.path or "")
        path = same.setdefault(without_names(own), own)
        methods = paths.setdefault(path, {})
        for method in endpoint.methods:
            if method.lower() in methods:
                continue
            operation = methods[method.lower()] = one.of(method)
            _rename(operation["parameters"], path)
            only = len(endpoint.methods) == 1
            name = endpoint.name if only else f"{method.lower()}_{endpoint.name}"
            operation["operationId"] = name
    return paths


def _rename(parameters: list[dict[str, Any]], path: str) -> None:
    """Gives the parameters of a path the names that they have in an equal path."""
    names = [one["name"] for one in path_parameters(path)]
    for parameter, name in zip(parameters, names, strict=False):
        parameter["name"] = name


_EVENTS: Final = ServerSentEvents.media_type.decode().partition(";")[0]
_LINES: Final = JsonLinesForm.media_type.decode().partition(";")[0]
_BYTES_OR_ANY: Final = (*BYTES_TYPES, Any)
_PROBLEM: Final = {PROBLEM_JSON.decode(): {"schema": PROBLEM}}

_REQUEST_ID: Final[dict[str, Any]] = {
    "description": "The request's id: the client's own if it is well-formed, else a new one.",
    "required": True,
    "schema": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,64}$"},
}
_HEADERS: Final = {"X-Request-ID": _REQUEST_ID}
_ANY_PROBLEM: Final = {"$ref": "#/components/responses/Problem"}


class Operations:
    """The operations of one endpoint, whose types are added to the schemas."""

    def __init__(self, endpoint: ServedEndpoint, schemas: Schemas, options: HttpOptions) -> None:
        self.endpoint = endpoint
        self._inputs = ItemForms(endpoint, schemas)
        self._schemas = schemas
        security = endpoint.documented.security
        self._security: Any = options.security if security is None else security
        signature = endpoint.signature
        annotation = None if signature is None else signature.return_annotation
        kinds: tuple[Any, ...] = ()
        if signature is not None and not endpoint.encodes:
            kinds = results_of(annotation, streams=endpoint.streams)
        self._responses = [one for one in kinds if is_response(one)]
        results = tuple(one for one in kinds if not is_response(one))
        # A result of any type may be bytes.
        may_be_bytes = signature is None or any(one in _BYTES_OR_ANY for one in map(bare, kinds))
        self._of_bytes = BYTES.decode() if may_be_bytes else None
        if not endpoint.streams:
            results = tuple(one for one in results if bare(one) not in BYTES_TYPES)
        self._has_results = bool(results) or signature is None or endpoint.encodes
        self._is_array = any(map(is_array, results))
        if results:
            schemas.add_result((endpoint.name, "result"), Union[results])  # noqa: UP007 - a tuple

    def of(self, method: str) -> dict[str, Any]:
        """Returns the operation of a method; the schemas have been made."""
        endpoint, inputs = self.endpoint, self._inputs
        takes_body = inputs.takes_body(method)
        parameters = inputs.parameters(is_in_query=not takes_body)
        own = {one["name"].lower() for one in parameters if one["in"] == "header"}
        parameters += [
            {"$ref": f"#/components/parameters/{name}"}
            for name in _COMMON
            if name.lower() not in own
        ]
        if endpoint.priority_levels > 1 and "x-priority" not in own:
            text = "The priority level of the call; 1 is the highest."
            kind = {"type": "integer", "minimum": 1, "maximum": endpoint.priority_levels}
            parameters.append(_header("X-Priority", text, **kind))
        operation: dict[str, Any] = {"summary": endpoint.name, "parameters": parameters}
        if endpoint.text:
            operation["description"] = endpoint.text
        if takes_body:
            operation["requestBody"] = inputs.body()
        operation["responses"] = self._responses_of(method)
        if self._security or endpoint.documented.security is not None:
            operation["security"] = [dict(one) for one in self._security]
        return operation

    def _responses_of(self, method: str) -> dict[str, Any]:
        responses: dict[str, Any] = {"200": self._success(), "default": _ANY_PROBLEM}
        if self.endpoint.streams:
            text = "To a reconnection with `Last-Event-ID`: the stream is not made again."
            responses["204"] = {"description": text, "headers": _HEADERS}
        if self._responses:
            own = self._success()
            responses["default"] = {**own, "content": {**own["content"], **_PROBLEM}}
        if any(self._security):
            responses["401"] = {"description": "The caller has not said who it is."}
            responses["403"] = {"description": "The caller may not call this."}
        for status, meaning in self.endpoint.documented.responses.items():
            responses[str(status)] = _problem(meaning)
        if method == "HEAD":
            responses = {key: {"description": "As for GET, without the body."} for key in responses}
        return dict(sorted(responses.items()))

    def _success(self) -> dict[str, Any]:
        schema = self._schemas.of((self.endpoint.name, "result"))
        is_known = self.endpoint.signature is not None
        content = _streams(schema) if self.endpoint.streams or not is_known else {}
        if not self.endpoint.streams:
            content |= self._whole(schema)
        for response in self._responses:
            content |= {response.media_type or "*/*": {}}
        if self.endpoint.encodes:
            content |= {"*/*": {}}
        text = "The items, as they are produced." if self.endpoint.streams else "The result."
        if not is_known:
            text = "The result, or a stream of items: the code is not known here."
        return {"description": text, "headers": _HEADERS, "content": content}

    def _whole(self, schema: Schema) -> dict[str, Any]:
        content: dict[str, Any] = {}
        if self._has_results:
            content[JSON] = {"schema": schema}
            if has_msgpack():
                content[MSGPACK.decode()] = {"schema": schema}
            if self._inputs.takes_lines:
                content[_LINES] = {"schema": {"type": "string"}}
        if self._is_array:
            content[NPY.decode()] = {"schema": BINARY}
        if self._of_bytes is not None:
            content.setdefault(self._of_bytes, {"schema": BINARY})
        return content


def _problem(meaning: str) -> dict[str, Any]:
    return {"description": meaning, "headers": _HEADERS, "content": _PROBLEM}


def _meaning_of(options: HttpOptions) -> str:
    kinds = KINDS | {"overloaded": (options.overload_status, KINDS["overloaded"][1])}
    listed = [f"- {status} `{kind}`: {title}" for kind, (status, title) in kinds.items()]
    return "\n".join(["Why the request failed:", "", *listed])


def _streams(item: Schema) -> dict[str, Any]:
    # The schemas are those of one message, as was usual before OpenAPI 3.2 had its itemSchema.
    lines = [
        _one_member("item", item),
        _one_member("end", {"const": True}),
        _one_member("error", PROBLEM),
    ]
    data: Schema = {"anyOf": [item, {"const": {}}, PROBLEM]}
    return {
        JSON: {"schema": {"type": "array", "items": item}},
        _EVENTS: {
            "schema": {
                "description": "Each event: one without a name has an item, and the last one is "
                "`end` or `error`.",
                "type": "object",
                "required": ["data"],
                "properties": {
                    "data": {"type": "string", "contentMediaType": JSON, "contentSchema": data}
                },
            }
        },
        _LINES: {
            "schema": {
                "description": "Each line, which is JSON; `end` and `error` are the last.",
                "oneOf": lines,
            }
        },
    }


def _one_member(name: str, schema: Schema) -> Schema:
    return {"type": "object", "required": [name], "properties": {name: schema}}
