"""Ray Serve's ``batch_size_fn``, a function of the list of items, as ours, a function of one item.

Ray calls the function on the growing list, again for each item that comes, and looks at what it
says of the whole. Ours is called once a request, when the call is made, and a batch costs the sum.
The two agree where the function adds up, which is what counts of tokens, nodes or pixels do. They
differ where it does not: for ``max(map(len, items)) * len(items)``, the size of a padded batch, the
sum of the items' own sizes is lower. Such a cost goes with ``bucket_by`` the padded length.
"""

from __future__ import annotations

from dataclasses import dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Any, get_args, get_origin

from shoal.batching.handlers.binding import annotations_of, element_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from inspect import Signature


@dataclass(frozen=True, slots=True)
class CostOfOne:
    """The cost of one item by a function of a list; equal to another of the same function."""

    of_list: Callable[[list[Any]], float]

    def __call__(self, item: Any) -> float:
        """Returns the cost of one item."""
        return self.of_list([item])


@dataclass(frozen=True, slots=True)
class CostOfFirst:
    """The same where a call has several arguments, of which Ray's function sees the first."""

    of_list: Callable[[list[Any]], float]

    def __call__(self, item: tuple[Any, ...]) -> float:
        """Returns the cost of one item."""
        return self.of_list([item[0]])


def of_list(fn: Callable[[list[Any]], float], /) -> Callable[[Any], float]:
    """Makes a ``batch_size_fn`` from Ray Serve's form of it: ``batch_size_fn=shoal.of_list(fn)``.

    Where the annotation of the function's parameter is that of the handler's, ``list[T]``, this is
    done without being asked. Ray's function sees the whole list, so it may count what does not add
    up, such as the size of a padded batch; here a batch costs the sum of its items' costs.

    Args:
        fn: What a list of items costs. It is called with each item alone in a list; where the
            handler has several parameters, an item is the tuple of a call's arguments.

    Returns:
        What one item costs.

    Raises:
        TypeError: `fn` is no function.
    """
    if not callable(fn):
        raise TypeError(f"of_list() takes a function of a list of items, not {fn!r}")
    return CostOfOne(fn)


def adapted(fn: Callable[[Any], float], handler: Callable[..., Any]) -> Callable[[Any], float]:
    """Returns a user's ``batch_size_fn`` as a function of one item, whichever form it has.

    It is Ray Serve's form if its first parameter has the annotation of the handler's first, both
    ``list[T]``. Everything else is taken for a function of one item: also a bare ``list``, which
    may as well be one item, and no annotation at all.
    """
    given, wanted = annotations_of(fn), annotations_of(handler)
    if not given or not wanted or not _is_lists_of_same(given[0], wanted[0]):
        return fn
    return CostOfOne(fn) if len(wanted) == 1 else CostOfFirst(fn)


def adapted_to_items(fn: Callable[[Any], float], signature: Signature) -> Callable[[Any], float]:
    """Does the same where only the signature of a call of one item is known."""
    given, parameters = annotations_of(fn), list(signature.parameters.values())
    if not given or not parameters or element_of(given[0]) is Parameter.empty:
        return fn
    if element_of(given[0]) != parameters[0].annotation:
        return fn
    return CostOfOne(fn) if len(parameters) == 1 else CostOfFirst(fn)


def _is_lists_of_same(given: Any, wanted: Any) -> bool:
    if isinstance(given, str):  # it can't be read, because it names what only type checkers see
        return isinstance(wanted, str) and given == wanted
    if element_of(wanted) is Parameter.empty:
        return False
    return get_origin(given) is get_origin(wanted) and get_args(given) == get_args(wanted)
