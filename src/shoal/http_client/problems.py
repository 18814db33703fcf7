"""Error responses: which exception each is, and which of them say that the call did not run.

A Shoal server answers with problems (RFC 9457). Where the error has a class of its own, the client
raises it, as a call in the server's process would. Any other error response is an `HttpProblem`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from shoal import errors
from shoal.failures.retry_after import seconds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBLEM: Final = "urn:shoal:problem:"

_CLASSES: Final[Mapping[str, type[Exception]]] = {
    "body-too-complex": errors.ItemTooLarge,
    "body-too-fragmented": errors.ItemTooLarge,
    "body-too-large": errors.ItemTooLarge,
    "closed": errors.BatcherClosed,
    "deadline-exceeded": errors.DeadlineExceeded,
    "handler-timeout": errors.HandlerTimeout,
    "item-too-large": errors.ItemTooLarge,
    "no-such-model": errors.NoSuchModel,
    "not-open": errors.NotOpen,
    "overloaded": errors.Overloaded,
    "replica-died": errors.ReplicaDied,
    "slow-reader": errors.SlowReader,
    "too-many-incomplete-bodies": errors.Overloaded,
    "too-many-requests": errors.Overloaded,
    "unavailable": errors.BackendUnavailable,
}
_LONGEST_TEXT: Final = 2000


class FailedResponse(NamedTuple):
    """Why a call failed, and whether it certainly did not run."""

    error: Exception
    was_refused: bool
    retry_after_s: float | None = None


def failure_of(url: str, status: int, retry_after: str, body: bytes) -> FailedResponse:
    """Returns what an error response means; `retry_after` is its header, empty for none."""
    try:
        problem: object = json.loads(body)
    except (ValueError, RecursionError):
        problem = None
    error = error_of(url, status, problem)
    retry_after_s = seconds_of(retry_after)
    was_refused = isinstance(error, errors.Overloaded)
    # For proxies and other servers: whether a Shoal server has begun the call is known.
    if isinstance(error, errors.HttpProblem) and not error.kind:
        was_refused = status in (429, 503) and retry_after_s is not None
        error = errors.Overloaded(str(error)) if was_refused else error
    return FailedResponse(error, was_refused, retry_after_s)


def error_of(url: str, status: int, problem: object) -> Exception:
    """Returns the exception for a problem; `status` is for a problem that does not say it."""
    members = cast("Mapping[str, Any]", problem if isinstance(problem, dict) else {})
    uri = members.get("type")
    kind = uri[len(PROBLEM) :] if isinstance(uri, str) and uri.startswith(PROBLEM) else ""
    status = members["status"] if type(members.get("status")) is int else status
    said = [members[name] for name in ("title", "detail") if members.get(name)]
    parts = [one if isinstance(one, str) else json.dumps(one) for one in said]
    text = f"{url} answered {status}: {': '.join(parts) or 'without an explanation'}"
    if members.get("instance"):
        text += f" (request {members['instance']})"
    text = text[:_LONGEST_TEXT]
    made = _CLASSES.get(kind)
    if made is not None:
        return made(text)
    return errors.HttpProblem(text, status=status, kind=kind, members=members)


def outcomes_of(body: bytes, media_type: str, url: str) -> list[Any]:
    """Returns the results and errors in the lines of a response."""
    if media_type != "application/x-ndjson":
        raise TypeError(f"{url} answered with {media_type or 'no media type'}, not with JSON lines")
    try:
        lines: list[Any] = [json.loads(line) for line in body.splitlines() if line]
        return [
            one["result"] if "result" in one else error_of(url, 500, one["error"]) for one in lines
        ]
    except (ValueError, RecursionError, TypeError, KeyError) as error:
        raise ConnectionError(f"{url} did not answer with JSON lines of results: {error}") from None
