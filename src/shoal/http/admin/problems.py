"""The errors of a client's verbs as problems, from which a remote client makes the errors again.

Who may use the admin API is the operator. So here an error's text is told, and that of the user's
own code as well; `shoal.http.requests.problem` tells neither.
"""

from __future__ import annotations

from typing import Final

from shoal.http.requests.problem import Problem
from shoal.serving.clients.wire_errors import RAISED, sent

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
