"""Validation of JSON against a type, with bounds on the memory that a body may cost.

Two validators are built from pydantic's schema of the type, each with small changes. Both reject
floats that are not finite: JSON has none, but pydantic accepts the *text* ``"Infinity"``. The one
for large bodies also ends each container at its first error, since an error takes several times
the memory of the element that it is about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation
from pydantic_core import SchemaValidator

from shoal.http.requests.exchange import JSON
from shoal.http.requests.json_scan import Costs, check_json
from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shoal.http.requests.exchange import Exchange

_MOST_ERRORS_SHOWN: Final = 100
# From so many elements on, only the first error of a body is reported.
_LARGE: Final = 4096

_ENDING_EARLY: Final = frozenset({"list", "tuple", "set", "frozenset", "dict"})
# Otherwise a model's existing validator is used, and changes to its schema have no effect.
_ANEW: Final[dict[str, Any]] = {"_use_prebuilt": False}
_Part: TypeAlias = "dict[str, Any] | list[Any] | str | None"
# Keys of a schema whose values are the user's data, even if these look like a schema.
_NO_SCHEMAS: Final = frozenset({"metadata", "serialization"})


class JsonType:
    """A type that JSON is validated against.

    Args:
        adapter: Pydantic's adapter of the type.
        takes: The accepted bodies, for the message to a client that sends another one.
    """

    def __init__(
        self, adapter: TypeAdapter[Any], takes: str = "JSON; send Content-Type: application/json"
    ) -> None:
        self._takes = takes
        self._schema: Any = adapter.core_schema
        self._validator = finite_validator(adapter)
        self._costs = _costs_of(self._schema)
        self._for_large: SchemaValidator | None = None

    def parsed(self, exchange: Exchange, body: bytes) -> Any:
        """Returns the value of a body.

        Raises:
            Refused: The body is not a JSON value of the type.
        """
        headers = exchange.headers
        if not body:
            detail = "The request has no body, and the item is in its body."
            raise Refused(Problem(400, "invalid-json", "The body is not JSON", detail))
        if headers.get(b"content-type") != JSON or b"content-encoding" in headers:
            _check_media_type(headers, self._takes)
        elements = check_json(body, exchange.settings.max_json_elements, self._costs)
        validator = self._validator if elements < _LARGE else self._ending_at_the_first_error()
        try:
            return validator.validate_json(body)
        except ValidationError as error:
            raise Refused(_of_validation(error)) from None

    def _ending_at_the_first_error(self) -> SchemaValidator:
        if self._for_large is None:
            self._for_large = SchemaValidator(
                _changed(self._schema, _make_finite, _make_end_early), **_ANEW
            )
        return self._for_large


def adapter_of(annotation: Any) -> TypeAdapter[Any]:
    """Returns pydantic's adapter for an annotation.

    Raises:
        TypeError: JSON can't be checked against the annotation.
    """
    try:
        adapter = TypeAdapter[Any](annotation)
        adapter.rebuild()  # fails here if a name is not defined, and not at each body
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise TypeError(
            f"JSON can't be checked against {annotation!r}: annotate the handler's parameter as a "
            "list of a type that pydantic knows, of bytes for the raw body, or not at all for any "
            "JSON"
        ) from error
    return adapter


def finite_validator(adapter: TypeAdapter[Any]) -> SchemaValidator:
    """Returns a validator of the type that rejects floats which are not finite."""
    schema: Any = adapter.core_schema
    return SchemaValidator(_changed(schema, _make_finite), **_ANEW)


def ending_early_validator(adapter: TypeAdapter[Any]) -> SchemaValidator:
    """Returns a validator of the type that ends each container at its first error."""
    schema: Any = adapter.core_schema
    return SchemaValidator(_changed(schema, _make_end_early), **_ANEW)


def _make_finite(schema: dict[str, Any]) -> None:
    if schema["type"] == "float":
        schema.setdefault("allow_inf_nan", False)


def _make_end_early(schema: dict[str, Any]) -> None:
    if schema["type"] in _ENDING_EARLY:
        schema["fail_fast"] = True


def _changed(schema: _Part, *changes: Callable[[dict[str, Any]], None]) -> Any:
    """Returns a copy of a schema, with changes made to each schema in it."""
    if isinstance(schema, dict):
        copy = {
            key: one if _is_users(key, schema) else _changed(one, *changes)
            for key, one in schema.items()
        }
        for change in changes if _is_schema(schema) else ():
            change(copy)
        return copy
    if isinstance(schema, list):
        return [_changed(one, *changes) for one in schema]
    return schema


def _costs_of(schema: Any) -> Costs:
    """Returns the memory costs of a type; models, for example, record which fields were set."""
    plain = Costs()
    kinds = {str(each.get("type")) for each in _parts(schema)}
    forbids = any(
        "forbid" in (each.get("extra_behavior"), each.get("extra_fields_behavior"))
        for each in _parts(schema)
    )
    makes_objects = forbids or not kinds.isdisjoint({"model", "dataclass"})
    makes_sets = not kinds.isdisjoint({"set", "frozenset"})
    return Costs(
        per_list=plain.per_list * (2 if makes_sets else 1),
        per_object=plain.per_object * (2 if makes_objects else 1),
        per_key=plain.per_key * (3 if forbids else 1),  # each key may cause an error
    )


def _parts(schema: _Part) -> Iterator[dict[str, Any]]:
    """Yields all mappings in a schema, including itself."""
    if isinstance(schema, dict):
        yield schema
        for key, one in schema.items():
            if not _is_users(key, schema):
                yield from _parts(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from _parts(one)


def _is_schema(part: dict[str, Any]) -> bool:
    # Otherwise it maps names of fields to schemas; a field may be named "type".
    return isinstance(part.get("type"), str)


def _is_users(key: str, part: dict[str, Any]) -> bool:
    return _is_schema(part) and (key in _NO_SCHEMAS or key == "default" == part["type"])


def _check_media_type(headers: Mapping[bytes, bytes], takes: str) -> None:
    # A web page of another origin can send the types of HTML forms, or none, without being asked.
    given = headers.get(b"content-type", b"")
    if given != JSON:
        media_type = given.partition(b";")[0].strip().lower()
        is_json = media_type == b"application/json" or (
            media_type.startswith(b"application/") and media_type.endswith(b"+json")
        )
        if not is_json:
            raise _unsupported(f"This endpoint takes {takes}.")
    coding = headers.get(b"content-encoding", b"identity")
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
        # A list would have an object for each error, of which there may be millions.
        return Problem(422, "invalid-item", title, f"It has {count} errors.")
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    if errors[0]["type"] == "json_invalid" and not errors[0]["loc"]:
        return Problem(400, "invalid-json", "The body is not JSON", errors[0]["msg"])
    first = errors[0]
    where = ".".join(str(step) for step in first["loc"])
    detail = f"{where}: {first['msg']}" if where else first["msg"]
    more = {"errors": [{key: e[key] for key in ("loc", "msg", "type")} for e in errors]}
    return Problem(422, "invalid-item", title, detail, more=more)
