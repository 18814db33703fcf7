"""A bound on the bytes of incomplete bodies, for all clients together and for each connection.

Otherwise one HTTP/2 connection with a hundred streams could hold a hundred bodies, each without its
last byte.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from shoal.asgi.http_options import HttpOptions


class IncompleteBodies:
    def __init__(self, options: HttpOptions) -> None:
        self._most = options.max_incomplete_bytes
        # For one connection: a quarter, but always one body.
        self._most_of_one = max(self._most // 4, options.max_body_bytes)
        self._retry_after = str(options.retry_after_s).encode("ascii")
        self._held = 0
        self._held_by: Counter[Any] = Counter()

    def add(self, client: Any, size: int) -> None:
        self._held += size
        if client is not None:
            self._held_by[client] += size
        if self._held > self._most or self._held_by[client] > self._most_of_one:
            raise Refused(
                Problem(
                    503,
                    "too-many-incomplete-bodies",
                    "Too many bodies are incomplete",
                    "The server holds no more of them; send the request again.",
                    ((b"retry-after", self._retry_after),),
                )
            )

    def release(self, client: Any, size: int) -> None:
        self._held -= size
        if client is not None:
            self._held_by[client] -= size
            if not self._held_by[client]:
                del self._held_by[client]
