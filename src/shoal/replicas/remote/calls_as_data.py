"""The calls in a message to a model server: their items, and the options of each.

A model server makes requests of its own, so it needs less than a worker process does: no ids, ages
or dispatch reasons. What all calls share is sent once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from shoal.batching.current import running_batch
from shoal.core.forming.call_options import CallOptions
from shoal.replicas.process.wire.batch import (
    USUAL,
    column,
    metadata_as_data,
    options_of,
    received_metadata,
)
from shoal.replicas.process.wire.messages import Message, packed
from shoal.replicas.process.wire.start import why_unsendable
from shoal.replicas.remote.keep_alive import check_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.replicas.process.wire.batch import MetadataParts


class CallsAsData(NamedTuple):
    method: str
    items: list[Any]
    trace: Mapping[str, str] | None
    # Columns as in `OptionsAsData`: the times until the deadlines; the levels that callers named.
    left_s: list[float | None] | None
    priorities: list[int | None] | None
    metadata: list[MetadataParts]
    places: list[int] | None

    def call_options(self, levels: int) -> list[CallOptions | None]:
        """Returns the options of each call, for a server with that many priority levels."""
        count = len(self.items)
        metadata = [received_metadata(*one) for one in self.metadata]
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
    options = [USUAL] if batch is None else options_of(batch.members)
    left_s = column([one.deadline for one in options], None)
    if left_s is not None:
        now = anyio.current_time()
        left_s = [None if deadline is None else deadline - now for deadline in left_s]
    calls = (  # a `CallsAsData`
        method,
        items,
        None if batch is None else batch.trace,
        left_s,
        column([one.asked_priority for one in options], None),
        *metadata_as_data(options),
    )
    try:
        message = packed(calls)
    except Exception as error:
        raise why_unsendable("item {nth} of the batch", items, error) from error
    check_size(message, "the items of a batch")
    return message
