"""A batcher's options, checked together with its handler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shoal.batching.options.list_cost import adapted, adapted_to_items
from shoal.core.extras import need
from shoal.core.options.mixes import refused_fill
from shoal.core.options.options import BatchOptions
from shoal.core.policies.factory import users_own

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.batching.handlers.handler import Handler


def checked_options(
    given: Mapping[str, Any], handler: Handler, before: BatchOptions | None = None
) -> BatchOptions:
    """Checks options against each other and the handler, and applies them to `before`."""
    if callable(given.get("batch_size_fn")):
        cost_of: Any = given["batch_size_fn"]
        if handler.binding.gives != "lists":
            cost_of = adapted_to_items(cost_of, handler.binding.signature)
        else:
            cost_of = adapted(cost_of, handler.function)
        given = {**given, "batch_size_fn": cost_of}
    options = BatchOptions.of(given) if before is None else before.changed(given)
    if options.cache is not None:
        need("cache=", "cachetools", "cache")
    refusal = refused_fill(handler.fill, options)
    if refusal is None and handler.streams and options.split is not None:
        refusal = (
            "split is for calls with one result: the parts of an item have no order in a stream"
        )
    if refusal is not None:
        raise ValueError(refusal)
    if options.policy is not None:
        users_own(options.policy, options)  # refuses an invalid policy here, not when it opens
    return options
