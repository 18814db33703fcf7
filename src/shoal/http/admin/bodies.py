"""The bodies of the admin API: of a request one JSON object, of an error a problem.

Only the shape of a request is checked here. What the members hold is for the client's verbs to
check, so that their errors are the same whichever way they were asked.

A remote client makes a verb's error again from the problem. Who may use the admin API is the
operator. So here an error's text is told, and that of the user's own code as well;
`shoal.http.requests.problem` tells neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_core import from_json

from shoal.http.requests.exchange import read_body
from shoal.http.requests.problem import Problem, Refused
from shoal.serving.clients.wire_errors import RAISED, sent

if TYPE_CHECKING:
    from shoal.http.requests.exchange import Exchange

MAX_BODY_BYTES: Final = 2**20
"""How large a body may be of which nothing goes to user code."""


async def read_object(exchange: Exchange, max_bytes: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """Reads a body that is a JSON object.

    Args:
        exchange: The request.
        max_bytes: How large the body may be.

    Raises:
        Refused: It is not JSON, is no object, or is too large.
        ClientLeft: The client left before it had sent it all.
    """
    media_type = exchange.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    coding = exchange.headers.get(b"content-encoding", b"identity").strip().lower()
    if media_type != b"application/json" or coding != b"identity":
        raise Refused(
            Problem(
                415,
                "unsupported-media-type",
                "The media type is not supported",
                "The admin API takes JSON; send Content-Type: application/json.",
            )
        )
    declared = exchange.headers.get(b"content-length")
    body = await read_body(exchange.receive, declared, max_bytes)
    try:
        value: Any = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise Refused(Problem(400, "invalid-json", "The body is not JSON", str(error))) from None
    if not isinstance(value, dict):
        raise TypeError(f"the body must be a JSON object, not {type(value).__name__}")
    return cast("dict[str, Any]", value)


def members(
    body: dict[str, Any], required: tuple[str, ...], optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Checks that an object has the members that it should, and no others.

    Raises:
        TypeError: One is missing or unknown.
    """
    for name in required:
        if name not in body:
            raise TypeError(f"the body must have {name!r}")
    for name in body:
        if name not in (*required, *optional):
            raise TypeError(
                f"the body can't have {name!r}; it takes {', '.join((*required, *optional))}"
            )
    return body


_STATUSES: Final = {
    "backend-unavailable": 503,
    "closed": 503,
    "deadline-exceeded": 504,
    "handler-failed": 500,
    "handler-timeout": 504,
    "in-use": 409,
    "item-too-large": 413,
    "name-taken": 409,
    "no-such-name": 404,
    "not-allowed": 403,
    "not-durable": 409,
    "not-open": 503,
    "overloaded": 503,
    "replica-died": 502,
    "replica-not-started": 422,
    "shut-down": 503,
    "slow-reader": 408,
    "state-refused": 500,
    "type-error": 422,
    "unfinished": 500,
    "value-error": 422,
    "would-deadlock": 500,
    "wrong-batch-size": 500,
    "wrong-result-type": 500,
    RAISED: 500,
}
_RETRY: Final = ((b"retry-after", b"1"),)


def admin_problem(error: Exception) -> Problem:
    """Says how the admin API tells of an error."""
    described = sent(error)
    status = _STATUSES[described.kind]
    title = described.kind.replace("-", " ").capitalize()
    headers = _RETRY if status == 503 else ()
    return Problem(status, described.kind, title, described.text, headers, described.more)
