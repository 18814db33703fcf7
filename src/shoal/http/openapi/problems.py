"""The problems of calls, by status; `shoal.http.requests.problem` makes them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple


class Kind(NamedTuple):
    """The last part of a problem's type, and its title."""

    name: str
    title: str


PROBLEMS: Final[dict[int, tuple[Kind, ...]]] = {
    400: (
        Kind("invalid-json", "The body is not JSON"),
        Kind("invalid-msgpack", "The body is not MessagePack"),
        Kind("invalid-form", "The form is not accepted"),
        Kind("invalid-content-coding", "The body is not in its content coding"),
        Kind("invalid-timeout", "The time limit is invalid"),
        Kind("no-such-priority", "There is no such priority"),
    ),
    404: (
        Kind("not-found", "The path was not found"),
        Kind("no-such-method", "There is no such method"),
    ),
    405: (Kind("method-not-allowed", "The method is not allowed here"),),
    406: (Kind("not-acceptable", "No form of the stream is accepted"),),
    408: (Kind("slow-reader", "The stream was read too slowly"),),
    413: (
        Kind("body-too-large", "The body is too large"),
        Kind("body-too-fragmented", "The body arrives in too many pieces"),
        Kind("body-too-complex", "The body has too many elements"),
        Kind("item-too-large", "The item is too large"),
    ),
    415: (
        Kind("unsupported-media-type", "The media type is not supported"),
        Kind("unsupported-content-coding", "The content coding is not supported"),
    ),
    422: (
        Kind("invalid-item", "The body does not fit the endpoint"),
        Kind("invalid-item", "The query does not fit the endpoint"),
        Kind("invalid-item", "The body is not an array that the endpoint accepts"),
    ),
    500: (Kind("internal", "The call failed"),),
    503: (
        Kind("overloaded", "The endpoint is overloaded"),
        Kind("closed", "The endpoint has stopped"),
        Kind("unavailable", "The endpoint has no replica"),
        Kind("replica-died", "The replica that ran the call died"),
        Kind("not-open", "The endpoints are not open"),
        Kind("too-many-incomplete-bodies", "Too many bodies are incomplete"),
    ),
    504: (
        Kind("deadline-exceeded", "The call was not answered in time"),
        Kind("handler-timeout", "The handler did not end in time"),
    ),
}
"""The kinds of problems, by the status that each is answered with by default."""

OVERLOADED: Final = PROBLEMS[503][0]
"""The kind whose status is an option."""

WITH_RETRY_AFTER: Final = frozenset({429, 503})
"""The statuses whose answers say when to try again."""

MEANINGS: Final = {
    400: "The request is malformed.",
    404: "There is no such path.",
    405: "The path does not take this method. `Allow` says which it takes.",
    406: "The answer has no form that `Accept` allows.",
    408: "The request was sent, or the stream was read, too slowly.",
    413: "The request is too large.",
    415: "The body has a media type, or a content coding, that the endpoint does not take.",
    422: "The request does not fit the endpoint.",
    429: "The endpoint is overloaded. Try again later.",
    500: "The call failed. The cause is in the server's log, under the request's id.",
    503: "The endpoint can't take the call now. Try again later.",
    504: "The call was not answered in time.",
}
"""What each status says."""

_ERROR: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["loc", "msg", "type"],
    "properties": {
        "loc": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
        "msg": {"type": "string"},
        "type": {"type": "string"},
    },
}

SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "title": "Problem",
    "description": "Why a request failed, as of RFC 9457.",
    "required": ["type", "title", "status", "instance"],
    "properties": {
        "type": {
            "type": "string",
            "description": "The kind of problem: a URN for programs to compare, or `about:blank`.",
        },
        "title": {"type": "string", "description": "The kind of problem, in words."},
        "status": {"type": "integer", "minimum": 300, "maximum": 599},
        "detail": {
            "description": "What is wrong with this request: text, or any JSON that the code chose."
        },
        "instance": {
            "type": "string",
            "description": "The request's id, which is in the server's log.",
        },
        "errors": {
            "type": "array",
            "description": "Where the item does not fit.",
            "items": _ERROR,
        },
        "traceback": {
            "type": "array",
            "description": "The traceback, if the server shows it.",
            "items": {"type": "string"},
        },
    },
}
"""The schema of a problem."""


def kinds_of(status: int, overload_status: int) -> tuple[Kind, ...]:
    kinds = PROBLEMS.get(status, ())
    if overload_status == 503:
        return kinds
    if status == overload_status:
        return (*kinds, OVERLOADED)
    return tuple(kind for kind in kinds if kind is not OVERLOADED)
