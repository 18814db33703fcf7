"""The problems that only a request on a WebSocket has."""

from __future__ import annotations

from typing import Final

from shoal.http.requests.problem import Problem

CANCELLED: Final = Problem(499, "cancelled", "The client has cancelled the request")


def too_many(most: int) -> Problem:
    """Returns the problem of a request on a connection that has as many as it may."""
    return Problem(
        429,
        "too-many-requests",
        "Too many requests run on the connection",
        f"A connection may have {most} at once; send further ones when others have ended.",
    )


def only_http() -> Problem:
    """Returns the problem of a request for code whose items are decoded from HTTP requests."""
    detail = "The endpoint decodes each HTTP request itself; a message of a WebSocket is none."
    return _unsupported("The endpoint takes HTTP requests only", detail)


def takes_text() -> Problem:
    """Returns the problem of bytes for an endpoint that takes JSON."""
    return _unsupported(
        "The endpoint takes JSON", 'Send the item in a text message: {"id": ..., "item": ...}.'
    )


def takes_bytes() -> Problem:
    """Returns the problem of JSON for an endpoint that takes bytes."""
    return _unsupported(
        "The endpoint takes bytes",
        'Send the item in a binary message: {"id": ...}, a line feed, and the bytes.',
    )


def _unsupported(title: str, detail: str) -> Problem:
    return Problem(415, "unsupported-media-type", title, detail)
