"""The messages of the sub-protocol ``shoal.v1``.

Each is one WebSocket message: a JSON object. A binary message, which only a client sends, is such
an object, a line feed, and the item's bytes.

================================  ================================================================
the client sends                  which means
================================  ================================================================
``{"id", "item"}``                a request; it may also have ``priority``, ``timeout_s`` and
                                  ``credit``
``{"id", "cancel": true}``        its result is not needed any more
``{"id", "credit": n}``           its stream may send n more items
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
HTTP is. If that text is JSON, so is the message, and it has just these two members.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from typing import Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from shoal.http.requests.json_scan import Costs, check_json, encoding_flaw, not_json
from shoal.http.requests.problem import Refused, too_large

FIRST_CREDIT: Final = 64
"""How many items a stream may send before its client gives it credit."""

MOST_CREDIT: Final = 2**31 - 1

_ID_TEXT: Final = r'"[A-Za-z0-9_.:-]{1,64}"|0|[1-9][0-9]{0,14}'
_REQUEST: Final = re.compile(rf'\s*\{{\s*"id"\s*:\s*({_ID_TEXT})\s*,\s*"item"\s*:'.encode())
# The id of a message that can't be parsed: before its item, or behind it.
_OPTION: Final = r'"(?:priority|timeout_s|credit)"\s*:\s*[-+.\w]{1,32}\s*'
_BEFORE: Final = re.compile(
    rf'\s*\{{\s*(?:{_OPTION},\s*){{0,3}}"id"\s*:\s*({_ID_TEXT})\s*,'.encode()
)
_BEHIND: Final = re.compile(
    rf',\s*"id"\s*:\s*({_ID_TEXT})\s*(?:,\s*{_OPTION}){{0,3}}\}}\s*\Z'.encode()
)
_LONGEST_END: Final = 256
_ID: Final = re.compile(_ID_TEXT.encode())
_LONGEST_HEAD: Final = 1024
_COSTS: Final = Costs()

# What closes a connection whose client does not keep to the protocol.
NOT_TEXT: Final = 1007
UNACCEPTABLE: Final = 1003
VIOLATION: Final = 1008
TOO_BIG: Final = 1009
RESTART: Final = 1012


class Violation(Exception):
    """A client's message that can't be answered by an error of one request.

    Attributes:
        code: The code that the connection is closed with.
        reason: Why.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def odd_member() -> Violation:
    """Returns the violation of a message whose members are not what they seem."""
    return Violation(VIOLATION, "a message has a member twice, or the name of one is escaped")


def reused_id() -> Violation:
    """Returns the violation of a request whose id is that of one that runs."""
    return Violation(VIOLATION, "the id of a request that has not ended was used again")


class NewRequest(NamedTuple):
    """A request.

    Attributes:
        id: Its id, as JSON.
        body: The text of its item, or its bytes.
        is_binary: Whether it came in a binary message.
        priority: Its priority level; None for the default.
        timeout_s: How long its call may take, in seconds; None for no limit of its own.
        credit: How many items its stream may send at first.
        refused: Why it fails at once; None if it does not.
    """

    id: bytes
    body: bytes
    is_binary: bool = False
    priority: int | None = None
    timeout_s: float | None = None
    credit: int = FIRST_CREDIT
    refused: Refused | None = None


class Cancel(NamedTuple):
    """The cancellation of a request."""

    id: bytes


class Credit(NamedTuple):
    """More credit for a stream."""

    id: bytes
    items: int


def quickly_read(text: bytes) -> NewRequest | None:
    """Reads a text message of the most frequent form.

    Returns:
        The request, if its body turns out to be JSON; None if the message must be read as a whole.
    """
    found = _REQUEST.match(text)
    if found is None or not text.endswith(b"}"):
        return None
    body = text[found.end() : -1]
    if not body:
        return None  # no JSON, but a reader may take it for a body that is left out
    if b'"credit"' in body or b'"timeout_s"' in body or b'"priority"' in body:
        return None  # in the item, or behind it
    return NewRequest(found[1], body)


def read_text(text: bytes, max_elements: int) -> NewRequest | Cancel | Credit:
    """Reads a text message of any form.

    Args:
        text: The message.
        max_elements: How many values, keys and containers it may have.

    Raises:
        Violation: It is no message of a client.
    """
    members = _members(text, max_elements)
    if isinstance(members, NewRequest):
        return members
    token = _id(members)
    kinds = members.keys() & {"item", "cancel"}
    if kinds == {"item"}:
        return _request(token, to_json(members.pop("item")), members, is_binary=False)
    if kinds == {"cancel"}:
        if members != {"cancel": True} or members["cancel"] is not True:
            raise Violation(VIOLATION, 'a cancellation is {"id": ..., "cancel": true}')
        return Cancel(token)
    if members.keys() == {"credit"}:
        return Credit(token, _credit(members["credit"]))
    raise Violation(VIOLATION, 'a message has an "id", and an "item", "cancel" or "credit"')


def read_binary(data: bytes) -> NewRequest:
    """Reads a binary message: a line of JSON, and the bytes of the item.

    Raises:
        Violation: It is no message of a client.
    """
    head, separator, body = data.partition(b"\n")
    if not separator or len(head) > _LONGEST_HEAD:
        raise Violation(UNACCEPTABLE, 'a binary message is {"id": ...}, a line feed, and the item')
    members = _members(head, _LONGEST_HEAD)
    if isinstance(members, NewRequest):
        return members
    return _request(_id(members), body, members, is_binary=True)


def read_large(message: bytes, most: int, *, is_binary: bool) -> NewRequest:
    """Reads only the id of a request that is larger than a request may be, and refuses it.

    Args:
        message: The message.
        most: How many bytes an item may have.
        is_binary: Whether it came in a binary message.

    Raises:
        Violation: It does not begin with its id, or is no request.
    """
    if is_binary:
        return read_binary(message)._replace(refused=too_large(most))
    found = _REQUEST.match(message)
    if found is None:
        raise Violation(
            TOO_BIG, "a message is too large, and does not begin with an id and an item"
        )
    return NewRequest(found[1], b"", refused=too_large(most))


def _request(token: bytes, body: bytes, members: dict[str, Any], *, is_binary: bool) -> NewRequest:
    priority, timeout_s = members.pop("priority", None), members.pop("timeout_s", None)
    credit = _credit(members.pop("credit")) if "credit" in members else FIRST_CREDIT
    if members:
        raise Violation(VIOLATION, "a request has a member that there is not")
    if priority is not None and type(priority) is not int:
        raise Violation(VIOLATION, "a priority is a whole number")
    if timeout_s is not None:
        if type(timeout_s) not in (int, float) or not 0 < timeout_s <= MOST_CREDIT:
            raise Violation(VIOLATION, "timeout_s is a number of seconds, more than 0")
        timeout_s = float(timeout_s)
    return NewRequest(token, body, is_binary, priority, timeout_s, credit)


def _members(text: bytes, max_elements: int) -> dict[str, Any] | NewRequest:
    """Returns the members of a message, or a request that is refused for a value in it.

    Raises:
        Violation: It is not a JSON object, or has no id that can be found.
    """
    try:
        check_json(text, max_elements, _COSTS)
        members = from_json(text, allow_inf_nan=False)
    except Refused as refused:
        return _unreadable(text, refused)
    except ValueError as error:
        return _unreadable(text, not_json(encoding_flaw(text) or str(error)))
    if not isinstance(members, dict):
        raise Violation(VIOLATION, "a message is a JSON object")
    return members  # pyright: ignore[reportUnknownVariableType] (its keys are text)


def _unreadable(text: bytes, refused: Refused) -> NewRequest:
    """Returns the request of a message that has a value that can't be read.

    Raises:
        Violation: It is not JSON, or has no id that can be found.
    """
    is_complex = refused.problem.status == 413
    members: Any = {}
    try:
        if not is_complex:
            members = json.loads(text)  # which reads NaN, lone surrogates, and deeper nesting
    except RecursionError:
        pass
    except ValueError:
        raise Violation(NOT_TEXT, "a message is not JSON") from None
    found = _BEFORE.match(text.removeprefix(BOM_UTF8)) or _BEHIND.search(text[-_LONGEST_END:])
    if found is not None:
        return NewRequest(found[1], b"", refused=refused)
    try:
        token = _id(members)
    except (Violation, AttributeError, TypeError):  # it may be a list, or a number
        code = TOO_BIG if is_complex else NOT_TEXT
        raise Violation(code, refused.problem.title) from None
    return NewRequest(token, b"", refused=refused)


def _id(members: dict[str, Any]) -> bytes:
    given = members.pop("id", None)
    if type(given) in (int, str):
        token = to_json(given)
        if _ID.fullmatch(token):
            return token
    raise Violation(VIOLATION, "an id is 1 to 64 of A-Z a-z 0-9 _ . : - or a whole number")


def _credit(given: Any) -> int:
    if type(given) is not int or not 1 <= given <= MOST_CREDIT:
        raise Violation(VIOLATION, f"credit is a whole number from 1 to {MOST_CREDIT}")
    return given
