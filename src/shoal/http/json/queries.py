"""Makes the item of a call from the query of a request without a body.

A GET has no body, so its arguments are in the query: text by name.

==========================================  =====================================================
the item is annotated as                    the item is
==========================================  =====================================================
``bytes``, a Starlette ``Request``          the same as with a body
nothing, or ``Any``                         the whole query, a dict (`shoal.serving.query`)
a model, a dataclass or a dict              made from the whole query
any other type                              made from the text with the parameter's name
several parameters                          each made from the text with its name
==========================================  =====================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from starlette.requests import Request
from typing_extensions import is_typeddict

from shoal.batching.handlers.array_types import has_arrays, is_array
from shoal.http.json.payload import fields_adapter, reader_for
from shoal.http.json.validation import errors_of, first_error, validator_of
from shoal.http.requests.problem import Problem, Refused
from shoal.serving.names import parameter_names
from shoal.serving.query import Query, takes_query

if TYPE_CHECKING:
    from inspect import Parameter, Signature

    from pydantic_core import SchemaValidator

    from shoal.http.requests.exchange import Exchange

WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
"""The methods of requests that have their item in the body, even if that is empty."""


def takes_body(method: str, parameters: Sequence[Parameter]) -> bool:
    """Returns whether requests with a method have their item in the body, even an empty one."""
    kinds = [parameter.annotation for parameter in parameters]
    only_body = kinds in ([], [bytes], [Request]) or any(map(has_arrays, kinds))
    return only_body or method in WITH_BODY


class QueryReader:
    def __init__(self, signature: Signature) -> None:
        self._parameters = list(signature.parameters.values())
        self._takes_query = takes_query(signature)
        self._is_record = len(self._parameters) == 1 and is_record(self._parameters[0].annotation)

    def item(self, exchange: Exchange) -> Any:
        """Returns a tuple for several parameters; raises `Refused` if the query does not fit."""
        query = Query.of(exchange.scope.get("query_string", b""))
        if self._takes_query:
            return query
        try:
            given: Any = dict(query)
            return self._validator.validate_strings(given)
        except ValidationError as error:
            raise Refused(self._problem(error)) from None

    @cached_property
    def _validator(self) -> SchemaValidator:
        if self._is_record:
            return validator_of(TypeAdapter(self._parameters[0].annotation))
        return validator_of(fields_adapter(self._parameters))

    def _problem(self, error: ValidationError) -> Problem:
        where, message = first_error(error)
        form = "&".join(f"{parameter.name}=..." for parameter in self._parameters)
        if self._is_record:
            form = "name=value"
        return Problem(
            422,
            "invalid-item",
            "The query does not fit the endpoint",
            f"{where}: {message}. Without a body the item is read from the query, as ?{form}; "
            "send JSON by POST.",
            more={"errors": errors_of(error)},
        )


def is_record(annotation: Any) -> bool:
    kind = get_origin(annotation) or annotation
    return (
        is_dataclass(kind)
        or is_typeddict(kind)
        or (isinstance(kind, type) and issubclass(kind, (BaseModel, Mapping)))
    )


def check_items(signature: Signature, path: str) -> None:
    """Checks that an endpoint's items can be read, and that the path takes no name from them."""
    reader_for(signature)
    for name in parameter_names(path):
        same = signature.parameters.get(name)
        if same is None:
            continue
        kind = same.annotation
        if kind not in (bytes, Request) and not is_array(kind) and not is_record(kind):
            raise ValueError(
                f"{name!r} has the name of a parameter of the path {path}, and would come from the "
                "body or the query; read both in the endpoint's decode function, or give it "
                "another name"
            )
