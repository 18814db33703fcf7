"""What servers answer, and which errors it is for the caller."""

import httpx

from shoal import errors

PROBLEM = "urn:shoal:problem:"
DONE = httpx.Response(200, json="done")
NOT_THERE = httpx.ConnectError("refused")


def refusal(kind="overloaded", status=503, retry_after=None):
    """An answer with a problem, whose kind may be empty."""
    headers = {} if retry_after is None else {"retry-after": retry_after}
    problem = {"type": f"{PROBLEM}{kind}" if kind else "about:blank", "title": "No"}
    return httpx.Response(status, headers=headers, json=problem)


# After these the call may have run, so it is not made again.
MAY_HAVE_RUN = [
    (refusal("closed", retry_after="0"), errors.BatcherClosed),
    (refusal("replica-died", retry_after="0"), errors.ReplicaDied),
    (refusal("unavailable", retry_after="0"), errors.BackendUnavailable),
    (refusal("internal", 500), errors.HttpProblem),
    (refusal("internal", 500, "0"), errors.HttpProblem),
    (refusal("deadline-exceeded", 504), errors.DeadlineExceeded),
    (refusal("slow-reader", 408), errors.SlowReader),
    (refusal("something-new", retry_after="0"), errors.HttpProblem),
    (httpx.Response(503), errors.HttpProblem),
    (httpx.Response(429), errors.HttpProblem),
    (httpx.Response(502, headers={"retry-after": "0"}), errors.HttpProblem),
    (httpx.ReadError("reset"), ConnectionError),
    (httpx.WriteError("reset"), ConnectionError),
    (httpx.RemoteProtocolError("gone"), ConnectionError),
    (httpx.ReadTimeout("slow"), TimeoutError),
]
