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
