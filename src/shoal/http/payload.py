"""From a body to the item of one call, by the handler's annotations; and from a result to JSON.

==========================================  =====================================================
the item is annotated as                    the body is
==========================================  =====================================================
``bytes``                                   the item, as it is, of any media type
`starlette.requests.Request`                the request's, to be read from it
nothing, or ``Any``                         any JSON
``numpy.ndarray``, or an ``NDArray``        nested lists in JSON, or an ``application/x-npy``
any type that pydantic knows                JSON that is checked against it
several parameters                          a JSON object with their names; those with defaults may
                                            be left out
==========================================  =====================================================

All JSON goes through pydantic, whose parser refuses deep nesting, once it was looked at by
`json_scan`. Where a type needs no checking orjson would save a third of a microsecond, of some four
hundred that a request takes.

A body is checked before its call is made, so that it can't fail its neighbours in a batch. The
readers and their validators are built once, when the endpoint is declared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final, NotRequired, Required, cast

import orjson
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError, with_config
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic_core import PydanticSerializationError, SchemaValidator, to_json, to_jsonable_python
from starlette.requests import Request
from typing_extensions import TypedDict, override

from shoal.http.arrays import NPY, Arrays, is_array
from shoal.http.json_scan import check_json
from shoal.http.problem import Problem, Refused
from shoal.http.replayed_request import ReplayedRequest

if TYPE_CHECKING:
    from inspect import Signature

    from shoal.http.asgi import Exchange

_MOST_ERRORS_SHOWN: Final = 100
# From so many elements on, the first error of a body is all that is told of it.
_LARGE: Final = 4096


class Reader(ABC):
    """Makes the item of a call from a request.

    Attributes:
        takes: What it reads, in a word, for the list of routes.
    """

    takes: str

    @abstractmethod
    def item(self, exchange: Exchange, body: bytes) -> Any:
        """Makes the item: a tuple where the handler has several parameters, in their order.

        Raises:
            Refused: The request is not what the handler takes.
        """


class RawReader(Reader):
    """Passes the body on as it is."""

    takes = "bytes"

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        return body


class RequestReader(Reader):
    """Passes a Starlette request on, whose body has been read already."""

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
        self._type = JsonType(_adapter(Any if annotation is Parameter.empty else annotation))

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        return self._type.parsed(exchange, body)


class ArrayReader(Reader):
    """Reads one numpy array, from JSON or from a ``.npy`` file."""

    takes = "array"

    def __init__(self, annotation: Any) -> None:
        self._arrays = Arrays(annotation)
        self._json = JsonType(TypeAdapter(Any))

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        given = exchange.headers.get(b"content-type", b"")
        try:
            if given.partition(b";")[0].strip().lower() == NPY:
                return self._arrays.of_npy(body)
            return self._arrays.of_lists(self._json.parsed(exchange, body))
        except (ValueError, OverflowError) as error:
            title = "The body is no array that the endpoint takes"
            detail = " ".join(str(error).split())
            raise Refused(Problem(422, "invalid-item", title, detail)) from None


class FieldsReader(Reader):
    """Reads what several parameters take from a JSON object."""

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
    """Chooses how requests become calls of a handler.

    Args:
        signature: That of the call of one item.

    Raises:
        TypeError: An annotation is none that JSON can be checked against.
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

    It takes what JSON has, with integers of any size, numpy arrays and scalars, pydantic models,
    dataclasses, times, and what pydantic can write beyond that. A float that JSON lacks (NaN, an
    infinity) becomes ``null``.

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


def fields_adapter(parameters: list[Parameter]) -> TypeAdapter[Any]:
    """Makes what checks an object that has a member for each parameter, and no others.

    Raises:
        TypeError: An annotation is none that JSON can be checked against.
    """
    fields: dict[str, Any] = {}
    for parameter in parameters:
        is_open = parameter.annotation is Parameter.empty
        annotation: Any = Any if is_open else parameter.annotation
        is_required = parameter.default is Parameter.empty
        fields[parameter.name] = Required[annotation] if is_required else NotRequired[annotation]
    # The functional form takes any name, where a model would trip over "json" or "copy".
    body: Any = TypedDict("Body", fields)  # type: ignore[misc]  # known at run time
    return _adapter(with_config(ConfigDict(extra="forbid"))(body))


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    try:
        adapter = TypeAdapter[Any](annotation)
        adapter.rebuild()  # an adapter that waits for a name to be defined would fail each body
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise TypeError(
            f"JSON can't be checked against {annotation!r}: annotate the handler's parameter as a "
            "list of a type that pydantic knows, of bytes for the raw body, or not at all for any "
            "JSON"
        ) from error
    return adapter


class JsonType:
    """A type that JSON is checked against."""

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self._adapter = adapter
        self._for_large: SchemaValidator | None = None

    def parsed(self, exchange: Exchange, body: bytes) -> Any:
        """Returns the value.

        Raises:
            Refused: The body is none.
        """
        _check_media_type(exchange)
        elements = check_json(body, exchange.max_json_elements)
        validator = self._adapter if elements < _LARGE else self._ending_at_the_first_error()
        try:
            return validator.validate_json(body)
        except ValidationError as error:
            raise Refused(_of_validation(error)) from None

    def _ending_at_the_first_error(self) -> SchemaValidator:
        # Each error takes several times what the element takes that it is about.
        if self._for_large is None:
            self._for_large = SchemaValidator(_failing_fast(self._adapter.core_schema))
        return self._for_large


def _failing_fast(schema: Any) -> Any:
    if isinstance(schema, dict):
        given = cast("dict[str, Any]", schema)
        # The value of a default is the user's, and no schema, whatever it looks like.
        kept = "default" if given.get("type") == "default" else None
        changed = {k: v if k == kept else _failing_fast(v) for k, v in given.items()}
        if changed.get("type") in ("list", "tuple", "set", "frozenset"):
            changed["fail_fast"] = True
        return changed
    if isinstance(schema, list):
        return [_failing_fast(one) for one in list[Any](schema)]  # pyright: ignore[reportUnknownArgumentType]
    return schema


def _check_media_type(exchange: Exchange) -> None:
    # Refusing what a form can send also keeps other sites' pages from making calls in a browser.
    given = exchange.headers.get(b"content-type")
    if given is not None and given != b"application/json":
        media_type = given.partition(b";")[0].strip().lower()
        is_json = media_type == b"application/json" or (
            media_type.startswith(b"application/") and media_type.endswith(b"+json")
        )
        if not is_json:
            raise _unsupported("This endpoint takes JSON; send Content-Type: application/json.")
    coding = exchange.headers.get(b"content-encoding", b"identity")
    if coding.strip().lower() != b"identity":
        raise _unsupported("This endpoint takes bodies without a content coding.")


def _unsupported(detail: str) -> Refused:
    return Refused(
        Problem(415, "unsupported-media-type", "The media type is not supported", detail)
    )


def _of_validation(error: ValidationError) -> Problem:
    count = error.error_count()
    title = "The body does not fit the endpoint"
    if count > _MOST_ERRORS_SHOWN:
        # To list them is to make an object for each of what may be millions.
        return Problem(422, "invalid-item", title, f"It is wrong in {count} places.")
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    if errors[0]["type"] == "json_invalid" and not errors[0]["loc"]:
        return Problem(400, "invalid-json", "The body is not JSON", errors[0]["msg"])
    first = errors[0]
    where = ".".join(str(step) for step in first["loc"])
    detail = f"{where}: {first['msg']}" if where else first["msg"]
    more = {"errors": [{key: e[key] for key in ("loc", "msg", "type")} for e in errors]}
    return Problem(422, "invalid-item", title, detail, more=more)


def _jsonable(value: Any) -> Any:
    as_list = getattr(value, "tolist", None)
    if as_list is not None:  # an array that orjson does not take: another layout, another library's
        return as_list()
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise TypeError(str(error)) from error
