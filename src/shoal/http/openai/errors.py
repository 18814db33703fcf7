"""Bodies of requests, and errors: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Final, NotRequired

import orjson
from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from shoal.http.json.validation import JsonType, adapter_of
from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from shoal.errors import ItemTooLarge
    from shoal.http.requests.exchange import Exchange


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
    rest = path.replace(PREFIX, "").strip("/")
    if rest in PATHS:
        hint = f"it is {PREFIX}/{rest}; a client's base URL ends with {PREFIX}, without a slash"
    elif rest.startswith("responses/"):
        hint = "responses are not stored"
    elif f"{path}/".lstrip("/").startswith("v1/"):
        hint = f"there are {', '.join(f'{PREFIX}/{one}' for one in PATHS)}"
    else:
        return None
    return refused(f"There is no path {path} here: {hint}", code="unknown_url", status=404)


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


LONGEST_NAME: Final = 256
# Unknown parameters are ignored, or are a model's.
OPEN: Final = ConfigDict(extra="allow", strict=True)


@with_config(OPEN)
class Body(TypedDict):
    model: NotRequired[Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)] | None]


@cache
def _type(kind: Hashable) -> JsonType:
    # Once for all applications: it takes milliseconds to build.
    return JsonType(adapter_of(kind))


def read_body(kind: type[Mapping[str, Any]], exchange: Exchange, body: bytes) -> dict[str, Any]:
    """Raises `Refused` if the body is malformed."""
    try:
        params: dict[str, Any] = _type(kind).parsed(exchange, body)
    except Refused as refusal:
        problem = refusal.problem
        if problem.status != 422:
            raise
        errors = problem.more.get("errors")
        steps = errors[0]["loc"] if errors else ()
        param = ".".join([str(steps[0]), *index_in(steps[1:])]) if steps else None
        # Not the detail, which has advice for endpoints of JSON.
        message = errors[0]["msg"] if errors else problem.text
        if param is not None:
            message = f"{param}: {message}"
        raise refused(message, param=param) from None
    return params


def index_in(steps: Sequence[int | str]) -> list[str]:
    """Returns the index of an element; the steps below a parameter may be types of a union."""
    return [str(one) for one in steps[:1] if isinstance(one, int)]
