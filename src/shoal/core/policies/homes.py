"""The replicas that waiting requests prefer by their shard keys, and whether a batch waits for one.

`Buckets` has a bucket for each home, so a batch has requests of one home only. A request without a
shard key has no home, and its batch takes any replica.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.core.options.options import BatchOptions
    from shoal.core.replicas.members import Members
    from shoal.core.request import Request, RequestOptions


class Homes:
    def __init__(self, load_factor: float, size: int, members: Members[Any]) -> None:
        self._load_factor = load_factor
        self._size = size
        self._members = members
        self._version = members.version
        self._waiting: Counter[Any] = Counter()  # the number of requests by home
        # Whether the last decision has held back a batch that was due.
        self.is_holding = False

    @classmethod
    def of(cls, options: BatchOptions, members: Members[Any]) -> Homes | None:
        """Returns None if requests prefer no replicas."""
        factor = options.sticky_load_factor
        return None if factor is None else cls(factor, options.max_batch_size, members)

    def find(self, asked: RequestOptions) -> None:
        """Sets the home of a request."""
        key = asked.metadata.get("shard_key")
        asked.home = None if key is None else self._members.home(key)

    def add(self, asked: RequestOptions) -> None:
        self.find(asked)
        self._waiting[asked.home] += 1

    def count(self, request: Request, change: int) -> None:
        """Counts requests with the home of the given one."""
        assert request.options is not None
        self._waiting[request.options.home] += change

    def forget_counts(self) -> None:
        self._waiting.clear()

    def have_changed(self) -> bool:
        """Returns whether requests may have other homes since the last call."""
        before, self._version = self._version, self._members.version
        self.is_holding = False
        return before != self._version

    def holds(self, request: Request) -> bool:
        """Returns whether a batch with this request waits, though a replica has room."""
        return request.options is not None and self._holds(request.options.home)

    def releases(self, asked: RequestOptions) -> bool:
        """Returns whether a batch that was held back need not wait, with one request more."""
        return self.is_holding and not self._holds(asked.home)

    def _holds(self, home: Any) -> bool:
        if home is None:
            return False
        waiting, all_waiting = self._waiting[home], self._waiting.total()
        return self._members.holds(home, waiting, all_waiting, self._size, self._load_factor)
