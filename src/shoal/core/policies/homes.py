"""Which replica a due batch prefers, and whether it waits for that one while another has room.

Requests prefer a replica by their shard keys (`Homes`), or the replicas that have their model
loaded (`LoadedModels`). `Buckets` has a bucket for each home or model. A request without a shard
key, or without a model, takes any replica.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from shoal.core.options.options import BatchOptions
    from shoal.core.options.records import Models
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

    def find(self, asked: RequestOptions) -> None:
        key = asked.metadata.get("shard_key")
        asked.home = None if key is None else self._members.home(key)

    def add(self, asked: RequestOptions) -> None:
        self.find(asked)
        self._waiting[asked.home] += 1

    def count(self, request: Request, change: int) -> None:
        assert request.options is not None
        self._waiting[request.options.home] += change

    def forget_counts(self) -> None:
        self._waiting.clear()

    def have_changed(self) -> bool:
        """Returns whether requests may have other homes since the last call."""
        before, self._version = self._version, self._members.version
        self.is_holding = False
        return before != self._version

    def part_of_key(self, asked: RequestOptions) -> Any:
        return asked.home

    def held_until(self, request: Request, now: float) -> float:
        """Returns until when a batch waits for its home; infinity: until the load changes."""
        assert request.options is not None
        return math.inf if self._holds(request.options.home) else now

    def releases(self, asked: RequestOptions) -> bool:
        """Returns whether a batch that was held back need not wait, with one request more."""
        return self.is_holding and not self._holds(asked.home)

    def _holds(self, home: Any) -> bool:
        if home is None:
            return False
        waiting, all_waiting = self._waiting[home], self._waiting.total()
        return self._members.holds(home, waiting, all_waiting, self._size, self._load_factor)


class LoadedModels:
    def __init__(self, models: Models, size: int, members: Members[Any]) -> None:
        self._max_wait_s = models.max_switch_wait_s
        self._size = size
        self._members = members
        self._waiting: Counter[Any] = Counter()  # the number of requests by model
        self.is_holding = False
        members.most_models = models.most

    def find(self, asked: RequestOptions) -> None:
        """Does nothing: the model of a request is known from its call."""

    def add(self, asked: RequestOptions) -> None:
        self._waiting[asked.model] += 1

    def count(self, request: Request, change: int) -> None:
        assert request.options is not None
        self._waiting[request.options.model] += change
        if not self._waiting[request.options.model]:
            del self._waiting[request.options.model]

    def forget_counts(self) -> None:
        self._waiting.clear()

    def have_changed(self) -> bool:
        self._members.wanted = self._waiting
        return False

    def part_of_key(self, asked: RequestOptions) -> Any:
        return asked.model

    def held_until(self, request: Request, now: float) -> float:
        """Returns until when a batch with this first request waits, though a replica has room."""
        assert request.options is not None
        model = request.options.model
        if model is None:
            return now
        arrived_at, wait_s = request.arrived_at, self._max_wait_s
        return self._members.model_held_until(model, arrived_at, now, self._size, wait_s)

    def releases(self, asked: RequestOptions) -> bool:
        return False


Preferences: TypeAlias = Homes | LoadedModels


def preferences_of(options: BatchOptions, members: Members[Any]) -> Preferences | None:
    """Returns None if requests prefer no replicas."""
    if options.models is not None:
        return LoadedModels(options.models, options.max_batch_size, members)
    factor = options.sticky_load_factor
    return None if factor is None else Homes(factor, options.max_batch_size, members)
