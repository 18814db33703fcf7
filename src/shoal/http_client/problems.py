"""Error answers: which exception each is, and which of them say that the call may be made again.

A Shoal server answers with problems (RFC 9457). Where the error has a class of its own, the client
raises that class, as a call in the server's process would. Any other error answer, also that of
another server or of a proxy, is an `HttpProblem`.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.errors import (
    BackendUnavailable,
    BatcherClosed,
    DeadlineExceeded,
    HandlerTimeout,
    HttpProblem,
    ItemTooLarge,
    NotOpen,
    Overloaded,
    ReplicaDied,
    SlowReader,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBLEM: Final = "urn:shoal:problem:"

_CLASSES: Final[Mapping[str, type[Exception]]] = {
    "body-too-complex": ItemTooLarge,
    "body-too-fragmented": ItemTooLarge,
    "body-too-large": ItemTooLarge,
    "closed": BatcherClosed,
    "deadline-exceeded": DeadlineExceeded,
    "handler-timeout": HandlerTimeout,
    "item-too-large": ItemTooLarge,
    "not-open": NotOpen,
    "overloaded": Overloaded,
    "replica-died": ReplicaDied,
    "slow-reader": SlowReader,
    "too-many-incomplete-bodies": Overloaded,
    "too-many-requests": Overloaded,
    "unavailable": BackendUnavailable,
}

_OVERLOADED: Final = (429, 503)
_DIGITS: Final = re.compile(r"[0-9]{1,9}")
_LONGEST_TEXT: Final = 2000


@dataclass(frozen=True)
class Failure:
    """A call that failed.

    Attributes:
        error: What to raise.
        was_refused: Whether the call was not made, and may be made again: the server was
            overloaded, or was not reached.
        retry_after_s: How long the server asks to wait before that, in seconds; None if it does not
            ask for it.
    """

    error: Exception
    was_refused: bool = False
    retry_after_s: float | None = None


def failure_of(url: str, status: int, retry_after: str, body: bytes) -> Failure:
    """Returns what an error answer means.

    Args:
        url: The URL of the request.
        status: The HTTP status.
        retry_after: The header ``Retry-After``; empty for none.
        body: The body.
    """
    members = _object(body)
    kind = _kind_of(members)
    retry_after_s = _seconds(retry_after)
    if kind:
        # Whether a Shoal server has begun the call is known: one that is closed, or whose replica
        # died, may have, although it asks for a later try.
        was_refused = _CLASSES.get(kind) is Overloaded
    else:
        was_refused = status in _OVERLOADED and retry_after_s is not None
    error = error_of(url, status, members)
    if was_refused and not isinstance(error, Overloaded):
        error = Overloaded(str(error))
    return Failure(error, was_refused, retry_after_s)


def failure_of_problem(url: str, status: int, problem: object) -> Failure:
    """Returns what a problem means that came otherwise than as an error answer of HTTP.

    Args:
        url: The URL of the request.
        status: The status, for a problem that does not say it.
        problem: The JSON object of the problem.
    """
    error = error_of(url, status, problem)
    members = cast("Mapping[str, Any]", problem if isinstance(problem, dict) else {})
    asked = members.get("retry_after_s")
    retry_after_s = _seconds(str(asked)) if type(asked) is int else None
    return Failure(error, isinstance(error, Overloaded), retry_after_s)


def error_of(url: str, status: int, problem: object) -> Exception:
    """Returns the exception that stands for a problem.

    Args:
        url: The URL of the request.
        status: The HTTP status of the answer, for a problem that does not say it.
        problem: The JSON object of the problem; anything else counts as empty.
    """
    members = cast("Mapping[str, Any]", problem if isinstance(problem, dict) else {})
    kind = _kind_of(members)
    status = members["status"] if type(members.get("status")) is int else status
    parts = [_text_of(members[name]) for name in ("title", "detail") if members.get(name)]
    text = f"{url} answered {status}: {': '.join(parts) or 'without an explanation'}"
    if members.get("instance"):
        text += f" (request {members['instance']})"
    text = text[:_LONGEST_TEXT]
    made = _CLASSES.get(kind)
    if made is not None:
        return made(text)
    return HttpProblem(text, status=status, kind=kind, members=members)


def _text_of(member: object) -> str:
    return member if isinstance(member, str) else json.dumps(member, ensure_ascii=False)


def _kind_of(problem: Mapping[str, Any]) -> str:
    kind = problem.get("type")
    return kind[len(PROBLEM) :] if isinstance(kind, str) and kind.startswith(PROBLEM) else ""


def _object(body: bytes) -> dict[str, Any]:
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _seconds(retry_after: str) -> float | None:
    """Returns the seconds that ``Retry-After`` asks for, as a number or as a date."""
    if _DIGITS.fullmatch(retry_after):
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
