"""Makes the item of a call from a body, by the handler's annotations, and JSON from a result.

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

All JSON is parsed by pydantic, whose parser refuses deep nesting; see `json_type`. For a type that
needs no validation orjson would save a third of a microsecond, of some four hundred that a request
takes.

A body is checked before its call is made, so that it can't fail other requests in its batch. The
readers and their validators are built once, when the endpoint is declared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from inspect import Parameter
from typing import TYPE_CHECKING, Any, NotRequired, Required

import orjson
from pydantic import ConfigDict, TypeAdapter, with_config
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from starlette.requests import Request
from typing_extensions import TypedDict, override

from shoal.http.requests.arrays import NPY, Arrays, is_array
from shoal.http.requests.json_type import JsonType, adapter_of
from shoal.http.requests.problem import Problem, Refused
from shoal.http.requests.replayed_request import ReplayedRequest

if TYPE_CHECKING:
    from inspect import Signature

    from shoal.http.requests.exchange import Exchange


class Reader(ABC):
    """Makes the item of a call from a request.

    Attributes:
        takes: The kind of input, in one word, for the list of routes.
    """

    takes: str

    @abstractmethod
    def item(self, exchange: Exchange, body: bytes) -> Any:
        """Returns the item; a tuple, in order, if the handler has several parameters.

        Raises:
            Refused: The request does not fit the handler's parameters.
        """


class RawReader(Reader):
    """Returns the body unchanged."""

    takes = "bytes"

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        return body


class RequestReader(Reader):
    """Returns a Starlette request whose body has been read already."""

    takes = "request"

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        return ReplayedRequest(exchange.scope, body)


class NothingReader(Reader):
    """Reads nothing, for code without parameters."""

    takes = "nothing"

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        return ()


class JsonReader(Reader):
    """Reads one item from JSON."""

    takes = "json"

    def __init__(self, annotation: Any) -> None:
        self._type = JsonType(adapter_of(Any if annotation is Parameter.empty else annotation))

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        return self._type.parsed(exchange, body)


class ArrayReader(Reader):
    """Reads one numpy array, from JSON or from a ``.npy`` file."""

    takes = "array"

    def __init__(self, annotation: Any) -> None:
        self._arrays = Arrays(annotation)
        self._json = JsonType(
            TypeAdapter(Any),
            "nested lists in application/json, or a .npy file in application/x-npy",
        )

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        given = exchange.headers.get(b"content-type", b"")
        try:
            if given.partition(b";")[0].strip().lower() == NPY:
                return self._arrays.of_npy(body)
            return self._arrays.of_lists(self._json.parsed(exchange, body))
        except (ValueError, OverflowError) as error:
            title = "The body is not an array that the endpoint accepts"
            detail = " ".join(str(error).split())
            raise Refused(Problem(422, "invalid-item", title, detail)) from None


class FieldsReader(Reader):
    """Reads the arguments of several parameters from a JSON object."""

    takes = "json"

    def __init__(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            if parameter.annotation in (bytes, Request):
                raise TypeError(
                    f"{parameter.name}: list[{parameter.annotation.__name__}] takes the whole "
                    "request, so it must be the handler's only parameter"
                )
        self._type = JsonType(fields_adapter(parameters))
        self._parameters = parameters

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        fields: dict[str, Any] = self._type.parsed(exchange, body)
        return tuple(fields.get(p.name, p.default) for p in self._parameters)


def reader_for(signature: Signature) -> Reader:
    """Returns the reader for a handler's items.

    Args:
        signature: The signature of a call with one item.

    Raises:
        TypeError: JSON can't be checked against an annotation.
    """
    parameters = list(signature.parameters.values())
    if not parameters:
        return NothingReader()
    if len(parameters) > 1:
        return FieldsReader(parameters)
    annotation = parameters[0].annotation
    if annotation is bytes:
        return RawReader()
    if annotation is Request:
        return RequestReader()
    if is_array(annotation):
        return ArrayReader(annotation)
    return JsonReader(annotation)


def encoded(value: Any) -> bytes:
    """Writes a handler's result as JSON.

    It accepts JSON types, with integers of any size, numpy arrays and scalars, pydantic models,
    dataclasses, times, and all else that pydantic can serialize. A float that is not finite becomes
    ``null``.

    Raises:
        TypeError: The value can't be written.
    """
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, default=_jsonable, option=options)
    except orjson.JSONEncodeError as error:
        if "Integer exceeds 64-bit range" not in str(error):
            raise
    try:
        return to_json(value, fallback=_jsonable, inf_nan_mode="null")
    except (PydanticSerializationError, ValueError) as error:
        raise TypeError(str(error)) from error


def fields_adapter(parameters: list[Parameter], name: str = "Body") -> TypeAdapter[Any]:
    """Returns an adapter for an object that has a member for each parameter, and no others.

    Args:
        parameters: The parameters.
        name: The name of the object's type.

    Raises:
        TypeError: JSON can't be checked against an annotation.
    """
    fields: dict[str, Any] = {}
    for parameter in parameters:
        is_open = parameter.annotation is Parameter.empty
        annotation: Any = Any if is_open else parameter.annotation
        is_required = parameter.default is Parameter.empty
        fields[parameter.name] = Required[annotation] if is_required else NotRequired[annotation]
    # The functional form allows any name; a model would fail for "json" or "copy".
    body: Any = TypedDict(name, fields)  # type: ignore[misc]  # fields known at run time
    return adapter_of(with_config(ConfigDict(extra="forbid"))(body))


def _jsonable(value: Any) -> Any:
    as_list = getattr(value, "tolist", None)
    if as_list is not None:  # an array of a layout or a library that orjson does not support
        return as_list()
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise TypeError(str(error)) from error
