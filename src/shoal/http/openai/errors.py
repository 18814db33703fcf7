"""Errors in OpenAI's form: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.errors import ItemTooLarge

PREFIX: Final = "/v1"
# The paths below the prefix.
PATHS: Final = (
    *("models", "completions", "chat/completions", "responses", "embeddings"),
    *("classify", "score", "rerank", "audio/transcriptions"),
)

# OpenAI's codes, by kinds of problems.
_CODES: Final[Mapping[str, str]] = {
    "overloaded": "rate_limit_exceeded",
    "item-too-large": "context_length_exceeded",
    "no-such-model": "model_not_found",
    "body-too-large": "request_too_large",
    "deadline-exceeded": "timeout",
}


def refused(
    message: str, *, param: str | None = None, code: str | None = None, status: int = 400
) -> Refused:
    """Returns the error for a request that can't be answered; `param` is the wrong parameter."""
    return Refused(Problem(status, "invalid-request", message, more={"param": param, "code": code}))


def too_long(what: str, error: ItemTooLarge, *, param: str | None = None) -> Refused:
    """Returns the error for an item that fits into no batch."""
    message = f"{what} is too long. {error.limit_exceeded}".rstrip()
    return refused(message, param=param, code="context_length_exceeded")


def no_such_path(path: str) -> Refused | None:
    """Returns the error for an unknown path; None if another protocol may have it."""
    # Some clients build the path from a base URL with a slash too many, or without /v1.
    parts = [part for part in path.split("/") if part]
    is_ours = parts[:1] == ["v1"]
    while parts[:1] == ["v1"]:
        del parts[0]
    rest = "/".join(parts)
    if parts[:1] == ["responses"] and len(parts) > 1:
        hint = "responses are not stored"
    elif rest in PATHS:
        hint = f"it is {PREFIX}/{rest}"
        if path != f"{PREFIX}/{rest}/":
            hint += f"; a client's base URL ends with {PREFIX}, once and without another slash"
    elif is_ours:
        hint = f"there are {', '.join(f'{PREFIX}/{known}' for known in PATHS)}"
    else:
        return None
    return refused(f"There is no path {path} here: {hint}", code="unknown_url", status=404)


def of_invalid_item(refusal: Refused) -> Refused:
    """Returns the error for a body that `JsonType` has refused."""
    problem = refusal.problem
    if problem.status != 422:
        return refusal
    errors = problem.more.get("errors")
    param = None
    if errors:
        # A message may be one of several types; the rest of the path is about these.
        param = ".".join(str(step) for step in errors[0]["loc"][:2]) or None
    return refused(problem.detail or problem.title, param=param)


def error_json(problem: Problem) -> bytes:
    more = problem.more
    error: dict[str, Any] = {
        "message": problem.text,
        "type": _type_of(problem.status),
        "param": more.get("param"),
        "code": more.get("code") or _CODES.get(problem.kind),
    }
    if "traceback" in more:  # with debug=True only
        error["traceback"] = more["traceback"]
    return orjson.dumps({"error": error})


def _type_of(status: int) -> str:
    if status >= 500:
        return "server_error"
    return "rate_limit_error" if status == 429 else "invalid_request_error"
