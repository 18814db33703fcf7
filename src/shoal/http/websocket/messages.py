"""The messages of the sub-protocol ``shoal.v1``.

Each is one WebSocket message: a JSON object. A binary message, which only a client sends, is such
an object, a line feed, and the item's bytes.

================================  ================================================================
the client sends                  which means
================================  ================================================================
``{"id", "item"}``                a request; it may also have ``priority`` and ``timeout_s``
``{"id", "cancel": true}``        its result is not needed any more
================================  ================================================================

================================  ================================================================
the server sends                  which means
================================  ================================================================
``{"id", "next": item}``          an item of a stream
``{"id", "result": result}``      the result; the request has ended
``{"id", "end": true}``           the stream, and with it the request, has ended
``{"id", "error": problem}``      the request has failed
================================  ================================================================

A message of the most frequent form, which has an id and then an item and nothing else, is not
parsed as a whole: the text of the item is taken out, and validated as the body of a request over
HTTP is. With a further member, that text is not JSON.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from shoal.http.json.scan import check_json, malformed_json
from shoal.http.requests.problem import Refused, too_large

_ID_TEXT: Final = r'"[A-Za-z0-9_.:-]{1,64}"|0|[1-9][0-9]{0,14}'
_ID: Final = re.compile(_ID_TEXT.encode())
_REQUEST: Final = re.compile(rf'\s*\{{\s*"id"\s*:\s*({_ID_TEXT})\s*,\s*"item"\s*:'.encode())
_LONGEST_HEAD: Final = 1024
_LONGEST_S: Final = 2**31 - 1

# The codes that close a connection.
UNACCEPTABLE: Final = 1003
NOT_TEXT: Final = 1007
VIOLATION: Final = 1008
TOO_BIG: Final = 1009
RESTART: Final = 1012


class Violation(Exception):
    """A client's message that closes the connection, with this code and reason."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class NewRequest(NamedTuple):
    id: bytes  # as JSON
    body: bytes  # the text of the item, or its bytes
    is_binary: bool = False
    priority: int | None = None  # None for the default level
    timeout_s: float | None = None  # None for no limit of its own
    refused: Refused | None = None  # why it fails at once; None if it does not


class Cancel(NamedTuple):
    id: bytes


def read(text: str | None, data: bytes | None, most: int, elements: int) -> NewRequest | Cancel:
    """Reads a client's message, which is text or bytes; raises `Violation`."""
    # An item may have `most` bytes, and the JSON of a message `elements` values and containers.
    message = (data or b"") if text is None else text.encode()
    is_large = len(message) > most + _LONGEST_HEAD
    found = None if text is None else _REQUEST.match(message)
    if text is not None and is_large:
        if found is None:
            raise Violation(TOO_BIG, "a large message must begin with its id and its item")
        return NewRequest(found[1], b"", refused=too_large(most))
    if found is not None and message.endswith(b"}"):
        body = message[found.end() : -1]
        # Without a body there is no JSON, but a reader may take it for one that is left out.
        if body and b'"timeout_s"' not in body and b'"priority"' not in body:
            return NewRequest(found[1], body)
    try:
        if text is not None:
            return _read_whole(message, elements)
        new = _read_binary(message)
        return new._replace(refused=too_large(most)) if is_large else new
    except Refused as refused:  # a value can't be read
        if found is None:
            is_complex = refused.problem.status == 413
            raise Violation(TOO_BIG if is_complex else NOT_TEXT, refused.problem.title) from None
        return NewRequest(found[1], b"", refused=refused)


def _read_whole(text: bytes, elements: int) -> NewRequest | Cancel:
    members = _members(text, elements)
    token = _id(members)
    kinds = members.keys() & {"item", "cancel"}
    if kinds == {"item"}:
        return _request(token, to_json(members.pop("item")), members, is_binary=False)
    if kinds != {"cancel"}:
        raise Violation(VIOLATION, 'a message has an "id", and an "item" or "cancel"')
    if members != {"cancel": True} or members["cancel"] is not True:
        raise Violation(VIOLATION, 'a cancellation is {"id": ..., "cancel": true}')
    return Cancel(token)


def _read_binary(data: bytes) -> NewRequest:
    head, separator, body = data.partition(b"\n")
    if not separator or len(head) > _LONGEST_HEAD:
        raise Violation(UNACCEPTABLE, 'a binary message is {"id": ...}, a line feed, and the item')
    members = _members(head, _LONGEST_HEAD)
    return _request(_id(members), body, members, is_binary=True)


def _request(token: bytes, body: bytes, members: dict[str, Any], *, is_binary: bool) -> NewRequest:
    priority, timeout_s = members.pop("priority", None), members.pop("timeout_s", None)
    if members:
        raise Violation(VIOLATION, f"unknown member {ascii(next(iter(members)))[:60]}")
    if priority is not None and type(priority) is not int:
        raise Violation(VIOLATION, "a priority is a whole number")
    if timeout_s is not None:
        if type(timeout_s) not in (int, float) or not 0 < timeout_s <= _LONGEST_S:
            raise Violation(VIOLATION, "timeout_s is a number of seconds, more than 0")
        timeout_s = float(timeout_s)
    return NewRequest(token, body, is_binary, priority, timeout_s)


def check_text(text: bytes, elements: int) -> Any:
    """Returns the value of JSON; raises `Refused`."""
    check_json(text, elements)
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise malformed_json(str(error), text) from None


def _members(text: bytes, elements: int) -> dict[str, Any]:
    members = check_text(text, elements)
    if not isinstance(members, dict):
        raise Violation(VIOLATION, "a message is a JSON object")
    return members  # pyright: ignore[reportUnknownVariableType] (its keys are text)


def _id(members: dict[str, Any]) -> bytes:
    given = members.pop("id", None)
    if type(given) in (int, str):
        token = to_json(given)
        if _ID.fullmatch(token):
            return token
    raise Violation(VIOLATION, "an id is 1 to 64 of A-Z a-z 0-9 _ . : - or a whole number")
