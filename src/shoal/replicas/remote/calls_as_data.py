"""The calls in a message to a model server: their items, and the options of each.

A model server makes requests of its own, so it needs less than a worker process does: no ids, ages
or dispatch reasons. What all calls share is sent once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from shoal.batching.current import running_batch
from shoal.core.forming.call_options import CallOptions
from shoal.core.request import NOTHING
from shoal.replicas.process.wire.batch import metadata_parts, received_metadata
from shoal.replicas.process.wire.messages import Message, packed
from shoal.replicas.process.wire.start import why_unsendable
from shoal.replicas.remote.keep_alive import check_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_Metadata = tuple[dict[str, Any], dict[str, bytes], tuple[str, ...]]


_NO_METADATA: _Metadata = ({}, {}, ())


class CallsAsData(NamedTuple):
    method: str
    items: list[Any]
    trace: Mapping[str, str] | None
    left_s: list[float | None] | None  # until each deadline; None if no call has one
    priorities: list[int | None] | None  # the levels that callers named; None if none did
    metadata: list[_Metadata]
    places: list[int] | None  # the metadata of each call; None if all have the first, or have none

    def call_options(self, levels: int) -> list[CallOptions | None]:
        """Returns the options of each call, for a server with that many priority levels."""
        count = len(self.items)
        if self.left_s is None and self.priorities is None and not self.metadata:
            return [None] * count
        metadata = [received_metadata(*one) for one in self.metadata or [_NO_METADATA]]
        left_s = self.left_s or [None] * count
        priorities = self.priorities or [None] * count
        places = self.places or [0] * count
        return [
            CallOptions(limit_s, metadata[place], priority and min(priority, levels))
            for limit_s, place, priority in zip(left_s, places, priorities, strict=True)
        ]


def packed_calls(method: str, items: list[Any]) -> Message:
    """Packs the calls of the running batch; raises a `TypeError` that names a wrong item."""
    batch = running_batch.get(None)
    requests = () if batch is None else batch.members
    options = [request.options for request in requests]
    deadlines = [None if one is None else one.deadline for one in options]
    priorities = [None if one is None else one.asked_priority for one in options]
    given = [NOTHING if one is None else one.metadata for one in options]
    # Calls through one handle share their metadata.
    known = {id(one): one for one in given}
    places = {one: place for place, one in enumerate(known)}
    calls = CallsAsData(
        method,
        items,
        None if batch is None else batch.trace,
        None if deadlines.count(None) == len(deadlines) else _left(deadlines),
        priorities if any(priorities) else None,
        [metadata_parts(one) for one in known.values()],
        [places[id(one)] for one in given] if len(known) > 1 else None,
    )
    try:
        message = packed(tuple(calls))
    except Exception as error:
        raise why_unsendable("item {nth} of the batch", items, error) from error
    check_size(message, "the items of a batch")
    return message


def _left(deadlines: Sequence[float | None]) -> list[float | None]:
    now = anyio.current_time()
    return [None if one is None else one - now for one in deadlines]
