"""The error for a request that the server refuses before the application sees it."""

from __future__ import annotations


class BadRequest(Exception):
    """A request that is refused with a status and a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
