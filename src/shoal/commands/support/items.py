"""Converts JSON items to a handler's annotated types, as a server converts bodies."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from shoal.batching.handlers.list_types import is_unannotated
from shoal.commands.support.mistake import CommandError, as_mistakes, in_one_line, say
from shoal.core.extras import advice

if TYPE_CHECKING:
    from collections.abc import Sequence
    from inspect import Parameter, Signature


def as_annotated(signature: Signature, values: Sequence[Any], source: str) -> list[Any]:
    """Returns the items for JSON values; without pydantic it returns the values."""
    # For several parameters each value is an array, or an object, of arguments.
    parameters = list(signature.parameters.values())
    if all(is_unannotated(one.annotation) for one in parameters):
        return list(values)
    try:
        import pydantic
        import starlette
    except ModuleNotFoundError as error:
        say(
            f"the items of {source} are passed as JSON has them: to convert them to the handler's "
            f"annotations needs {error.name}: {advice('serve')}"
        )
        return list(values)
    del pydantic, starlette
    many = len(values) > 1
    with as_mistakes():
        maker = _Maker(parameters)
    return [
        maker.made(value, f"{source}, item {number}" if many else source)
        for number, value in enumerate(values, 1)
    ]


class _Maker:
    def __init__(self, parameters: Sequence[Parameter]) -> None:
        from shoal.http.requests.json_type import finite_validator
        from shoal.http.requests.payload import fields_adapter

        self._names = [one.name for one in parameters]
        self._validator = finite_validator(fields_adapter(list(parameters)))

    def made(self, value: Any, source: str) -> Any:
        """Returns the item for a value: one argument, or a tuple or mapping of several."""
        if len(self._names) == 1:
            return self._arguments({self._names[0]: value}, source)[self._names[0]]
        if isinstance(value, dict):
            return self._arguments(cast("dict[str, Any]", value), source)
        given: list[Any] = value if _is_array(value) else [value]
        if len(given) > len(self._names):
            raise CommandError(
                f"{source} has {len(given)} arguments, and the handler takes {len(self._names)}: "
                f"{', '.join(self._names)}"
            )
        return tuple(self._arguments(dict(zip(self._names, given, strict=False)), source).values())

    def _arguments(self, given: dict[str, Any], source: str) -> dict[str, Any]:
        from pydantic import ValidationError

        try:
            made: dict[str, Any] = self._validator.validate_json(json.dumps(given))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(str(step) for step in first["loc"])
            raise CommandError(
                f"{source} does not fit the handler: {where}: {first['msg']}"
            ) from None
        except (ValueError, OverflowError) as error:
            raise CommandError(f"{source} does not fit the handler: {in_one_line(error)}") from None
        return made


def _is_array(value: object) -> bool:
    return isinstance(value, list)
