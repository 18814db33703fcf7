"""Problems: the responses to failed requests, and the HTTP status of each error.

Responses follow RFC 9457 (``application/problem+json``). ``type`` is a URN that programs can
compare. ``instance`` is the request's id, which is in the log with the details. An error of a
handler is internal: its text may contain anything, so it is sent only with `debug`.
"""

from __future__ import annotations

import logging
import traceback
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import orjson

from shoal.asgi.headers import PROBLEM_JSON, headers_of_code
from shoal.core.request import chosen_status, is_declined, is_of_template
from shoal.errors import (
    BackendUnavailable,
    BatcherClosed,
    DeadlineExceeded,
    HandlerTimeout,
    ItemTooLarge,
    NoSuchModel,
    Overloaded,
    ReplicaDied,
    RetryLater,
    ShutDown,
    SlowReader,
)
from shoal.failures.held import held

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.exceptions import HTTPException

    from shoal.asgi.http_options import HttpOptions

_MOST_DIGITS: Final = 9
_OF_THE_BODY: Final = frozenset({b"content-type", b"content-encoding"})
_LOGGED: Final = "_shoal_was_logged"
_log: Final = logging.getLogger("shoal.http")


# The status and the title of each kind of problem that a request to an endpoint may have.
KINDS: Final[dict[str, tuple[int, str]]] = {
    "invalid-json": (400, "The body is not JSON"),
    "invalid-msgpack": (400, "The body is not MessagePack"),
    "invalid-form": (400, "The form is not accepted"),
    "invalid-content-coding": (400, "The body is not in its content coding"),
    "invalid-timeout": (400, "The time limit is invalid"),
    "no-such-priority": (400, "There is no such priority"),
    "not-found": (404, "The path was not found"),
    "no-such-method": (404, "There is no such method"),
    "no-such-model": (404, "There is no such model"),
    "method-not-allowed": (405, "The method is not allowed here"),
    "not-acceptable": (406, "No form of the stream is accepted"),
    "slow-reader": (408, "The stream was read too slowly"),
    "body-too-large": (413, "The body is too large"),
    "body-too-fragmented": (413, "The body arrives in too many pieces"),
    "body-too-complex": (413, "The body has too many elements"),
    "item-too-large": (413, "The item is too large"),
    "unsupported-media-type": (415, "The media type is not supported"),
    "unsupported-content-coding": (415, "The content coding is not supported"),
    "invalid-item": (422, "The body does not fit the endpoint"),
    "internal": (500, "The call failed"),
    "method-unknown": (501, "The method is not known here"),
    "overloaded": (503, "The endpoint is overloaded"),
    "closed": (503, "The endpoint has stopped"),
    "unavailable": (503, "The endpoint has no replica"),
    "replica-died": (503, "The replica that ran the call died"),
    "not-open": (503, "The endpoints are not open"),
    "too-many-incomplete-bodies": (503, "Too many bodies are incomplete"),
    "deadline-exceeded": (504, "The call was not answered in time"),
    "handler-timeout": (504, "The handler did not end in time"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """The description of a failed request that is sent to its client."""

    status: int
    # The last part of the problem's type; empty if the status describes it fully.
    kind: str
    # For all problems of the kind; `detail` is about this occurrence.
    title: str
    detail: str = ""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    # Further members of the JSON object.
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(
        cls,
        kind: str,
        detail: str = "",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        **more: Any,
    ) -> Problem:
        status, title = KINDS[kind]
        return cls(status, kind, title, detail, headers, more)

    @property
    def text(self) -> str:
        return _printable(f"{self.title}: {self.detail}" if self.detail else self.title)

    def members(self, request_id: str) -> dict[str, Any]:
        members = {
            "type": f"urn:shoal:problem:{self.kind}" if self.kind else "about:blank",
            "title": self.title,
            "status": self.status,
            "detail": _printable(self.detail),
            "instance": request_id,
            **self.more,
        }
        if not self.detail:
            del members["detail"]
        return members

    def in_a_message(self, request_id: str) -> dict[str, Any]:
        """Returns the members, with ``Retry-After``, for a message without headers."""
        members = self.members(request_id)
        retry_after = dict(self.headers).get(b"retry-after", b"")
        if retry_after.isdigit() and len(retry_after) <= _MOST_DIGITS:
            members["retry_after_s"] = int(retry_after)
        return members


def with_retry_after(problem: Problem, seconds: int) -> Problem:
    """Returns a problem of an overloaded or unavailable server with ``Retry-After``."""
    # One that the code has chosen has no kind, and the headers that the code chose.
    is_for_later = problem.kind == "overloaded" or (problem.kind != "" and problem.status == 503)
    if not is_for_later or b"retry-after" in dict(problem.headers):
        return problem
    return replace(problem, headers=(*problem.headers, (b"retry-after", b"%d" % seconds)))


class Refused(Exception):
    """Answers a request with a problem, before or in place of a call."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.title)
        self.problem = problem

    @classmethod
    def of(
        cls, kind: str, detail: str, headers: tuple[tuple[bytes, bytes], ...] = (), **more: Any
    ) -> Refused:
        return cls(Problem.of(kind, detail, headers, **more))


def explained(error: Exception, options: HttpOptions, endpoint: str, request_id: str) -> Problem:
    """Returns the problem of an error; logs an internal one."""
    # A failing handler fails a whole batch, each request with a copy of one error. The batch has
    # its own log line, so all but the first of these are debug messages.
    problem = problem_of(error, options)
    if problem.kind == "internal":
        # Not all protocols have a member for the id.
        detail = f"The cause is in the server's log, under the request id {request_id}."
        problem = replace(problem, detail=detail)
        original, is_new = marked_as_logged(error)
        _log.log(
            logging.ERROR if is_new else logging.DEBUG,
            "%s: request %s failed: %s",
            endpoint,
            request_id,
            type(original).__name__,
            exc_info=(type(original), original, original.__traceback__) if is_new else None,
        )
    return problem


def marked_as_logged(error: BaseException) -> tuple[BaseException, bool]:
    """Returns the original of an error, and whether it was not marked as logged before."""
    original = original_of(error)
    # Bypasses the error's own __setattr__, which is user code and may raise.
    marks: dict[str, Any] = BaseException.__getattribute__(original, "__dict__")
    is_new = _LOGGED not in marks
    marks[_LOGGED] = True
    return original, is_new


def original_of(error: BaseException) -> BaseException:
    """Returns the code's own error, of which each caller gets a copy."""
    cause = error.__cause__
    return error if cause is None else cause  # their classes may define a truth value


def is_failure(error: BaseException, problem: Problem) -> bool:
    """Returns whether the server or its code failed, and not the request."""
    # An HTTPException with a 4xx status refuses the request on purpose.
    return problem.status >= 500 or not (isinstance(error, Refused) or is_declined(error))


def problem_of(error: Exception, options: HttpOptions) -> Problem:
    return with_retry_after(_problem_of(error, options), options.retry_after_s)


def _problem_of(error: Exception, options: HttpOptions) -> Problem:
    match error:
        case Refused():
            return error.problem
        case Overloaded():
            detail = "Too many requests wait for it already; try again later."
            return replace(Problem.of("overloaded", detail), status=options.overload_status)
        case ShutDown():
            return ENDED
        case ItemTooLarge():
            detail = error.limit_exceeded or "It does not fit into any batch."
            return Problem.of("item-too-large", detail)
        case _:
            pass
    for cls, kind, detail in _ERRORS:
        if isinstance(error, cls):
            return Problem.of(kind, detail)
    return _of_other_error(error, debug=options.debug)


_ERRORS: Final = (
    (RetryLater, "overloaded", "A service that it needs is busy."),
    (BatcherClosed, "closed", "It accepts no more calls in this process."),
    (
        BackendUnavailable,
        "unavailable",
        "None is running, and none could be started. Starting is tried again.",
    ),
    (ReplicaDied, "replica-died", "The call may be retried."),
    # Does not list the models, since clients need not know them.
    (NoSuchModel, "no-such-model", ""),
    (DeadlineExceeded, "deadline-exceeded", ""),
    (HandlerTimeout, "handler-timeout", ""),
    (SlowReader, "slow-reader", "It delayed other requests and was ended."),
)


def _of_other_error(error: Exception, *, debug: bool) -> Problem:
    from starlette.exceptions import HTTPException

    if is_of_template(error):
        title = "The chat template refused the messages"
        return Problem(400, "", title, str(error), more={"param": "messages"})
    if isinstance(error, HTTPException):
        try:
            return _of_http_exception(error)
        except Exception as wrong:  # its attributes may be anything
            _log.error("%s", wrong)
    return _internal(error, debug=debug)


def _internal(error: Exception, *, debug: bool) -> Problem:
    more: dict[str, Any] = {}
    if debug:
        more["traceback"] = [_printable(line) for line in traceback.format_exception(error)]
    return Problem.of("internal", **more)


@held
def _of_http_exception(error: HTTPException) -> Problem:
    status = chosen_status(error)
    if status is None:
        raise ValueError(
            f"an HTTPException has a status from 300 to 599, not {error.status_code!r}"
        )
    try:
        title = HTTPStatus(status).phrase
    except ValueError:
        title = f"Status {status}"
    try:
        pairs = dict(error.headers or {}).items()
    except (TypeError, ValueError):
        raise ValueError("the headers of an HTTPException are a mapping") from None
    headers = tuple(headers_of_code(pairs, _OF_THE_BODY))
    detail: Any = error.detail
    if detail is None or isinstance(detail, str):
        return Problem(status, "", title, "" if detail in (None, title) else detail, headers)
    text = _json_of(detail)
    more = {} if text is None else {"detail": orjson.Fragment(text)}
    return Problem(status, "", title, (text or b"").decode(), headers, more)


def _json_of(detail: object) -> bytes | None:
    from shoal.http.requests.plain import encoded  # with pydantic, which endpoints load

    try:
        return encoded(detail)
    except Exception:  # of the class of any value
        kind = type(detail).__name__
        _log.error("the detail of an HTTPException can't be written as JSON: %s", kind)
        return None


def _printable(text: str) -> str:
    """Replaces lone surrogates, which UTF-8 can't have, but some file names do."""
    return text.encode("utf-8", "backslashreplace").decode()


def method_not_allowed(allowed: list[str]) -> Problem:
    names = ", ".join(allowed)
    allow = ((b"allow", names.encode("ascii")),)
    return Problem.of("method-not-allowed", f"This path accepts {names}.", allow)


NOT_FOUND: Final = Problem.of("not-found", "No endpoint has this path.")

# Of a call before the application's lifespan was entered.
NOT_OPEN: Final = Problem.of(
    "not-open",
    "The application's lifespan is not running. An application that is mounted in another is "
    'opened by the outer one: Starlette(lifespan=app.lifespan, routes=[Mount("/ml", app=app)]).',
)

# Of a request that a shutdown has cut off.
ENDED: Final = Problem(
    503,
    "closed",
    "The server has stopped",
    "It stopped before the call had ended. The call may be retried.",
)

# Of a request while the application loads its models.
STARTING: Final = Problem(
    503,
    "not-open",
    "The server is starting",
    "The application loads its models. /-/readyz says which, and answers 200 once it is ready.",
)


def too_large(max_bytes: int) -> Refused:
    return Refused.of("body-too-large", f"A request may have a body of at most {max_bytes} bytes.")


def problem_json(problem: Problem, request_id: str) -> tuple[bytes, bytes]:
    return PROBLEM_JSON, orjson.dumps(problem.members(request_id))
