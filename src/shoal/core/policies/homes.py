"""Which replica a due batch prefers, and whether it waits for that one while another has room.

Requests prefer a replica by their shard keys (`Homes`), or the replicas that have their model
loaded (`LoadedModels`). `Buckets` has a bucket for each home or model. A request without a shard
key, or without a model, takes any replica.

A request waits for its home only while the replicas stay balanced ("consistent hashing with bounded
loads"): if the home has more requests, running and waiting, than ``sticky_load_factor`` times the
average, its requests go to the next replica with room.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from typing import TYPE_CHECKING, Any

from shoal.core.replicas.members import ALL_IN_USE, LOADED, UNLOADS_WANTED

if TYPE_CHECKING:
    from shoal.core.options.options import BatchOptions
    from shoal.core.options.records import Models
    from shoal.core.replicas.members import Members
    from shoal.core.request import Request, RequestOptions


class Preferences(ABC):
    def __init__(self, size: int, members: Members[Any]) -> None:
        self._size = size
        self._members = members
        self._waiting: Counter[Any] = Counter()  # the number of requests by what they prefer
        # Whether the last decision has held back a batch that was due.
        self.is_holding = False

    @abstractmethod
    def preferred(self, asked: RequestOptions) -> Any:
        """Returns the replica or the model that a request prefers; None for any."""

    def find(self, asked: RequestOptions) -> None:  # noqa: B027 - optional for subclasses
        """Looks up what a request prefers, where its call does not say it."""

    def add(self, asked: RequestOptions) -> None:
        self._waiting[self.preferred(asked)] += 1

    def count(self, request: Request, change: int) -> None:
        assert request.options is not None
        preferred = self.preferred(request.options)
        self._waiting[preferred] += change
        if not self._waiting[preferred]:
            del self._waiting[preferred]

    def forget_counts(self) -> None:
        self._waiting.clear()

    @abstractmethod
    def have_changed(self) -> bool:
        """Returns whether requests may have other homes since the last call."""

    def held_until(self, first: Request, now: float) -> float:
        """Returns until when a batch waits, though a replica has room."""
        assert first.options is not None
        preferred = self.preferred(first.options)
        return now if preferred is None else self._held_until(preferred, first.arrived_at, now)

    @abstractmethod
    def _held_until(self, preferred: Any, arrived_at: float, now: float) -> float: ...

    def releases(self, asked: RequestOptions) -> bool:
        """Returns whether a batch that was held back need not wait, with one request more."""
        return False


class Homes(Preferences):
    def __init__(self, load_factor: float, size: int, members: Members[Any]) -> None:
        super().__init__(size, members)
        self._load_factor = load_factor
        self._version = members.version

    def preferred(self, asked: RequestOptions) -> Any:
        return asked.home

    def find(self, asked: RequestOptions) -> None:
        key = asked.metadata.get("shard_key")
        asked.home = None if key is None else self._members.home(key)

    def have_changed(self) -> bool:
        before, self._version = self._version, self._members.version
        self.is_holding = False
        return before != self._version

    def _held_until(self, preferred: Any, arrived_at: float, now: float) -> float:
        # Infinity: until the counts change.
        return math.inf if self._holds(preferred) else now

    def releases(self, asked: RequestOptions) -> bool:
        return self.is_holding and (asked.home is None or not self._holds(asked.home))

    def _holds(self, home: Any) -> bool:
        members, size = self._members, self._size
        if home not in members or home.room(size):
            return False
        total = sum([member.reserved for member in members]) + self._waiting.total()
        most = self._load_factor * total / len(members)
        if home.reserved + self._waiting[home] - 1 >= most:  # it is above the bound, rounded up
            return False
        return any(member.room(size) for member in members)


class LoadedModels(Preferences):
    def __init__(self, models: Models, size: int, members: Members[Any]) -> None:
        super().__init__(size, members)
        self._max_wait_s = models.max_switch_wait_s
        members.max_models = models.most

    def preferred(self, asked: RequestOptions) -> Any:
        return asked.model

    def have_changed(self) -> bool:
        self._members.waiting = self._waiting
        return False

    def _held_until(self, preferred: Any, arrived_at: float, now: float) -> float:
        members = self._members
        with_room = [member for member in members if member.room(self._size)]
        best = min([members.model_rank(one, preferred) for one in with_room], default=LOADED)
        if best == ALL_IN_USE:
            return math.inf  # until a batch has ended
        is_loaded = any(preferred in member.models for member in members)
        if best == UNLOADS_WANTED or (best != LOADED and is_loaded):
            return max(now, arrived_at + self._max_wait_s)
        return now


def preferences_of(options: BatchOptions, members: Members[Any]) -> Preferences | None:
    """Returns None if requests prefer no replicas."""
    if options.models is not None:
        return LoadedModels(options.models, options.max_batch_size, members)
    factor = options.sticky_load_factor
    return None if factor is None else Homes(factor, options.max_batch_size, members)
