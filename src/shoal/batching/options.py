"""A batcher's options: checked together with its handler, adapted to it, and limited in errors.

`of_list` adapts Ray Serve's ``batch_size_fn``, a function of the list of items, to a single item.
Ray calls the function on the growing list, again for each arriving item, and uses the result for
the whole list. Shoal calls it once per request, when the call is made, and the cost of a batch is
the sum. The two agree if the function is additive, like counts of tokens, nodes or pixels. They
differ for others: for ``max(map(len, items)) * len(items)``, the size of a padded batch, the sum of
the items' own sizes is lower. Such a cost needs ``bucket_by`` with the padded length.

For servers, what a user's function raises fails only the call, the batch or the change that called
it (`with_held_functions`), even an error that would end a program.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Final, cast, get_args, get_origin

from shoal.batching.handlers.binding import annotations_of, element_of
from shoal.core.extras import need
from shoal.core.options.mixes import refused_fill
from shoal.core.options.options import BatchOptions
from shoal.core.policies.factory import custom_policy
from shoal.core.policy import BatchPolicy
from shoal.failures.exceptions import own_copy
from shoal.failures.held import held, holding
from shoal.loops.event_loop import holds_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from types import TracebackType

    from shoal.batching.handlers.handler import Handler
    from shoal.core.options.options import Opens


@dataclass(frozen=True, slots=True)
class CostByList:
    """The cost of one item, by a function of a list; equal to another with the same function."""

    of_list: Callable[[list[Any]], float]
    # Whether items are tuples of arguments, of which Ray's function gets the first.
    is_of_first: bool = False

    def __call__(self, item: Any) -> float:
        return self.of_list([item[0] if self.is_of_first else item])


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
        TypeError: `fn` is not a function.
    """
    if not callable(fn):
        raise TypeError(f"of_list() takes a function of a list of items, not {fn!r}")
    return CostByList(fn)


def adapted(fn: Callable[[Any], float], wanted: list[Any]) -> Callable[[Any], float]:
    """Returns a user's ``batch_size_fn`` as a function of one item, whichever form it has."""
    # It has Ray Serve's form if its first parameter has the same annotation `list[T]` as the
    # handler's first, of those that are `wanted`. All others are treated as functions of one item,
    # also with a bare `list`, which may be the type of one item, and without annotations.
    given = annotations_of(fn)
    if not given or not wanted or not _is_lists_of_same(given[0], wanted[0]):
        return fn
    return CostByList(fn, len(wanted) > 1)


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
        wanted = annotations_of(handler.function)
        if handler.binding.gives != "lists":
            parameters = handler.binding.signature.parameters.values()
            wanted = [GenericAlias(list, (parameter.annotation,)) for parameter in parameters]
        given = {**given, "batch_size_fn": adapted(given["batch_size_fn"], wanted)}
    options = BatchOptions.of(given) if before is None else before.changed(given)
    if options.cache is not None:
        need("cache=", "cachetools", "cache")
    refusal = refused_fill(handler.fill, options)
    if refusal is None and handler.streams and options.split is not None:
        refusal = (
            "split is for calls with one result: the parts of an item have no order in a stream"
        )
    for name in ("sticky_load_factor", "models"):
        if (value := getattr(options, name)) is not None and not handler.has_replicas:
            refusal = (
                f"{name}={value!r} is for backends, whose batches go to one of their replicas; "
                "a batcher by itself has only its handler"
            )
    if refusal is not None:
        raise ValueError(refusal)
    if options.policy is not None:
        custom_policy(options.policy, options)  # refuses an invalid policy here, not when it opens
    return options


def manager_of(opens: Opens) -> AbstractAsyncContextManager[Any]:
    """Raises a `TypeError` if ``open`` returned no context manager."""
    made = opens()
    if not isinstance(cast("object", made), AbstractAsyncContextManager):
        raise TypeError(
            f"open={opens!r} must return an async context manager, not {made!r}; write "
            "@contextlib.asynccontextmanager above an async generator function"
        )
    return made


def refuse_change(before: Opens | None, wanted: Opens | None) -> None:
    """Raises a `ValueError` if a batcher that is open would get another ``open``."""
    if before != wanted:
        raise ValueError(
            "open= can't be changed while the batcher is open: its connections are in use; open "
            "another batcher, or make another backend"
        )


@dataclass(frozen=True)
class HeldOpens:
    """An ``open`` that raises only `Exception`s."""

    opens: Opens

    def __call__(self) -> AbstractAsyncContextManager[Any]:
        """Returns the context manager; the user's is made when it is entered."""
        return _HeldManager(self.opens)


class _HeldManager(AbstractAsyncContextManager[Any]):
    def __init__(self, opens: Opens) -> None:
        self._opens = opens

    @holds_ctrl_c
    async def __aenter__(self) -> Any:
        with holding(partial(own_copy, name="open")):
            self._manager = manager_of(self._opens)
            return await self._manager.__aenter__()

    @holds_ctrl_c
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        with holding(partial(own_copy, name="open")):
            return await self._manager.__aexit__(kind, error, traceback)


_FUNCTIONS: Final = ("batch_size_fn", "join")
_LISTING: Final = ("pad", "split")
_PLAIN: Final = (str, int, bool, float, bytes, type(None))


def with_held_functions(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options with functions that raise only `Exception`s, and so do their results."""
    functions: dict[str, Any] = {
        name: held(options[name], name) for name in _FUNCTIONS if callable(options.get(name))
    }
    for name in _LISTING:
        if callable(options.get(name)):
            functions[name] = held(partial(_listed, options[name]), name)
    if (bucket_by := options.get("bucket_by")) is not None:
        functions["bucket_by"] = held(partial(_key, bucket_by), "bucket_by")
    if callable(dedupe := options.get("dedupe")):
        functions["dedupe"] = held(partial(_key, dedupe), "dedupe")
    if (opens := options.get("open")) is not None:
        functions["open"] = HeldOpens(opens)
    if (policy := options.get("policy")) is not None:
        functions["policy"] = held(partial(_policy, policy), "policy")
    return {**options, **functions}


def held_as_handler(options: Mapping[str, Any], handler: Handler) -> Mapping[str, Any]:
    """Returns the options with `held` functions if the handler's errors are limited too."""
    return options if handler.convert_error is None else with_held_functions(options)


def _listed(function: Callable[..., Any], *args: Any) -> Any:
    made = function(*args)
    return list(made) if hasattr(made, "__iter__") and not isinstance(made, (str, bytes)) else made


class _Key:
    """A bucket key with a stored hash and a `held` comparison."""

    __slots__ = ("_hash", "_key")

    def __init__(self, key: Hashable) -> None:
        self._key = key
        self._hash = hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and _are_equal(self._key, other._key)


@partial(held, name="a key of bucket_by")
def _are_equal(one: object, other: object) -> bool:
    return bool(one == other)


def _key(bucket_by: Callable[[Any], Any], item: Any) -> Any:
    key = bucket_by(item)
    if type(key) in _PLAIN:
        return key
    try:
        return _Key(key)
    except TypeError:  # it can't be hashed, which is refused later
        return key


def _policy(make: Callable[[BatchOptions], Any], options: BatchOptions) -> Any:
    made = make(options)
    return _HeldPolicy(made) if isinstance(made, BatchPolicy) else made


def _held_method(name: str, convert: Callable[[Any], Any] = lambda value: value) -> Any:
    @partial(held, name="the policy")
    def call(self: _HeldPolicy, *args: Any) -> Any:
        return convert(getattr(self.policy, name)(*args))

    return call


class _HeldPolicy(BatchPolicy):
    """A user's policy; an error of it breaks at most its batcher."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.policy = policy

    add = _held_method("add", bool)
    remove = _held_method("remove")
    decide = _held_method("decide")
    take = _held_method("take", list)
    put_back = _held_method("put_back")
    waiting = _held_method("waiting", list)
    demote = _held_method("demote", bool)
    __repr__ = _held_method("__repr__")
