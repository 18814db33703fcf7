"""Validation of JSON against a type, with bounds on the memory that a body may cost.

A body of another form, such as MessagePack, is checked against the same type (`BodyForm`).

The validator is built from pydantic's schema of the type, with small changes. It rejects floats
that are not finite: JSON has none, but pydantic accepts the *text* ``"Infinity"``. It also ends
each container at its first error, since an error takes several times the memory of its element.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic_core import SchemaValidator
from typing_extensions import TypeAliasType

from shoal.batching.handlers.array_types import has_arrays
from shoal.core.extras import advice
from shoal.http.json.arrays import with_arrays
from shoal.http.json.content_coding import decompressed
from shoal.http.json.scan import check_cost, check_json, malformed_json, not_json
from shoal.http.requests.exchange import JSON
from shoal.http.requests.problem import Problem, Refused
from shoal.loops.private import rebuilt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pydantic_core import ErrorDetails

    from shoal.http.requests.exchange import Exchange

_MOST_ERRORS_SHOWN: Final = 100
# How many items a request may have, each in a line.
MOST_LINES: Final = 4096
# An error takes a hundred times the memory of the two bytes that cause it.
_SHOWN_OF_A_LINE: Final = 4

_ENDING_EARLY: Final = frozenset({"list", "tuple", "set", "frozenset", "dict"})
_SPACE: Final = b" \t\r\n"
_Part: TypeAlias = "dict[str, Any] | list[Any] | str | None"
# Keys of a schema whose values are the user's data, even if these look like a schema.
_NO_SCHEMAS: Final = frozenset({"metadata", "serialization"})


class BodyForm(NamedTuple):
    """Another form of bodies than JSON; the type of the item is the same."""

    # The media types that clients use for it, its own first.
    names: tuple[bytes, ...]
    # Reads a body without content coding, or raises `Refused`; None without its package.
    read: Callable[[Exchange, bytes], Any] | None


class JsonType:
    """A type that JSON is validated against."""

    def __init__(self, adapter: TypeAdapter[Any], forms: Sequence[BodyForm] = ()) -> None:
        self._forms = {name: form for form in forms for name in form.names}
        installed = [form.names[0].decode() for form in forms if form.read is not None]
        self.media_types = ("application/json", *installed)
        self._validator = validator_of(adapter)

    def parsed(self, exchange: Exchange, body: bytes, *, is_line: bool = False) -> Any:
        headers = exchange.headers
        if not body:
            raise not_json("The request has no body, and the item is in its body.")
        if not is_line and (headers.get(b"content-type") != JSON or b"content-encoding" in headers):
            form, body = self._form_of(exchange, body)
            if form is not None:
                if form.read is None:
                    name = form.names[0].decode()
                    detail = f"The server needs {advice('bodies')} for bodies of {name}."
                    raise Refused.of("unsupported-media-type", detail)
                value = form.read(exchange, body)
                try:
                    return self._validator.validate_python(value)
                except ValidationError as error:
                    raise Refused(problem_of_validation(error)) from None
        check_json(body, exchange.options.max_json_elements)
        try:
            return self._validator.validate_json(body)
        except ValidationError as error:
            raise Refused(problem_of_validation(error, body)) from None

    def lines(self, exchange: Exchange, body: bytes) -> Iterator[Any]:
        """Yields the item of each line of a body, or the `Refused` of a line that is none."""
        body = decompressed(exchange, body).strip(_SPACE)
        if body.count(b"\n") >= MOST_LINES:
            raise Refused.of("body-too-complex", f"A request may have {MOST_LINES} lines.")
        most = exchange.options.max_json_elements
        # Of all lines together, which may have their free memory only once.
        check_cost(body, most)
        for line in body.split(b"\n"):
            if line.strip(_SPACE):
                try:
                    yield self.parsed(exchange, line, is_line=True)
                except Refused as refused:
                    yield _shortened(refused.problem)

    def _form_of(self, exchange: Exchange, body: bytes) -> tuple[BodyForm | None, bytes]:
        """Returns the form, None for JSON, and the body without its content coding."""
        media_type = exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        form = self._forms.get(media_type)
        if form is None:
            _check_media_type(media_type, self.media_types)
        return form, decompressed(exchange, body)


def adapter_of(annotation: Any) -> TypeAdapter[Any]:
    """Returns pydantic's adapter; raises TypeError if JSON can't be checked against the type."""
    are_there = has_arrays(annotation)
    try:
        adapter = _open_adapter(annotation) if are_there else TypeAdapter[Any](annotation)
        adapter.rebuild()  # fails here if a name is not defined, and not at each body
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise TypeError(
            f"JSON can't be checked against {annotation!r}: annotate the handler's parameter as a "
            "list of a type that pydantic knows, of bytes for the raw body, or not at all for any "
            f"JSON; pydantic says: {str(error).partition(chr(10))[0]}"
        ) from error
    if are_there:
        adapter.core_schema = with_arrays(adapter.core_schema, annotation)
    return adapter


def _open_adapter(annotation: Any) -> TypeAdapter[Any]:
    if hasattr(annotation, "model_config") or hasattr(annotation, "__pydantic_config__"):
        return TypeAdapter(annotation)
    # An alias, since a record that has no configuration of its own can't be given one.
    item = cast("Any", TypeAliasType("Item", annotation))  # pyright: ignore[reportGeneralTypeIssues]
    return TypeAdapter[Any](item, config=ConfigDict(arbitrary_types_allowed=True))


def validator_of(adapter: TypeAdapter[Any], *, is_finite: bool = True) -> SchemaValidator:
    """Returns a validator that takes no float that is not finite, unless `is_finite` is false."""
    schema: Any = adapter.core_schema
    return rebuilt(SchemaValidator, _changed(schema, is_finite=is_finite))


def _changed(schema: _Part, *, is_finite: bool) -> Any:
    """Returns a copy of a schema, with the changes made to each schema in it."""
    if isinstance(schema, list):
        return [_changed(one, is_finite=is_finite) for one in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {
        key: one if _is_users(key, schema) else _changed(one, is_finite=is_finite)
        for key, one in schema.items()
    }
    if _is_schema(schema) and is_finite and copy["type"] == "float":
        copy.setdefault("allow_inf_nan", False)
    if _is_schema(schema) and copy["type"] in _ENDING_EARLY:
        copy["fail_fast"] = True
    return copy


def _is_schema(part: dict[str, Any]) -> bool:
    # Otherwise it maps names of fields to schemas; a field may be named "type".
    return isinstance(part.get("type"), str)


def _is_users(key: str, part: dict[str, Any]) -> bool:
    return _is_schema(part) and (key in _NO_SCHEMAS or key == "default" == part["type"])


def keys_of(schema: Any) -> dict[str, list[str]]:
    """Returns the keys of a record's fields; an alias precedes the field's own name."""
    return {name: _keys(name, field) for name, field in _fields_of(schema).items()}


def _fields_of(schema: Any) -> dict[str, Any]:
    definitions = {one.get("ref"): one for one in schema.get("definitions", ())}
    part: Any = schema
    while part is not None:
        fields: Any = part.get("fields")
        match part.get("type"):
            case "model-fields" | "typed-dict":
                return dict(fields)
            case "dataclass-args":
                return {field["name"]: field for field in fields}
            case "definition-ref":
                part = definitions.get(part["schema_ref"])
            case _:
                part = part.get("schema")
    return {}


def _keys(name: str, field: dict[str, Any]) -> list[str]:
    alias: Any = field.get("validation_alias", name)
    if isinstance(alias, str):
        return list(dict.fromkeys((alias, name)))
    # A path of keys, or several such paths.
    paths = alias if isinstance(alias[0], list) else [alias]
    return list(dict.fromkeys((*(str(path[0]) for path in paths), name)))


def _check_media_type(media_type: bytes, accepted: Sequence[str]) -> None:
    # A web page of another origin can send the types of HTML forms, or none, without being asked.
    is_json = media_type == JSON or (
        media_type.startswith(b"application/") and media_type.endswith(b"+json")
    )
    if not is_json:
        detail = f"This endpoint takes JSON; send Content-Type: {' or '.join(accepted)}."
        raise Refused.of("unsupported-media-type", detail)


def problem_of_validation(error: ValidationError, body: bytes = b"") -> Problem:
    """Returns the problem of an item that does not fit; `body` is JSON, if given."""
    count = error.error_count()
    if count > _MOST_ERRORS_SHOWN:
        # A list would have an object for each error, of which there may be millions.
        return Problem.of("invalid-item", f"It has {count} errors.")
    errors = errors_of(error)
    if errors[0]["type"] == "json_invalid" and not errors[0]["loc"]:
        return malformed_json(errors[0]["msg"], body).problem
    at, message = first_error(error)
    detail = f"{at}: {message}" if at else message
    if body.lstrip(_SPACE).startswith(b"[") and all(map(_is_about_the_whole, errors)):
        detail += (
            ". One request is one item: send it without a list around it, or many as JSON lines."
        )
    return Problem.of("invalid-item", detail, errors=errors)


def errors_of(error: ValidationError) -> list[ErrorDetails]:
    return error.errors(include_url=False, include_input=False, include_context=False)


def first_error(error: ValidationError) -> tuple[str, str]:
    """Returns the place of the first error, such as ``items.2``, and its message."""
    first = errors_of(error)[0]
    return ".".join(map(str, first["loc"])), first["msg"]


def _shortened(problem: Problem) -> Refused:
    more = {name: value[:_SHOWN_OF_A_LINE] for name, value in problem.more.items()}
    return Refused(replace(problem, more=more))


def _is_about_the_whole(error: ErrorDetails) -> bool:
    """Returns whether an error says that a list should have been something else."""
    return error["type"].endswith("_type") and not any(isinstance(one, int) for one in error["loc"])
