"""Reads the bodies of requests."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from shoal.http.json.validation import JsonType, adapter_of
from shoal.http.openai.errors import of_invalid_item
from shoal.http.requests.problem import Refused

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from shoal.http.requests.exchange import Exchange

LONGEST_NAME: Final = 256
# Unknown parameters are ignored, or are a model's.
OPEN: Final = ConfigDict(extra="allow", strict=True)


@with_config(OPEN)
class Body(TypedDict):
    model: NotRequired[Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)] | None]


@cache
def _type(kind: Hashable) -> JsonType:
    # Once for all applications: it takes milliseconds to build.
    return JsonType(adapter_of(kind))


def read_body(kind: type[Mapping[str, Any]], exchange: Exchange, body: bytes) -> dict[str, Any]:
    """Raises `Refused` if the body is malformed."""
    try:
        params: dict[str, Any] = _type(kind).parsed(exchange, body)
    except Refused as refusal:
        raise of_invalid_item(refusal) from None
    return params
