"""What all requests and WebSockets of an application share: options, ids, limits, and counts."""

from __future__ import annotations

import itertools
import secrets
from collections import Counter, defaultdict
from time import perf_counter
from typing import TYPE_CHECKING, Any

from shoal.core.histogram import NO_ENDPOINT, ItemTimes, RequestTimes
from shoal.http.requests.disconnects import Disconnects
from shoal.http.requests.problem import Refused
from shoal.loops.this_loop import parking_of_this_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shoal.asgi.http_options import HttpOptions


class SharedParts:
    def __init__(self, options: HttpOptions) -> None:
        # The event loop's clock once it has begun, unless that is coarse.
        self.now: Callable[[], float] = perf_counter
        self.times = RequestTimes()
        # By endpoint.
        self.streams: defaultdict[str, ItemTimes] = defaultdict(ItemTimes)
        self.options = options
        # The application while it is open, unless middleware or a tracer is around its requests.
        self.bare_app: object = None
        self.disconnects = Disconnects()
        self.incomplete = IncompleteBodies(options)
        # Ids are unique among processes that share a log, and cheap to make.
        form = secrets.token_hex(4).encode("ascii") + b"-%x"
        self.new_id: Callable[[], bytes] = map(form.__mod__, itertools.count(1)).__next__

    def begin(self) -> None:
        """Prepares for requests in the running event loop."""
        parking = parking_of_this_loop()
        self.now = perf_counter if parking.is_coarse else parking.now

    def keep_counts_of(self, endpoints: Iterable[str]) -> None:
        names = {*endpoints, NO_ENDPOINT}
        self.times.keep(names)
        for name in self.streams.keys() - names:
            del self.streams[name]


class IncompleteBodies:
    """Bounds the bytes of incomplete bodies, in total and for each connection."""

    # Otherwise one HTTP/2 connection with a hundred streams could hold a hundred bodies, each
    # without its last byte.

    def __init__(self, options: HttpOptions) -> None:
        self._most = options.max_incomplete_bytes
        # For one connection: a quarter, but always one body.
        self._most_of_one = max(self._most // 4, options.max_body_bytes)
        self._held = 0
        self._held_by: Counter[Any] = Counter()

    def add(self, client: Any, size: int) -> None:
        self._held += size
        if client is not None:
            self._held_by[client] += size
        if self._held > self._most or self._held_by[client] > self._most_of_one:
            detail = "The server holds no more of them; send the request again."
            raise Refused.of("too-many-incomplete-bodies", detail)

    def release(self, client: Any, size: int) -> None:
        self._held -= size
        if client is not None:
            self._held_by[client] -= size
            if not self._held_by[client]:
                del self._held_by[client]
