"""Makes the item of a call from a body, by the handler's annotations.

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
a record, or parameters, with files         also a form: ``multipart/form-data``
==========================================  =====================================================

Where JSON is accepted, so is MessagePack, if its package is installed. A parameter, or a field of a
record, that is marked as a header, a part of the path, of the query, or a cookie comes from there;
see `shoal.http.requests.marks`.

All JSON is parsed by pydantic, whose parser refuses deep nesting; see `json_type`. For a type that
needs no validation orjson would save a third of a microsecond, of some four hundred that a request
takes.

A body is checked before its call is made, so that it can't fail other requests in its batch. The
readers and their validators are built once, when the endpoint is declared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from inspect import Parameter
from typing import TYPE_CHECKING, Any, NotRequired, Protocol, Required, cast

from pydantic import ConfigDict, TypeAdapter, with_config
from starlette.requests import Request
from typing_extensions import TypedDict, override

from shoal.batching.handlers.array_types import choices, has_arrays, is_array
from shoal.core.extras import need
from shoal.http.requests.arrays import NpyForm
from shoal.http.requests.body_form import NotInstalled
from shoal.http.requests.content_coding import decoded
from shoal.http.requests.form_costs import check_form
from shoal.http.requests.json_type import JsonType, adapter_of, keys_of
from shoal.http.requests.marks import Marked, check_no_foreign_marks, element_of, fields_of
from shoal.http.requests.msgpack import MsgpackForm, has_msgpack
from shoal.http.requests.multipart import FormType, Upload, has_multipart
from shoal.http.requests.problem import Problem, Refused
from shoal.http.requests.replayed_request import ReplayedRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from inspect import Signature

    from shoal.http.requests.body_form import BodyForm
    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.json_type import Location


class Reader(ABC):
    """Makes the item of a call from a request.

    Attributes:
        takes: The kind of input, in one word, for the list of routes.
        media_types: The media types of the bodies that it takes; ``*/*`` for any.
    """

    takes: str
    media_types: Sequence[str] = ()

    @abstractmethod
    def item(self, exchange: Exchange, body: bytes) -> Any:
        """Returns the item; a tuple, in order, if the handler has several parameters.

        Raises:
            Refused: The request does not fit the handler's parameters.
        """


class RawReader(Reader):
    """Returns the body, without its content coding."""

    takes = "bytes"
    media_types = ("*/*",)

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        if b"content-encoding" not in exchange.headers:
            return body
        return decoded(exchange.headers, body, exchange.settings.max_body_bytes)


class RequestReader(Reader):
    """Returns a Starlette request whose body has been read already, as it was sent."""

    takes = "request"
    media_types = ("*/*",)

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        # The code may read it as a form, in the event loop.
        check_form(exchange.headers.get(b"content-type", b""), body)
        return ReplayedRequest(exchange.scope, body)


class NothingReader(Reader):
    """Reads nothing, for code without parameters."""

    takes = "nothing"

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        return ()


class JsonReader(Reader):
    """Reads one item from JSON, from MessagePack, or from a form if it has files."""

    takes = "json"

    def __init__(self, annotation: Any) -> None:
        adapter = adapter_of(Any if annotation is Parameter.empty else annotation)
        forms = _forms(by_key(adapter, fields_of(annotation)))
        if any(map(is_array, choices(annotation))):
            self.takes = "array"
            takes = "nested lists in application/json"
            self._type = JsonType(adapter, takes, [*forms, NpyForm()])
        else:
            self._type = JsonType(adapter, forms=forms)
        self.media_types = self._type.media_types

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        return self._type.parsed(exchange, body)


class MarkedRecordReader(Reader):
    """Reads one record, some of whose fields come from other parts of the request than the body.

    Args:
        annotation: The record's type.
        marked: The marks of its fields.

    Attributes:
        annotation: As above.
        marked: As above.
        source_of: The part of the request, and the name there, of each key of a marked field.
        lists: The fields that take nothing but a list.

    Raises:
        TypeError: JSON can't be checked against the type.
    """

    takes = "json"

    def __init__(self, annotation: Any, marked: Marked) -> None:
        fields = fields_of(annotation)
        of_body = {name: one for name, one in fields.items() if name not in marked.sources}
        self.annotation = annotation
        self.marked = marked
        adapter = adapter_of(annotation)
        self._type = JsonType(adapter, forms=_forms(by_key(adapter, of_body)))
        self.lists = self._type.lists
        keys = self._type.keys
        # By the key that the record reads, and by all keys that it could read.
        self._key = {name: keys.get(name, [name])[0] for name in marked.sources}
        self.source_of = {
            key: source for name, source in marked.sources.items() for key in keys.get(name, [name])
        }
        self.media_types = self._type.media_types

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        is_json, given = True, dict[str, Any]()
        if body:
            value, is_json = self._type.unchecked(exchange, body)
            if not isinstance(value, dict):
                raise Refused(_invalid(("body",), "Input should be an object", "dict_type"))
            given = cast("dict[str, Any]", value)
        self._check_not_in_body(given)
        given |= self._values(exchange)
        return self._type.checked(given, len(body), as_json=is_json, where=self._where("body"))

    def of_query(self, exchange: Exchange, query: Mapping[str, Any]) -> Any:
        """Returns the item of a request without a body, whose other fields are in the query.

        Raises:
            Refused: The request does not fit the record.
        """
        given = {name: value for name, value in query.items() if name not in self.source_of}
        given |= self._values(exchange)
        return self._type.checked(given, len(given), as_json=False, where=self._where("query"))

    def _values(self, exchange: Exchange) -> dict[str, Any]:
        return {self._key[n]: value for n, value in self.marked.values(exchange).items()}

    def _check_not_in_body(self, given: dict[str, Any]) -> None:
        # Otherwise a client could set what, for example, a proxy's header says.
        for key in given:
            if key in self.source_of:
                source, there = self.source_of[key]
                message = f"This comes from the {source} ({there}), not from the body"
                raise Refused(_invalid(("body", key), message, "extra_forbidden"))

    def _where(self, usual: str) -> Callable[[Location], Location]:
        def where(loc: Location) -> Location:
            source = self.source_of.get(str(loc[0])) if loc else None
            return (usual, *loc) if source is None else (*source, *loc[1:])

        return where


class MarkedReader(Reader):
    """Reads the arguments of parameters, some of which come from other parts than the body.

    Args:
        signature: The signature of a call with one item.
        marked: The marks of its parameters.
        rest: Reads the parameters without marks.

    Attributes:
        parameters: The parameters that have marks.
        marked: As above.
        rest: As above.
        source_of: The part of the request, and the name there, of each marked parameter.
        lists: The marked parameters that take nothing but a list.

    Raises:
        TypeError: Text can't be checked against an annotation.
    """

    def __init__(self, signature: Signature, marked: Marked, rest: ItemSource) -> None:
        self._all = list(signature.parameters.values())
        self.parameters = [one for one in self._all if one.name in marked.sources]
        self.marked = marked
        self.rest = rest
        self.takes = rest.takes
        self.media_types = rest.media_types
        self._type = JsonType(fields_adapter(self.parameters))
        self.lists = self._type.lists
        self._key = {name: self._type.keys[name][0] for name in marked.sources}
        self.source_of = {self._key[n]: source for n, source in marked.sources.items()}

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        given = {self._key[n]: value for n, value in self.marked.values(exchange).items()}
        found: dict[str, Any] = self._type.checked(
            given, len(given), as_json=False, where=self._where
        )
        rest = self.rest.item(exchange, body)
        if len(self._all) == 1:
            return found.get(self._all[0].name, self._all[0].default)
        others = iter(rest if len(self._all) - len(self.parameters) != 1 else (rest,))
        return tuple(
            found.get(p.name, p.default) if p.name in self._key else next(others) for p in self._all
        )

    def _where(self, loc: Location) -> Location:
        return (*self.source_of[str(loc[0])], *loc[1:])


class ItemSource(Protocol):
    """What makes items from requests; see `Reader`."""

    @property
    def takes(self) -> str:
        """The kind of input."""
        ...

    @property
    def media_types(self) -> Sequence[str]:
        """The media types of the bodies that it takes."""
        ...

    def item(self, exchange: Exchange, body: bytes) -> Any:
        """Returns the item."""
        ...


class FieldsReader(Reader):
    """Reads the arguments of parameters from a JSON object, from MessagePack, or from a form."""

    takes = "json"

    def __init__(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            if parameter.annotation is Request:
                raise TypeError(
                    f"{parameter.name}: list[Request] takes the whole request, so it must be the "
                    "handler's only parameter"
                )
        forms = _forms({one.name: one.annotation for one in parameters})
        self._type = JsonType(fields_adapter(parameters), forms=forms)
        self._parameters = parameters
        self.media_types = self._type.media_types

    @override
    def item(self, exchange: Exchange, body: bytes) -> Any:
        fields: dict[str, Any] = self._type.parsed(exchange, body)
        if len(self._parameters) == 1:
            [only] = self._parameters
            return fields.get(only.name, only.default)
        return tuple(fields.get(p.name, p.default) for p in self._parameters)


def reader_for(signature: Signature) -> Reader:
    """Returns the reader for a handler's items.

    Args:
        signature: The signature of a call with one item.

    Raises:
        TypeError: JSON can't be checked against an annotation, or a mark would not be obeyed.
    """
    check_no_foreign_marks(signature)
    parameters = list(signature.parameters.values())
    if not parameters:
        return NothingReader()
    marked = marks_of(signature)
    if marked:
        return MarkedReader(signature, marked, reader_for(without_marks(signature, marked)))
    annotation = parameters[0].annotation
    if len(parameters) > 1 or element_of(annotation)[1] is Upload:
        return FieldsReader(parameters)
    if annotation is bytes:
        return RawReader()
    if annotation is Request:
        return RequestReader()
    marked = Marked(fields_of(annotation))
    return MarkedRecordReader(annotation, marked) if marked else JsonReader(annotation)


def marks_of(signature: Signature) -> Marked:
    """Returns the marks of a signature's parameters."""
    return Marked({name: one.annotation for name, one in signature.parameters.items()})


def without_marks(signature: Signature, marked: Marked) -> Signature:
    """Returns a signature with the parameters that have no marks."""
    parameters = signature.parameters.values()
    return signature.replace(parameters=[p for p in parameters if p.name not in marked.sources])


def by_key(adapter: TypeAdapter[Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the annotations of a record's fields by the keys that these are read from."""
    keys = keys_of(adapter.core_schema)
    return {key: one for name, one in fields.items() for key in keys.get(name, [name])}


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
        annotation: Any = parameter.annotation
        if annotation is Parameter.empty:
            annotation = Any
        is_required = parameter.default is Parameter.empty
        fields[parameter.name] = Required[annotation] if is_required else NotRequired[annotation]
    # The functional form allows any name; a model would fail for "json" or "copy".
    body: Any = TypedDict(name, fields)  # type: ignore[misc]  # fields known at run time
    are_open = any(has_arrays(one.annotation) for one in parameters)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=are_open)
    return adapter_of(with_config(config)(body))


def _forms(fields: Mapping[str, Any]) -> list[BodyForm]:
    """Returns the forms that a body with these fields may have besides JSON."""
    forms: list[BodyForm] = [MsgpackForm() if has_msgpack() else NotInstalled(MsgpackForm.names)]
    form = FormType(fields)
    if form.needs_form:
        need("an endpoint that takes an Upload", "python_multipart", "bodies")
    if form.has_files:
        forms.append(form if has_multipart() else NotInstalled(FormType.names))
    return forms


def _invalid(loc: Location, message: str, kind: str) -> Problem:
    where = ".".join(str(step) for step in loc)
    more = {"errors": [{"loc": loc, "msg": message, "type": kind}]}
    title = "The request does not fit the endpoint"
    return Problem(422, "invalid-item", title, f"{where}: {message}", more=more)
