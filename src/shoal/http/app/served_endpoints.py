"""The endpoints of an application as its callers see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

from shoal.http.openapi.served import Documented, ServedEndpoint, text_of

if TYPE_CHECKING:
    from shoal.http.app.declarations import Declarations, EndpointDeclaration
    from shoal.serving.controller.controller import Controller
    from shoal.serving.endpoints.endpoint import Endpoint

Phase = Literal["not open", "opening", "open", "draining", "closed"]
"""The phase of an application's life."""

_NOTHING: Final = Documented()


def served_endpoints(
    phase: Phase, controller: Controller | None, declared: Declarations
) -> list[ServedEndpoint]:
    if controller is None or phase not in ("open", "draining"):
        return [_of_declaration(one) for one in declared.endpoints.values()]
    return [
        _of_endpoint(one, declared.endpoints.get(one.name)) for one in controller.endpoints.values()
    ]


def _of_declaration(declared: EndpointDeclaration) -> ServedEndpoint:
    code = declared.code
    return ServedEndpoint(
        name=declared.name,
        path=declared.path,
        methods=declared.methods,
        signature=None if code is None else code.signature,
        streams=code is not None and code.streams,
        priority_levels=1 if code is None else code.config.given().get("priority_levels", 1),
        text="" if code is None else text_of(code.definition.target),
        documented=declared.documented,
        decodes=code is not None and code.config.decode is not None,
        encodes=code is not None and code.config.encode is not None,
    )


def _of_endpoint(endpoint: Endpoint, declared: EndpointDeclaration | None) -> ServedEndpoint:
    """Describes an endpoint by the first of its backends with known code."""
    documented = _NOTHING if declared is None else declared.documented
    for backend in endpoint.backends():
        method_batcher = backend.method_batchers.get("__call__")
        if method_batcher is not None:
            return ServedEndpoint(
                name=endpoint.name,
                path=endpoint.route,
                methods=endpoint.methods,
                signature=method_batcher.batcher.signature,
                streams=method_batcher.streams,
                priority_levels=method_batcher.batcher.options.priority_levels,
                text=text_of(backend.definition.target),
                documented=documented,
                decodes=backend.config.decode is not None,
                encodes=backend.config.encode is not None,
            )
    return ServedEndpoint(
        name=endpoint.name, path=endpoint.route, methods=endpoint.methods, documented=documented
    )
