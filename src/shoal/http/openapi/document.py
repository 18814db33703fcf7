"""The OpenAPI document of an application, rebuilt when its endpoints have changed.

Two endpoints whose paths differ only in the names or types of parameters, such as ``/{id:int}`` and
``/{name}``, are one path to OpenAPI. The first of them is described there; another one only if it
has other methods.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from shoal.http.openapi.answers import Answers, Problems
from shoal.http.openapi.inputs import ItemForms, path_of, path_parameters
from shoal.http.openapi.schemas import Schemas
from shoal.http.requests.plain import encoded
from shoal.serving.names import without_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.openapi.served import ServedEndpoint

# Further endpoints are not described.
MOST_ENDPOINTS: Final = 1000

_DIALECT: Final = "3.1.1"
_GIVEN_ID: Final[dict[str, Any]] = {
    "name": "X-Request-ID",
    "in": "header",
    "description": "The id of the request: 1 to 64 of `A-Z a-z 0-9 _ . : -`. Another is ignored.",
    "schema": {"type": "string"},
}
_TIMEOUT: Final[dict[str, Any]] = {
    "name": "X-Request-Timeout",
    "in": "header",
    "description": "How long the call may take, in seconds, if that is less than usual.",
    "schema": {"type": "string", "pattern": r"^[0-9]{1,15}(\.[0-9]{1,15})?$", "examples": ["2.5"]},
}
_COMMON: Final = {one["name"]: one for one in (_GIVEN_ID, _TIMEOUT)}


class Document:
    """The document of an application, kept until the endpoints change."""

    def __init__(self, options: HttpOptions) -> None:
        self._options = options
        self._endpoints: list[ServedEndpoint] = []
        self._document: dict[str, Any] | None = None

    def as_json(self, endpoints: Sequence[ServedEndpoint], root: str) -> bytes:
        """`root` is the path at which the application is mounted, without a slash at its end."""
        current = list(endpoints[:MOST_ENDPOINTS])
        described = [one.facts for one in self._endpoints]
        if self._document is None or [one.facts for one in current] != described:
            self._document = document_of(current, self._options)
            self._endpoints = current
        return encoded({**self._document, "servers": [{"url": quote(root) or "/"}]})


def document_of(endpoints: Sequence[ServedEndpoint], options: HttpOptions) -> dict[str, Any]:
    """Returns the document without its ``servers``."""
    schemas = Schemas()
    reached = [one for one in endpoints if one.path is not None]
    described: list[_Described] = []
    for endpoint in reached:
        inputs = ItemForms(endpoint, schemas)
        described.append(_Described(endpoint, inputs, Answers(endpoint, inputs, schemas), options))
    schemas.make()
    problems = Problems(schemas, options)
    paths = _Paths()
    for one in described:
        paths.add(one, problems)
    components: dict[str, Any] = {
        "schemas": schemas.used(paths.items, problems.components),
        "responses": dict(sorted(problems.components.items())),
        "parameters": _COMMON,
    }
    if options.security_schemes:
        components["securitySchemes"] = options.security_schemes
    return {
        "openapi": _DIALECT,
        "info": {"title": options.title, "version": options.version},
        "paths": paths.items,
        "components": components,
    }


class _Described:
    def __init__(
        self, endpoint: ServedEndpoint, inputs: ItemForms, answers: Answers, options: HttpOptions
    ) -> None:
        self.endpoint = endpoint
        self._inputs = inputs
        self._answers = answers
        security = endpoint.documented.security
        self._security: Any = options.security if security is None else security

    def operation(self, method: str, problems: Problems) -> dict[str, Any]:
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
            parameters.append(_priority(endpoint.priority_levels))
        operation: dict[str, Any] = {"summary": endpoint.name, "parameters": parameters}
        if endpoint.text:
            operation["description"] = endpoint.text
        body = inputs.body() if takes_body else None
        if body is not None:
            operation["requestBody"] = body
        operation["responses"] = self._answers.of(method, problems, is_secured=any(self._security))
        if self._security:
            operation["security"] = [dict(one) for one in self._security]
        elif endpoint.documented.security is not None:
            operation["security"] = []
        return operation


class _Paths:
    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}
        self._same: dict[str, str] = {}
        self._ids: set[str] = set()

    def add(self, one: _Described, problems: Problems) -> None:
        """Adds an endpoint's path, or its methods if the path is there."""
        endpoint = one.endpoint
        own = path_of(endpoint.path or "")
        path = self._same.setdefault(without_names(own), own)
        methods = self.items.setdefault(path, {})
        for method in endpoint.methods:
            if method.lower() in methods:
                continue
            operation = one.operation(method, problems)
            _rename(operation["parameters"], path)
            only = len(endpoint.methods) == 1
            operation["operationId"] = self._id(
                endpoint.name if only else f"{method.lower()}_{endpoint.name}"
            )
            methods[method.lower()] = operation

    def _id(self, wanted: str) -> str:
        while wanted in self._ids:
            wanted += "_"
        self._ids.add(wanted)
        return wanted


def _rename(parameters: list[dict[str, Any]], path: str) -> None:
    """Gives the parameters of a path the names that they have in an equal path."""
    names = [one["name"] for one in path_parameters(path)]
    for parameter, name in zip(parameters, names, strict=False):
        parameter["name"] = name


def _priority(levels: int) -> dict[str, Any]:
    return {
        "name": "X-Priority",
        "in": "header",
        "description": "The priority level of the call; 1 is the highest.",
        "schema": {"type": "integer", "minimum": 1, "maximum": levels},
    }
