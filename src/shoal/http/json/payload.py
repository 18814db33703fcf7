"""Makes the item of a call from the body of a request, by the handler's annotations.

==========================================  =====================================================
the item is annotated as                    the body is
==========================================  =====================================================
``bytes``                                   the item itself, of any media type
`starlette.requests.Request`                available from the request
nothing, or ``Any``                         any JSON
``numpy.ndarray``, or an ``NDArray``        nested lists in JSON, or an ``application/x-npy``
any type that pydantic knows                JSON that is checked against it
several parameters                          a JSON object with their names; those with defaults may
                                            be left out
==========================================  =====================================================

Where JSON is accepted, so is MessagePack, if its package is installed. The endpoint's own
``decode`` function reads everything else, such as headers, forms and files.

A body is checked before its call is made, so that it can't fail other requests in its batch. The
readers and their validators are built once, when the endpoint is declared.
"""

from __future__ import annotations

from inspect import Parameter
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NamedTuple,
    NotRequired,
    Required,
    get_args,
    get_origin,
)

from pydantic import ConfigDict, with_config
from pydantic_core import core_schema
from starlette.datastructures import UploadFile
from starlette.requests import Request
from typing_extensions import TypedDict

from shoal.batching.handlers.annotations import choices
from shoal.batching.handlers.array_types import has_arrays, is_array
from shoal.http.json.arrays import NPY, read_npy
from shoal.http.json.content_coding import decompressed
from shoal.http.json.msgpack import MSGPACK_NAMES, has_msgpack, read_msgpack
from shoal.http.json.validation import BodyForm, JsonType, adapter_of
from shoal.http.json.whole_request import WholeRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from inspect import Signature

    from pydantic import TypeAdapter

    from shoal.asgi.http_options import HttpOptions
    from shoal.http.requests.exchange import Exchange


class Received(NamedTuple):
    """What is read of an `Exchange` to make an item of JSON, or of bytes."""

    headers: Mapping[bytes, bytes]
    options: HttpOptions


class Reader(NamedTuple):
    """How a handler's items are made from bodies; `takes` is one word for the list of routes."""

    # Returns a tuple for several parameters; raises `Refused` if the request does not fit.
    read: Callable[[Exchange, bytes], Any]
    takes: str
    # ``*/*`` for any.
    media_types: Sequence[str] = ()
    # Yields the items of a body with one in each line, or the `Refused` of one; None without JSON.
    lines: Callable[[Exchange, bytes], Iterator[Any]] | None = None


def reader_for(signature: Signature) -> Reader:
    """Raises TypeError for an annotation that JSON or this server can't honour."""
    parameters = list(signature.parameters.values())
    for parameter in parameters:
        _check_known(parameter)
    if not parameters:
        return Reader(_nothing, "nothing")
    annotation = parameters[0].annotation
    takes, forms = "json", [BodyForm(MSGPACK_NAMES, read_msgpack if has_msgpack() else None)]
    if len(parameters) > 1:
        _check_no_request(parameters)
        adapter = fields_adapter(parameters)
    elif annotation is bytes:
        return Reader(decompressed, "bytes", ("*/*",))
    elif annotation is Request:
        return Reader(_request, "request", ("*/*",))
    else:
        adapter = adapter_of(Any if annotation is Parameter.empty else annotation)
        if any(map(is_array, choices(annotation))):
            takes, forms = "array", [*forms, BodyForm((NPY,), read_npy)]
    json = JsonType(adapter, forms)
    return Reader(json.parsed, takes, json.media_types, json.lines)


def _nothing(_exchange: Exchange, _body: bytes) -> Any:
    return ()


def _request(exchange: Exchange, body: bytes) -> Request:
    return WholeRequest(exchange.scope, body)


def _check_no_request(parameters: list[Parameter]) -> None:
    for parameter in parameters:
        if parameter.annotation is Request:
            raise TypeError(
                f"{parameter.name}: list[Request] takes the whole request, so it must be the "
                "handler's only parameter"
            )


def fields_adapter(parameters: list[Parameter], name: str = "Body") -> TypeAdapter[Any]:
    """Checks a record with the names of parameters, and makes an item of their values."""
    fields: dict[str, Any] = {}
    for parameter in parameters:
        annotation: Any = parameter.annotation
        if annotation is Parameter.empty:
            annotation = Any
        is_required = parameter.default is Parameter.empty
        fields[parameter.name] = Required[annotation] if is_required else NotRequired[annotation]
    # The functional form allows any name; a model would fail for "json" or "copy".
    body: Any = TypedDict(name, fields)  # type: ignore[misc]  # fields known at run time
    are_open = any(has_arrays(one.annotation) for one in parameters)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=are_open)
    adapter = adapter_of(with_config(config)(body))

    def item(given: dict[str, Any]) -> Any:
        values = [given.get(p.name, p.default) for p in parameters]
        return values[0] if len(values) == 1 else tuple(values)

    adapter.core_schema = core_schema.no_info_after_validator_function(item, adapter.core_schema)
    return adapter


# A parameter with `Depends()` would be read from the body, so a caller could set what code trusts.
def _check_known(parameter: Parameter) -> None:
    annotation = parameter.annotation
    said = [
        parameter.default,
        *(get_args(annotation) if get_origin(annotation) is Annotated else ()),
    ]
    for one in said:
        for kind in type(one).__mro__:
            if kind.__module__ == "fastapi.params":
                raise TypeError(
                    f"{parameter.name!r} is marked with {kind.__name__}() of FastAPI, which is not "
                    "obeyed here; read it in the endpoint's decode function, or await the code in "
                    "a route of FastAPI"
                )
    if any(isinstance(one, type) and issubclass(one, UploadFile) for one in (annotation, *said)):
        raise TypeError(
            f"{parameter.name!r} is an UploadFile, which JSON can't hold; read the form in the "
            "endpoint's decode function"
        )
