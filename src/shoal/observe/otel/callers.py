"""The trace that a request from the network continues, as its headers say."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from opentelemetry.context import Context
from opentelemetry.propagate import extract, get_global_textmap
from opentelemetry.propagators.textmap import Getter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.propagators.textmap import TextMapPropagator

_LONGEST: Final = 512
_MOST_MEMBERS: Final = 32
_MEMBER: Final = re.compile(
    r"[a-z0-9][a-z0-9_*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
# Callers can't be trusted with what is passed on to all other services; and OpenTelemetry logs each
# part of it that is malformed, with the client's bytes.
_NOT_TAKEN: Final = "baggage"

Headers = list[tuple[bytes, bytes]]


class _Getter(Getter[Headers]):
    """Reads the headers that occur once, and are not too long."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        name = key.lower()
        wanted = name.encode("latin-1")
        found = [value.decode("latin-1") for given, value in carrier if given == wanted]
        if not found:
            return None
        if name == "tracestate":  # the only one that may be given in several parts
            return _members(found)
        return found if len(found) == 1 and len(found[0]) <= _LONGEST else None

    def keys(self, carrier: Headers) -> list[str]:
        return [name.decode("latin-1") for name, _ in carrier]


_GETTER: Final = _Getter()


def context_of_caller(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    """Returns an empty context if the lower-case headers name no valid span."""
    names = _names_read_by(get_global_textmap())
    given = [pair for pair in headers if pair[0] in names]
    return extract(given, Context(), _GETTER) if given else Context()


@cache
def _names_read_by(propagator: TextMapPropagator) -> frozenset[bytes]:
    """Returns the names of the headers that a propagator reads, but for the one not taken."""
    names = {name.lower() for name in propagator.fields} - {_NOT_TAKEN}
    return frozenset(name.encode("latin-1") for name in names)


def _members(values: list[str]) -> list[str] | None:
    """Returns the members of a ``tracestate``; None if they can't all be read."""
    if sum(map(len, values)) > _LONGEST:
        return None
    members = [member.strip(" \t") for value in values for member in value.split(",")]
    members = [member for member in members if member]
    if len(members) > _MOST_MEMBERS or not all(map(_MEMBER.fullmatch, members)):
        return None
    return [",".join(members)]
