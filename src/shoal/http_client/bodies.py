"""Items as bodies of requests, and bodies of responses as results or as errors.

A Shoal server answers with problems (RFC 9457). Where the error has a class of its own, the client
raises it, as a call in the server's process would. Any other error response is an `HttpProblem`.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

from shoal import errors
from shoal.core.json_text import json_bytes
from shoal.core.npy import NPY, array_of, npy_of
from shoal.failures.retry_after import seconds_of

if TYPE_CHECKING:
    from collections.abc import Mapping


JSON: Final = "application/json"
JSON_LINES: Final = "application/x-ndjson"
BYTES: Final = "application/octet-stream"

ResultType: TypeAlias = Literal["json", "npy", "bytes"]
RESULT_TYPES: Final[tuple[str, ...]] = get_args(ResultType)

ACCEPTED: Final[Mapping[str | None, str]] = {
    None: f"{JSON}, */*;q=0.1",
    "json": JSON,
    "npy": f"{NPY}, {JSON};q=0.5",
    "bytes": "*/*",
}


def body_of(item: Any) -> tuple[bytes, str]:
    """Returns the body of a request with an item, and its media type."""
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(cast("bytes", item)), BYTES
    if type(item).__module__ == "numpy" and type(item).__name__ == "ndarray":
        return npy_of(item), NPY
    return json_bytes(item, _plain), JSON


def result_of(body: bytes, media_type: str, wanted: ResultType | None, url: str) -> Any:
    is_json = media_type == JSON or media_type.endswith("+json")
    if wanted == "bytes" or (wanted is None and not is_json and media_type != NPY):
        return body
    try:
        if is_json:
            value = json.loads(body)
            return value if wanted != "npy" else importlib.import_module("numpy").asarray(value)
        if media_type == NPY and wanted != "json":
            return array_of(body)
    except (ValueError, RecursionError) as error:
        raise ConnectionError(f"{url} did not answer with {media_type}: {error}") from None
    raise TypeError(f"{url} answered with {media_type or 'no media type'}, not with {wanted}")


def _plain(value: Any) -> Any:
    if (as_list := getattr(value, "tolist", None)) is not None:
        return as_list()
    if (dump := getattr(value, "model_dump", None)) is not None:
        return dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(
        f"{value!r} can't be sent as JSON, which has None, truth values, numbers, text, lists, and "
        "dicts with text for keys"
    )


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
