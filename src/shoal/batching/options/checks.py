"""A batcher's options, checked together with its handler.

`of_list` adapts Ray Serve's ``batch_size_fn``, a function of the list of items, to a single item.
Ray calls the function on the growing list, again for each arriving item, and uses the result for
the whole list. Shoal calls it once per request, when the call is made, and the cost of a batch is
the sum. The two agree if the function is additive, like counts of tokens, nodes or pixels. They
differ for others: for ``max(map(len, items)) * len(items)``, the size of a padded batch, the sum of
the items' own sizes is lower. Such a cost needs ``bucket_by`` with the padded length.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Any, get_args, get_origin

from shoal.batching.handlers.binding import annotations_of, element_of
from shoal.core.extras import need
from shoal.core.options.mixes import refused_fill
from shoal.core.options.options import BatchOptions
from shoal.core.policies.factory import custom_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from inspect import Signature

    from shoal.batching.handlers.handler import Handler


@dataclass(frozen=True, slots=True)
class CostOfOne:
    """The cost of one item, by a function of a list; equal to another with the same function."""

    of_list: Callable[[list[Any]], float]

    def __call__(self, item: Any) -> float:
        return self.of_list([item])


@dataclass(frozen=True, slots=True)
class CostOfFirst:
    """Like `CostOfOne`, for calls with several arguments: Ray's function gets the first."""

    of_list: Callable[[list[Any]], float]

    def __call__(self, item: tuple[Any, ...]) -> float:
        return self.of_list([item[0]])


def of_list(fn: Callable[[list[Any]], float], /) -> Callable[[Any], float]:
    """Adapts a function written for Ray Serve: ``batch_size_fn=shoal.of_list(fn)``.

    If the function's parameter has the same annotation ``list[T]`` as the handler's, this is done
    automatically. Ray's function gets the whole list, so its cost need not be additive, such as the
    size of a padded batch; here the cost of a batch is the sum of its items' costs.

    Args:
        fn: Returns the cost of a list of items. It is called with a list of one item; if the
            handler has several parameters, an item is the tuple of a call's arguments.

    Returns:
        A function that returns the cost of one item.

    Raises:
        TypeError: `fn` is no function.
    """
    if not callable(fn):
        raise TypeError(f"of_list() takes a function of a list of items, not {fn!r}")
    return CostOfOne(fn)


def adapted(fn: Callable[[Any], float], handler: Callable[..., Any]) -> Callable[[Any], float]:
    """Returns a user's ``batch_size_fn`` as a function of one item, whichever form it has."""
    # It has Ray Serve's form if its first parameter has the same annotation `list[T]` as the
    # handler's first. All others are treated as functions of one item, also with a bare `list`,
    # which may be the type of one item, and without annotations.
    given, wanted = annotations_of(fn), annotations_of(handler)
    if not given or not wanted or not _is_lists_of_same(given[0], wanted[0]):
        return fn
    return CostOfOne(fn) if len(wanted) == 1 else CostOfFirst(fn)


def adapted_to_items(fn: Callable[[Any], float], signature: Signature) -> Callable[[Any], float]:
    """Like `adapted`, if only the signature of a call with one item is known."""
    given, parameters = annotations_of(fn), list(signature.parameters.values())
    if not given or not parameters or element_of(given[0]) is Parameter.empty:
        return fn
    if element_of(given[0]) != parameters[0].annotation:
        return fn
    return CostOfOne(fn) if len(parameters) == 1 else CostOfFirst(fn)


def _is_lists_of_same(given: Any, wanted: Any) -> bool:
    if isinstance(given, str):  # unresolvable: it names something imported for type checkers only
        return isinstance(wanted, str) and given == wanted
    if element_of(wanted) is Parameter.empty:
        return False
    return get_origin(given) is get_origin(wanted) and get_args(given) == get_args(wanted)


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
        custom_policy(options.policy, options)  # refuses an invalid policy here, not when it opens
    return options
