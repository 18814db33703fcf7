"""Conversion of `current_batch` to data and back, for code in another process.

The items of the call and of the batch are in the same pickle. An item that is in both, as nearly
all are, is sent once.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from typing import Any, NamedTuple, TypeAlias

from shoal.core.request import (
    NEVER,
    NOTHING,
    Batch,
    DispatchReason,
    Draining,
    Request,
    RequestOptions,
    State,
    request_of_nobody,
)
from shoal.replicas.process.wire.messages import PLAIN, unpickled

# The time until its deadline, since the two processes' clocks differ; its priority, cost and
# metadata. A plain tuple: pickling a class for each request takes ten times as long.
Extras: TypeAlias = (
    "tuple[float | None, int, float, dict[str, Any], dict[str, bytes], tuple[str, ...]]"
)


class SentMetadata(dict[str, Any]):
    """The metadata of a request, in another process; `lost` names values that could not be sent."""

    lost: frozenset[str] = frozenset()

    def __missing__(self, name: str) -> Any:
        if name in self.lost:
            raise KeyError(
                f"{name!r} could not be sent to this process, since it can't be pickled: set it to "
                "a value that can, such as the user's name"
            )
        raise KeyError(name)


class BatchAsData(NamedTuple):
    id: int
    reason: str
    load: float
    items: list[Any]
    ages_s: list[float]
    extras: Sequence[Extras | None] | None  # None where no request has any
    trace: Mapping[str, str] | None = None

    def as_batch(self, now: float, draining: Draining = NEVER) -> Batch:
        """Rebuilds the batch on this process's clock, with empty contexts of its requests."""
        extras = self.extras or [None] * len(self.items)
        context = Context()
        requests = [
            received_request(item, now - age_s, extra, context, now)
            for item, age_s, extra in zip(self.items, self.ages_s, extras, strict=True)
        ]
        batch = Batch(self.id, DispatchReason(self.reason), requests, self.load, draining)
        batch.trace = self.trace
        return batch


def received_request(
    item: Any, arrived_at: float, extra: Extras | None, context: Context, now: float
) -> Request:
    options = None if extra is None else _options(extra, now)
    # It does not refer to its batch: a cycle would keep shared memory until a collection.
    return request_of_nobody(item, arrived_at, State.RUNNING, options, context)


def batch_as_data(batch: Batch, now: float) -> BatchAsData:
    requests = batch.members
    return BatchAsData(
        batch.id,
        batch.reason.value,
        batch.load,
        [request.item for request in requests],
        [now - request.arrived_at for request in requests],
        all_extras(requests, now),
        batch.trace,
    )


def all_extras(requests: Sequence[Request], now: float) -> list[Extras | None] | None:
    """Converts the options of the requests to data; None if no request has any."""
    extras: list[Extras | None] = []
    shared: Mapping[str, Any] = NOTHING
    parts = metadata_parts(NOTHING)
    for request in requests:
        options = request.options
        if options is None:
            extras.append(None)
            continue
        # Calls through one handle share their metadata, which is converted once.
        if options.metadata is not shared:
            shared, parts = options.metadata, metadata_parts(options.metadata)
        plain, pickled, lost = parts
        if (model := getattr(options, "model", None)) is not None:
            plain = {**plain, "model": model}
        left_s = None if options.deadline is None else options.deadline - now
        extras.append((left_s, options.priority, options.cost, plain, pickled, lost))
    return extras if any(extras) else None


def metadata_parts(
    metadata: Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, bytes], tuple[str, ...]]:
    """Splits metadata into plain values, values that are pickled one by one, and lost ones."""
    # The metadata of an HTTP request knows which of its values are plain.
    to_send: Callable[[], tuple[dict[str, Any], Mapping[str, Any]]] | None
    to_send = getattr(metadata, "to_send", None)
    plain, others = ({}, metadata) if to_send is None else to_send()
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
    return plain, pickled, lost


def _pickled(value: Any) -> bytes | None:
    try:
        if issubclass(type(value), Mapping) and type(value) is not dict:
            # For example a request's headers, whose class may not exist on the other side.
            value = dict(value)
        return pickle.dumps(value, 5)
    except Exception:
        return None


def _options(extra: Extras, now: float) -> RequestOptions:
    left_s, priority, cost, plain, pickled, lost = extra
    deadline = None if left_s is None else now + left_s
    return RequestOptions(deadline, received_metadata(plain, pickled, lost), priority, cost)


def received_metadata(
    plain: dict[str, Any], pickled: dict[str, bytes], lost: Sequence[str]
) -> SentMetadata:
    metadata = SentMetadata(plain)
    all_lost = set(lost)
    for name, data in pickled.items():
        try:
            metadata[name] = unpickled(data)
        except Exception:
            all_lost.add(name)
    metadata.lost = frozenset(all_lost)
    return metadata
