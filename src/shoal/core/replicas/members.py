"""The replicas that take batches: how many fit on each, and which one a shard key prefers.

The pool of a backend and the simulation use the same `Members`, so they choose the same replicas.

The preferred replica of a key, its *home*, is found by rendezvous hashing: of all replicas, it is
the one with the highest number drawn from its name and the key. A new replica takes its share of
the keys from each of the others, and the keys of one that has ended spread over the rest. All other
keys keep their homes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from shoal.core.traffic import drawn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shoal.core.request import Batch, RequestBatch


ReplicaT = TypeVar("ReplicaT")

_NONE_WAIT: Final[Mapping[str, int]] = {}


class LoadedModel:
    __slots__ = ("batches", "flight", "ready_at")

    def __init__(self) -> None:
        self.batches = 0  # that run with it or wait for it
        # What loads it; None when that is done. Its batches wait for it.
        self.flight: Any = None
        self.ready_at = 0.0  # for simulations

    @property
    def is_idle(self) -> bool:
        return not self.batches and self.flight is None


@dataclass(eq=False)
class Member(Generic[ReplicaT]):
    name: str
    replica: ReplicaT
    max_batches: float  # at once; infinity for no limit
    max_requests: int | None = None  # at once
    batches: int = 0
    # The requests that its batches began with: what they take of `max_requests`.
    reserved: int = 0
    total: int = 0
    open: list[RequestBatch] = field(default_factory=list["RequestBatch"])
    # called when it gets no more work
    on_withdrawn: list[Callable[[], None]] = field(default_factory=list["Callable[[], None]"])
    # The least recently used one comes first.
    models: dict[str, LoadedModel] = field(default_factory=dict[str, LoadedModel])

    @property
    def requests(self) -> int:
        return self.reserved - len(self.open) + sum([batch.active for batch in self.open])

    def room(self, size: int) -> float:
        """Returns how many more batches of a size fit; at least 1 if it is idle."""
        room = self.max_batches - self.batches
        if self.max_requests is not None:
            room = min(room, (self.max_requests - self.reserved) // size)
        return max(0 if self.batches else 1, room)

    def victim(self, waiting: Mapping[str, int] = _NONE_WAIT) -> str | None:
        """Returns the least recently used model that no batch uses, and no request waits for."""
        models = self.models.items()
        return next((name for name, one in models if one.is_idle and not waiting.get(name)), None)


# How well a replica suits a model's batch; the lowest is the best.
LOADED, HAS_PLACE, UNLOADS_UNWANTED, UNLOADS_WANTED, ALL_IN_USE = range(5)


class Members(Generic[ReplicaT]):
    def __init__(self) -> None:
        # The least recently used one comes first.
        self._all: dict[Member[ReplicaT], None] = {}
        self.version = 0  # changes whenever keys may have other homes
        # Set by the policy: how many models a replica may have loaded, and the number of waiting
        # requests by their model.
        self.max_models = 1
        self.waiting: Mapping[str, int] = _NONE_WAIT

    def __iter__(self) -> Iterator[Member[ReplicaT]]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def add(self, member: Member[ReplicaT]) -> None:
        self._all[member] = None
        self.version += 1

    def discard(self, member: Member[ReplicaT]) -> bool:
        if member not in self._all:
            return False
        del self._all[member]
        self.version += 1
        return True

    def begin(self, member: Member[ReplicaT], requests: int) -> None:
        member.batches += 1
        member.reserved += requests
        member.total += 1
        if len(self._all) > 1 and member in self._all:
            del self._all[member]
            self._all[member] = None  # most recently used: last

    def end(self, member: Member[ReplicaT], requests: int, used: LoadedModel | None = None) -> None:
        member.batches -= 1
        member.reserved -= requests
        if used is not None:
            used.batches -= 1

    def use_model(self, member: Member[ReplicaT], model: str) -> list[str] | None:
        """Counts a batch of a model; returns the models to unload for it, None if it is loaded."""
        known = member.models.pop(model, None)
        unloaded: list[str] = []
        while known is None and len(member.models) >= self.max_models:
            victim = member.victim(self.waiting) or member.victim()
            if victim is None:  # a batch that waited for a replica may find all in use
                break
            unloaded.append(victim)
            del member.models[victim]
        used = member.models[model] = known or LoadedModel()  # most recently used: last
        used.batches += 1
        return unloaded if known is None else None

    def room(self, size: int) -> float:
        room: float = 0
        for member in self._all:
            room += member.room(size)
        return room

    def choose(
        self, size: int, home: Member[ReplicaT] | None = None, model: str | None = None
    ) -> Member[ReplicaT] | None:
        """Chooses the best replica for a batch: by its model, its home, or the fewest batches."""
        # With a home: that replica, or the next in its order. Else the one with the fewest batches;
        # among equals, the least recently used one.
        if model is not None:
            with_room = [member for member in self._all if member.room(size)]
            return min(
                with_room, key=lambda one: (self.model_rank(one, model), one.batches), default=None
            )
        if home is not None:
            in_order = sorted(self._all, key=lambda one: self._rank(one, home), reverse=True)
            return next((member for member in in_order if member.room(size)), None)
        best: Member[ReplicaT] | None = None
        for member in self._all:
            if member.room(size) and (best is None or member.batches < best.batches):
                best = member
                if not best.batches:
                    break
        return best

    def model_rank(self, member: Member[ReplicaT], model: str) -> int:
        if model in member.models:
            return LOADED
        if len(member.models) < self.max_models:
            return HAS_PLACE
        if member.victim(self.waiting) is not None:
            return UNLOADS_UNWANTED
        return UNLOADS_WANTED if member.victim() is not None else ALL_IN_USE

    def home(self, key: str) -> Member[ReplicaT] | None:
        """Returns the replica that a shard key prefers; None if there is no replica."""
        encoded = key.encode("utf-8", "surrogatepass")
        return max(self._all, key=lambda one: drawn(one.name, encoded), default=None)

    def _rank(self, member: Member[ReplicaT], home: Member[ReplicaT]) -> tuple[bool, float]:
        return member is home, drawn(member.name, home.name.encode())


NO_MEMBERS: Final[Members[Any]] = Members()
"""The replicas of a batcher that runs its handler itself."""


def home_and_model_of(batch: Batch) -> tuple[Member[Any] | None, str | None]:
    asked = batch.members[0].options
    return (None, None) if asked is None else (asked.home, asked.model)
