"""The bodies of the admin API: a JSON object for a request, a problem for an error.

Only the names of a request's members are checked here. The client's verbs check their values, so
that errors are the same with a local client.

Only the operator may use the admin API, and a remote client recreates a verb's error from the
problem. The problem therefore contains the error's text, even of an error in user code, unlike
those of `shoal.http.requests.problem`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from pydantic_core import from_json

from shoal.core.options.names import suggested
from shoal.http.requests.json_scan import encoding_flaw
from shoal.http.requests.problem import Problem, Refused
from shoal.serving.clients.wire_errors import RAISED, sent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.http.requests.exchange import Exchange

MAX_BODY_BYTES: Final = 2**20
"""The largest body of a request other than a call, in bytes."""


async def read_object(exchange: Exchange, max_bytes: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """Raises TypeError if the body is not an object."""
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
    body = await exchange.body(max_bytes)
    try:
        value: Any = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        detail = encoding_flaw(body) or str(error)
        raise Refused(Problem(400, "invalid-json", "The body is not JSON", detail)) from None
    if not isinstance(value, dict):
        raise TypeError(f"the body must be a JSON object, not {type(value).__name__}")
    return cast("dict[str, Any]", value)


def members(body: dict[str, Any], known: Mapping[str, bool]) -> dict[str, Any]:
    """Returns the object if it has all required members (True in `known`) and no unknown ones."""
    names = sorted(known, key=lambda name: not known[name])
    for name in names:
        if known[name] and name not in body:
            raise TypeError(f"the body must have {name!r}")
    for name in body:
        if name not in known:
            hint = suggested(name, names) or f"it takes {', '.join(names)}"
            raise TypeError(f"the body can't have {name!r}; {hint}")
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
    "not-enough-gpus": 409,
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
    described = sent(error)
    status = _STATUSES[described.kind]
    title = described.kind.replace("-", " ").capitalize()
    headers = _RETRY if status == 503 else ()
    return Problem(status, described.kind, title, described.text, headers, described.more)
