"""Error responses: which exception each is, and which of them say that the call did not run.

A Shoal server answers with problems (RFC 9457). Where the error has a class of its own, the client
raises that class, as a call in the server's process would. Any other error response, also that of
another server or of a proxy, is an `HttpProblem`.
"""

from __future__ import annotations

import json
import re
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

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

_LONGEST_TEXT: Final = 2000


class Failure(NamedTuple):
    """Why a call failed, and whether it certainly did not run."""

    error: Exception
    was_refused: bool
    retry_after_s: float | None = None


def failure_of(url: str, status: int, retry_after: str, body: bytes) -> Failure:
    """Returns what an error response means; `retry_after` is its header, empty for none."""
    try:
        problem: object = json.loads(body)
    except (ValueError, RecursionError):
        problem = None
    error = error_of(url, status, problem)
    retry_after_s = _seconds(retry_after)
    was_refused = isinstance(error, Overloaded)
    # Whether a Shoal server has begun the call is known: one that is closed, or whose replica died,
    # may have, although it asks for a later try. So this is for proxies and other servers.
    if isinstance(error, HttpProblem) and not error.kind:
        was_refused = status in (429, 503) and retry_after_s is not None
        error = Overloaded(str(error)) if was_refused else error
    return Failure(error, was_refused, retry_after_s)


def error_of(url: str, status: int, problem: object) -> Exception:
    """Returns the exception for a problem; `status` is for a problem that does not say it."""
    members = cast("Mapping[str, Any]", problem if isinstance(problem, dict) else {})
    uri = members.get("type")
    kind = uri[len(PROBLEM) :] if isinstance(uri, str) and uri.startswith(PROBLEM) else ""
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


def _seconds(retry_after: str) -> float | None:
    """Returns the seconds that ``Retry-After`` asks for, as a number or as a date."""
    if re.fullmatch(r"[0-9]{1,9}", retry_after):
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None
