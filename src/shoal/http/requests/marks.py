"""Where a value of an item comes from if not from the body: marks in `Annotated`.

::

    class Comment(BaseModel):
        text: str
        user: Annotated[int, Path()]
        tenant: Annotated[str, Header()]

The names are those of FastAPI, and its own marks are accepted in their place: they are recognized
by the name of their class, since FastAPI need not be installed. Starlette has no marks, and the
libraries that have some are frameworks, which bring an application of their own.

A mark is found on a parameter, or on a field of an item that is a model, a dataclass or a typed
dict; not on the fields of records inside of that.
"""

from __future__ import annotations

import dataclasses
import inspect
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    NotRequired,
    Required,
    get_args,
    get_origin,
)

from starlette.datastructures import UploadFile
from starlette.requests import cookie_parser
from typing_extensions import is_typeddict

from shoal.batching.handlers.annotations import field_types
from shoal.serving.query import Query as QueryValues

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from inspect import Signature

    from shoal.http.requests.exchange import Exchange

_LISTS: Final = frozenset({"list", "tuple", "set", "frozenset", "Sequence"})


@dataclass(frozen=True, slots=True)
class Mark:
    """Says where a value comes from.

    Attributes:
        alias: The name there; None for the field's own.
        source: The part of the request, as in the ``loc`` of an error.
    """

    alias: str | None = None
    source: ClassVar[str]


@dataclass(frozen=True, slots=True)
class Header(Mark):
    """The value is that of a header.

    Attributes:
        convert_underscores: Whether hyphens replace the underscores of the name, without an alias.
    """

    convert_underscores: bool = True
    source: ClassVar[str] = "header"


@dataclass(frozen=True, slots=True)
class Path(Mark):
    """The value is that of a parameter of the endpoint's path."""

    source: ClassVar[str] = "path"


@dataclass(frozen=True, slots=True)
class Query(Mark):
    """The value is that of a parameter in the URL's query."""

    source: ClassVar[str] = "query"


@dataclass(frozen=True, slots=True)
class Cookie(Mark):
    """The value is that of a cookie."""

    source: ClassVar[str] = "cookie"


@dataclass(frozen=True, slots=True)
class MediaType:
    """The media type of the bytes that a handler returns.

    ::

        def plot(sizes: list[int]) -> list[Annotated[bytes, MediaType("image/png")]]: ...

    Attributes:
        name: The media type.
    """

    name: str

    def __post_init__(self) -> None:
        given: Any = self.name
        if not isinstance(given, str):
            raise TypeError(f'MediaType takes text, such as "image/png", not {given!r}')
        if "/" not in given or not given.isascii() or not given.isprintable():
            raise ValueError(f'{given!r} is not a media type; write MediaType("image/png")')


_BY_NAME: Final[Mapping[str, type[Mark]]] = {
    "Header": Header,
    "Path": Path,
    "Query": Query,
    "Cookie": Cookie,
}


class Marked:
    """The marked fields of a record, or the marked parameters of a handler.

    Args:
        annotations: All fields, or all parameters, by name.

    Attributes:
        sources: The part of the request, and the name there, of each marked field.
    """

    def __init__(self, annotations: Mapping[str, Any]) -> None:
        self._marks: list[tuple[str, Mark, str, tuple[bool, Any]]] = []
        for name, annotation in annotations.items():
            mark = mark_of(annotation)
            if mark is None:
                continue
            there = mark.alias or name
            if isinstance(mark, Header):
                there = there.lower()
                if mark.alias is None and mark.convert_underscores:
                    there = there.replace("_", "-")
            self._marks.append((name, mark, there, element_of(annotation)))
        self.sources = {name: (mark.source, there) for name, mark, there, _ in self._marks}

    def __bool__(self) -> bool:
        return bool(self._marks)

    def values(self, exchange: Exchange) -> dict[str, Any]:
        """Returns the values of the marked fields that a request has."""
        kinds = {mark.source for _, mark, _, _ in self._marks}
        query, cookies = QueryValues(), dict[str, str]()
        if "query" in kinds:
            query = QueryValues.of(exchange.scope.get("query_string", b""))
        if "cookie" in kinds:
            cookies = cookie_parser(exchange.headers.get(b"cookie", b"").decode("latin-1"))
        found: dict[str, Any] = {}
        for name, mark, there, (is_list, element) in self._marks:
            match mark.source:
                case "header":
                    given = list(_headers(exchange, there)) if is_list else _header(exchange, there)
                case "path":
                    given = exchange.scope.get("path_params", {}).get(there)
                    if given is not None and element is str:
                        given = str(given)  # the route may have made a number of it
                case "query":
                    given = query.getlist(there) if is_list else query.get(there)
                case _:
                    given = cookies.get(there)
            if given is not None and given != []:
                found[name] = given
        return found


def mark_of(annotation: Any) -> Mark | None:
    """Returns the mark of an annotation; None if it has none."""
    for one in metadata_of(annotation):
        if isinstance(one, Mark):
            return one
        package, name = type(one).__module__.partition(".")[0], type(one).__name__
        if package == "fastapi" and name in _BY_NAME:
            alias: str | None = getattr(one, "alias", None)
            if name == "Header":
                return Header(alias, getattr(one, "convert_underscores", True))
            return _BY_NAME[name](alias)
    return None


def media_type_of(annotation: Any) -> bytes | None:
    """Returns the media type that a handler's result is annotated with; None for none."""
    for one in metadata_of(annotation):
        if isinstance(one, MediaType):
            return one.name.encode("ascii")
    return None


def fields_of(annotation: Any) -> dict[str, Any]:
    """Returns the annotations of the fields of a model, a dataclass or a typed dict.

    It is empty for other types. An annotation that can't be evaluated is `Any`.
    """
    kind: Any = stripped(annotation)
    kind = get_origin(kind) or kind
    if not inspect.isclass(kind):
        return {}
    types = field_types(kind)
    models: dict[str, Any] | None = getattr(kind, "model_fields", None)
    if models is not None:
        # Where the annotation can't be evaluated, pydantic may have done so.
        return {
            name: Annotated[(field.annotation, *field.metadata, None)]
            if types.get(name, Any) is Any
            else types[name]
            for name, field in models.items()
        }
    if dataclasses.is_dataclass(kind):
        return {one.name: types.get(one.name, Any) for one in dataclasses.fields(kind)}
    return types if is_typeddict(kind) else {}


def stripped(annotation: Any) -> Any:
    """Returns a type without `Annotated` and what marks a key of a typed dict."""
    while get_origin(annotation) in (Annotated, Required, NotRequired):
        annotation = get_args(annotation)[0]
    return annotation


def element_of(annotation: Any) -> tuple[bool, Any]:
    """Returns whether a type is that of a list, which may be missing, and its elements' type.

    For another type that is the type itself.
    """
    kind = stripped(annotation)
    alternatives = [one for one in get_args(kind) if one is not type(None)]
    if type(None) in get_args(kind) and len(alternatives) == 1:
        kind = stripped(alternatives[0])
    if getattr(get_origin(kind) or kind, "__name__", "") not in _LISTS:
        return False, kind
    return True, stripped(get_args(kind)[0]) if get_args(kind) else Any


def metadata_of(annotation: Any) -> Iterator[object]:
    """Yields what an annotation says beside the type."""
    while get_origin(annotation) in (Annotated, Required, NotRequired):
        inner, *more = get_args(annotation)
        yield from more
        annotation = inner


def _header(exchange: Exchange, name: str) -> str | None:
    given = exchange.headers.get(name.encode("latin-1", "replace"))
    return None if given is None else given.decode("latin-1")


def _headers(exchange: Exchange, name: str) -> Iterable[str]:
    wanted = name.encode("latin-1", "replace")
    return (value.decode("latin-1") for key, value in exchange.scope["headers"] if key == wanted)


# Annotations that only FastAPI obeys are refused: a parameter with `Depends()` would be read from
# the body or the query, as one without a mark, so a caller could set what code trusts.
_DEPENDENCY: Final = (
    "callers could set the value: let middleware find it out, and read it from the request's "
    "metadata"
)
_INSTEAD: Final = {
    "Depends": _DEPENDENCY,
    "Security": _DEPENDENCY,
    "Body": "remove it: what has no mark comes from the body",
    "Form": "remove it: what has no mark may be a field of a form with a file, a shoal.http.Upload",
    "File": "remove it, and annotate the file as shoal.http.Upload",
}


def check_no_foreign_marks(signature: Signature) -> None:
    """Checks the annotations and defaults of a handler's parameters, and of its item's fields.

    Args:
        signature: The signature of a call with one item.

    Raises:
        TypeError: One of them would not be obeyed.
    """
    for name, parameter in signature.parameters.items():
        _check_known(name, parameter.annotation)
        _check_default(name, parameter.default)
        for field, annotation in fields_of(parameter.annotation).items():
            _check_known(field, annotation)


def _check_known(name: str, annotation: Any) -> None:
    """Refuses what FastAPI would obey; a caller could set the value of a dependency."""
    for one in metadata_of(annotation):
        kind = _of_fastapi(one)
        if kind is not None and mark_of(Annotated[Any, one]) is None:
            instead = _INSTEAD.get(kind, "remove it")
            raise TypeError(
                f"{name!r} is marked with {kind}() of FastAPI, which is not obeyed; {instead}"
            )
    kind = element_of(annotation)[1]
    if inspect.isclass(kind) and issubclass(kind, UploadFile):
        raise TypeError(
            f"{name!r} is an UploadFile, which is not supported; take shoal.http.Upload"
        )


def _check_default(name: str, default: Any) -> None:
    kind = type(default).__name__ if isinstance(default, Mark) else _of_fastapi(default)
    if kind is not None:
        raise TypeError(
            f"{name!r} has {kind}() as its default, which code would get as its value; write "
            f"{name}: Annotated[..., {kind}()]"
        )


def _of_fastapi(one: object) -> str | None:
    """Returns the name of the class of FastAPI's that something is an instance of, if any."""
    for kind in type(one).__mro__:
        if kind.__module__ == "fastapi.params":
            return kind.__name__
    return None
