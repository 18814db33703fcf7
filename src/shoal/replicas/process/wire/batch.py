"""Conversion of `current_batch` to data and back, for code in another process.

The items of the call and of the batch are in the same pickle. An item that is in both, as nearly
all are, is sent once.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from itertools import count
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias

from shoal.core.forming.call_options import NO_CALL_OPTIONS, CallOptions
from shoal.core.request import (
    NEVER,
    Batch,
    DispatchReason,
    Draining,
    Request,
    RequestOptions,
    State,
    request_of_nobody,
)
from shoal.replicas.process.wire.messages import PLAIN, unpickled

Headers: TypeAlias = "list[tuple[bytes, bytes]]"
# Plain values, values that are pickled one by one, the names of values that can't be sent, and the
# headers of an HTTP request. The other process decodes these, which has more time for it.
MetadataParts: TypeAlias = (
    "tuple[dict[str, Any], dict[str, bytes], tuple[str, ...], Headers | None]"
)


# The options of a request that has none.
USUAL: Final = RequestOptions()
# The options that are sent as columns, and their usual values.
_COLUMNS: Final = attrgetter("deadline", "priority", "asked_priority", "cost", "model")
_USUAL_VALUES: Final = _COLUMNS(USUAL)


class SentMetadata(dict[str, Any]):
    """The metadata of a request, in another process; `lost` names values that could not be sent."""

    lost: frozenset[str] = frozenset()

    def with_model(self, model: str) -> SentMetadata:
        copy = SentMetadata(self, model=model)
        copy.lost = self.lost
        return copy

    def __missing__(self, name: str) -> Any:
        if name in self.lost:
            raise KeyError(
                f"{name!r} could not be sent to this process, since it can't be pickled: set it to "
                "a value that can, such as the user's name"
            )
        raise KeyError(name)


class OptionsAsData(NamedTuple):
    # A column is None if all requests have the usual value.
    deadlines: Sequence[float | None] | None  # on the sender's clock
    priorities: Sequence[int] | None
    asked_priorities: Sequence[int | None] | None  # the levels that callers named
    costs: Sequence[float] | None
    models: Sequence[str | None] | None
    metadata: list[MetadataParts]
    places: list[int] | None  # of each request's metadata; None if all have the only one

    def call_options(self, count: int, sent_at: float, levels: int) -> list[CallOptions]:
        """Returns the options of new calls, of a batcher with this number of priority levels."""
        deadlines = self.deadlines or [None] * count
        priorities = self.asked_priorities or [None] * count
        return [
            CallOptions(
                None if deadline is None else deadline - sent_at,
                one,
                None if priority is None else min(priority, levels),
            )
            for deadline, one, priority in zip(
                deadlines, self._metadata(count), priorities, strict=True
            )
        ]

    def received(self, count: int, later_s: float) -> list[RequestOptions]:
        metadata = self._metadata(count)
        if self.models is not None:
            metadata = [
                one if model is None else one.with_model(model)
                for one, model in zip(metadata, self.models, strict=True)
            ]
        deadlines = self.deadlines or [None] * count
        priorities, costs = self.priorities or [1] * count, self.costs or [1] * count
        made = [RequestOptions() for _ in range(count)]
        columns = zip(made, deadlines, metadata, priorities, costs, strict=True)
        for options, deadline, one, priority, cost in columns:
            options.deadline = options.due = None if deadline is None else deadline + later_s
            options.metadata, options.priority, options.cost = one, priority, cost
        return made

    def _metadata(self, count: int) -> list[SentMetadata]:
        known = [received_metadata(*parts) for parts in self.metadata]
        return [known[place] for place in self.places or [0] * count]


class BatchAsData(NamedTuple):
    id: int
    reason: str
    load: float
    items: list[Any]
    sent_at: float  # on the sender's clock, as all times
    arrived_at: list[float]
    options: Sequence[Any] | None  # `OptionsAsData`; None where no request has any
    trace: Mapping[str, str] | None = None

    def as_batch(self, now: float, draining: Draining = NEVER) -> Batch:
        """Rebuilds the batch on this process's clock, with empty contexts of its requests."""
        later_s = now - self.sent_at
        options = received_options(self.options, len(self.items), later_s)
        context = Context()
        requests = [
            received_request(item, arrived_at + later_s, one, context)
            for item, arrived_at, one in zip(self.items, self.arrived_at, options, strict=True)
        ]
        batch = Batch(self.id, DispatchReason(self.reason), requests, self.load, draining)
        batch.trace = self.trace
        return batch

    def call_options(self, levels: int) -> list[CallOptions]:
        count = len(self.items)
        if self.options is None:
            return [NO_CALL_OPTIONS] * count
        return OptionsAsData(*self.options).call_options(count, self.sent_at, levels)


def received_options(
    data: Sequence[Any] | None, count: int, later_s: float
) -> Sequence[RequestOptions | None]:
    return [None] * count if data is None else OptionsAsData(*data).received(count, later_s)


def received_request(
    item: Any, arrived_at: float, options: RequestOptions | None, context: Context
) -> Request:
    # It does not refer to its batch: a cycle would keep shared memory until a collection.
    return request_of_nobody(item, arrived_at, State.RUNNING, options, context)


def batch_as_data(batch: Batch, now: float) -> tuple[Any, ...]:
    # A `BatchAsData` as a plain tuple: pickling a class takes ten times as long.
    requests = batch.members
    return (
        batch.id,
        batch.reason.value,
        batch.load,
        [request.item for request in requests],
        now,
        [request.arrived_at for request in requests],
        options_as_data(requests),
        batch.trace,
    )


def options_as_data(requests: Sequence[Request]) -> tuple[Any, ...] | None:
    # An `OptionsAsData` as a plain tuple; None if no request has options.
    options = [request.options or USUAL for request in requests]
    if options.count(USUAL) == len(options):
        return None
    columns = zip(zip(*map(_COLUMNS, options), strict=True), _USUAL_VALUES, strict=True)
    return (
        *[None if values.count(usual) == len(values) else values for values, usual in columns],
        *metadata_as_data(options),
    )


def metadata_as_data(
    options: Sequence[RequestOptions],
) -> tuple[list[MetadataParts], list[int] | None]:
    """Returns the different metadata, and the place of each request's; None if all have one."""
    given = [one.metadata for one in options]
    # Calls through one handle share their metadata, which is converted once.
    known = {id(one): one for one in given}
    parts = [metadata_parts(one) for one in known.values()]
    if len(known) < 2:
        return parts, None
    places = dict(zip(known, count()))
    return parts, [places[id(one)] for one in given]


def metadata_parts(metadata: Mapping[str, Any]) -> MetadataParts:
    """Splits metadata into plain values, values that are pickled one by one, and lost ones."""
    # The metadata of an HTTP request knows which of its values are plain.
    to_send: Callable[[], tuple[dict[str, Any], Mapping[str, Any], Headers | None]] | None
    to_send = getattr(metadata, "to_send", None)
    plain, others, headers = ({}, metadata, None) if to_send is None else to_send()
    pickled: dict[str, bytes] = {}
    for name, value in others.items():
        if type(value) in PLAIN:
            plain[name] = value
        else:
            # One by one, so that only values that can't be pickled or unpickled are lost.
            data = _pickled(value)
            if data is not None:
                pickled[name] = data
    lost = tuple([name for name in others if name not in plain and name not in pickled])
    return plain, pickled, lost, headers


def _pickled(value: Any) -> bytes | None:
    try:
        if issubclass(type(value), Mapping) and type(value) is not dict:
            # For example a request's headers, whose class may not exist on the other side.
            value = dict(value)
        return pickle.dumps(value, 5)
    except Exception:
        return None


def received_metadata(
    plain: dict[str, Any],
    pickled: dict[str, bytes],
    lost: Sequence[str],
    headers: Headers | None,
) -> SentMetadata:
    metadata = SentMetadata(plain)
    if headers is not None:
        metadata["headers"] = texts = dict[str, str]()
        for key, value in headers:  # of several with one name the first, as by Starlette
            texts.setdefault(key.decode("latin-1"), value.decode("latin-1"))
    all_lost = set(lost)
    for name, data in pickled.items():
        try:
            metadata[name] = unpickled(data)
        except Exception:
            all_lost.add(name)
    metadata.lost = frozenset(all_lost)
    return metadata
