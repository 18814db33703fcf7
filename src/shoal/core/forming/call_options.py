"""The options of a request, from its call's options and the user's functions of one item.

These functions (`batch_size_fn`, `bucket_by`) run when the call is made, so an error in one fails
only that call and never a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, cast

from shoal.core.options.names import refuse_unknown
from shoal.core.options.option import seconds, whole, yes_or_no
from shoal.core.policies.factory import distinguishes_requests
from shoal.core.request import NOTHING, RequestOptions
from shoal.errors import ItemTooLarge, NoSuchModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.core.options.option import Check
    from shoal.core.options.options import BatchOptions
    from shoal.core.request import Request


class CallKeywords(TypedDict, total=False):
    """The keywords of a call's ``options``; None leaves an option unchanged."""

    timeout_s: float | None
    metadata: Mapping[str, Any] | None
    priority: int | None
    queue_timeout_s: float | None
    share: bool | None


class CallOptions(NamedTuple):
    # From the start of the call, in seconds; None for no limit.
    timeout_s: float | None = None
    metadata: Mapping[str, Any] = NOTHING
    priority: int | None = None
    queue_timeout_s: float | None = None
    share: bool = True
    # Whether it waits for a place in a full queue, whatever ``overload`` says. A call with several
    # requests sets this for the remaining ones once it has begun.
    waits_for_room: bool = False

    def with_changes(self, given: Mapping[str, Any]) -> CallOptions:
        """Checks options (`TypeError`, `ValueError`), and applies those that are not None."""
        refuse_unknown("a call", given, _CHECKS)
        return self._replace(
            **{
                name: _CHECKS[name](name, value)
                for name, value in given.items()
                if value is not None
            }
        )


_CHECKS: Final[Mapping[str, Check]] = {
    "timeout_s": seconds,
    "metadata": lambda _, value: value,
    "priority": partial(whole, least=1),
    "queue_timeout_s": seconds,
    "share": yes_or_no,
}
NO_CALL_OPTIONS = CallOptions()
# What a request keeps when its options are computed again.
_KEPT: Final = (
    *("asked_priority", "deadline", "due", "queue_timeout_s", "waits_for_room"),
    *("timer", "queue_timer", "delayed_at", "delays"),
)


class RequestOptionsFactory:
    def __init__(self, name: str, options: BatchOptions) -> None:
        self.name = name
        self.options = options
        self._cost_of = options.batch_size_fn
        self.has_costs = self._cost_of is not None
        self._bucket_by = options.bucket_by
        self._models = options.models
        names = None if options.models is None else options.models.names
        self._model_names = None if names is None else frozenset(names)
        self._priority = options.usual_priority
        # An item that is split may be larger; its parts may not.
        self.limit_cost = options.batch_limit.cost
        self._most_cost = math.inf if options.split is not None else self.limit_cost
        limit_s = options.request_timeout_s
        self.limit_s = math.inf if limit_s is None else limit_s
        # Whether each request needs its own record, whatever its call options are. Without it, all
        # have the usual priority, and there are no functions of an item.
        self.of_each = distinguishes_requests(options)

    def of(self, item: Any, call_options: CallOptions, now: float) -> RequestOptions:
        """Raises `ItemTooLarge`, `NoSuchModel`, and what the user's functions of an item raise."""
        timeout_s, metadata, priority, queue_timeout_s, _, waits_for_room = call_options
        limit_s = self.limit_s
        if timeout_s is not None and timeout_s < limit_s:
            limit_s = timeout_s
        asked = RequestOptions()
        asked.options_factory = self
        asked.metadata = metadata
        if limit_s < math.inf:
            asked.deadline = asked.due = now + limit_s
        if priority is not None:
            asked.asked_priority = priority
            asked.priority = self.options.checked_priority("priority", priority)
        if queue_timeout_s is not None:
            asked.queue_timeout_s = queue_timeout_s
        if waits_for_room:
            asked.waits_for_room = True
        if self.of_each:
            if priority is None:
                asked.priority = self._priority
            if self._cost_of is not None:
                asked.cost = self._cost(self._cost_of, item)
            if self._bucket_by is not None:
                asked.key = key = self._bucket_by(item)
                try:
                    hash(key)
                except TypeError:
                    raise self._not_a_key(key) from None
            if self._models is not None:
                asked.model = self._model(item, metadata)
        return asked

    def _cost(self, cost_of: Callable[[Any], float], item: Any) -> float:
        try:
            cost = cost_of(item)
        except (TypeError, AttributeError) as error:  # as of a list's items, of one item
            self._check_is_of_one(item, error)
            raise
        if type(cost) is not int or cost < 0:
            cost = self._checked_cost(cost)
        if cost > self._most_cost:
            raise self.refusal(cost)
        return cost

    def refusal(self, cost: float) -> ItemTooLarge:
        most = self.limit_cost
        name = "max_batch_size" if self.options.max_batch_cost is None else "max_batch_cost"
        error = ItemTooLarge(
            f"an item for {self.name} costs {cost!s:.20}, which is more than a batch may: "
            f"{name}={most}"
        )
        error.limit_exceeded = f"It costs {cost!s:.20}, and a batch may cost {most}."
        return error

    def renew(self, request: Request) -> None:
        """Replaces the record of a waiting request; raises why it can't be served, like `of`."""
        before = request.options
        if before is None and not self.of_each:
            return
        metadata = NOTHING if before is None else before.metadata
        asked = self.of(request.item, CallOptions(metadata=metadata), request.arrived_at)
        asked.deadline = asked.due = None
        if before is not None:
            for name in _KEPT:
                setattr(asked, name, getattr(before, name))
            if before.asked_priority is not None:
                asked.priority = min(before.asked_priority, self.options.priority_levels)
        request.options = asked
        if asked.cost > self.limit_cost:
            raise self.refusal(asked.cost)

    def _model(self, item: Any, metadata: Mapping[str, Any]) -> str | None:
        assert self._models is not None
        model: Any = metadata.get("model")
        name = self._models.field
        if model is None and name is not None:
            if isinstance(item, Mapping):
                by_name: Mapping[Any, Any] = cast("Any", item)
                model = by_name.get(name)
            else:
                model = getattr(item, name, None)
        if model is not None and not isinstance(model, str):
            raise TypeError(f"the model for {self.name} must be text, not {model!r:.80}")
        known = self._model_names
        if known is not None and model is not None and model not in known:
            raise NoSuchModel(f"{self.name} has no model {model!r:.80}")
        return model

    def _check_is_of_one(self, item: Any, error: Exception) -> None:
        """Raises a `TypeError` if the ``batch_size_fn`` that raised takes a list, like Ray's."""
        assert self._cost_of is not None
        try:
            self._checked_cost(self._cost_of([item]))
        except Exception:
            return
        raise TypeError(
            f"batch_size_fn of {self.name} raised {type(error).__name__} for one item, and takes "
            "a list of items; write batch_size_fn=shoal.of_list(function)"
        ) from error

    def _checked_cost(self, given: Any) -> float:
        # Other number types are accepted, such as those of numpy.
        if not hasattr(given, "__float__"):
            raise TypeError(f"batch_size_fn of {self.name} must return a number, not {given!r}")
        cost: float = given if isinstance(given, int) else float(given)
        if not 0 <= cost < math.inf:
            raise ValueError(
                f"batch_size_fn of {self.name} must return a number that is at least 0 and "
                f"finite, not {given!r}"
            )
        return cost

    def _not_a_key(self, key: object) -> TypeError:
        return TypeError(
            f"bucket_by of {self.name} must return a hashable key, such as a tuple, not {key!r}"
        )
