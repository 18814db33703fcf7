"""The responses to Shoal's errors, as its own endpoints send them, for any web framework."""

from __future__ import annotations

from typing import NamedTuple, TypedDict, Unpack

from shoal.asgi.http_options import HttpOptions, OverloadStatus
from shoal.http.requests.exchange import REQUEST_ID
from shoal.http.requests.problem import explained, problem_json
from shoal.http.requests.shared_parts import SharedParts


class ErrorKeywords(TypedDict, total=False):
    """The options of `HttpOptions` for responses to errors."""

    overload_status: OverloadStatus
    retry_after_s: int
    debug: bool


class ErrorResponse(NamedTuple):
    """The response to a failed request.

    Attributes:
        status: The HTTP status.
        headers: The headers, with the media type, the request's id, and perhaps ``Retry-After``.
        body: The problem as JSON (RFC 9457).
    """

    status: int
    headers: dict[str, str]
    body: bytes


class ErrorResponses:
    """Makes the responses to errors of calls, for the error handler of a web framework.

    Statuses and bodies are those of Shoal's own endpoints. Errors that Shoal has no status for get
    500 without their text, and are logged by the logger ``shoal.http`` under the request's id: once
    for all callers of a failed batch. It may be used in any thread.

    Args:
        **options: ``overload_status``, ``retry_after_s`` (in seconds) and ``debug``, as in
            `HttpOptions`.

    Raises:
        TypeError: An option is unknown or has the wrong type.
        ValueError: An option is out of its range.
    """

    def __init__(self, **options: Unpack[ErrorKeywords]) -> None:
        self._options = HttpOptions(**options)
        self._new_id = SharedParts(self._options).new_id

    def of(
        self, error: Exception, *, request_id: str | None = None, route: str = "-"
    ) -> ErrorResponse:
        """Returns the response to an error.

        Args:
            error: What a call of a batched function or a handle has raised.
            request_id: The value of the request's header ``X-Request-ID``. If it is None or
                malformed, the response has a new id.
            route: The name of the route, for the log.
        """
        if request_id is None or not REQUEST_ID.fullmatch(request_id.encode("utf-8", "replace")):
            request_id = self._new_id().decode("ascii")
        problem = explained(error, self._options, route, request_id)
        media_type, body = problem_json(problem, request_id)
        headers = {"content-type": media_type.decode("ascii"), "x-request-id": request_id}
        headers |= {name.decode("ascii"): v.decode("latin-1") for name, v in problem.headers}
        return ErrorResponse(problem.status, headers, body)
