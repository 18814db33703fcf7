"""The functions among a batcher's options: the manager of ``open``, and limits on their errors.

For servers, what such a function raises fails only the call, the batch or the change that called
it, even an error that would end a program.
"""

from __future__ import annotations

import functools
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakSet

from shoal.core.policy import BatchPolicy
from shoal.failures.exceptions import own_copy
from shoal.failures.held import held, holding
from shoal.loops.event_loop import holds_ctrl_c

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
    from types import TracebackType

    from shoal.batching.handlers.handler import Handler
    from shoal.core.options.options import BatchOptions, Opens
    from shoal.core.policy import Dispatch, Pressure, Wait
    from shoal.core.request import Request


@asynccontextmanager
async def _nothing() -> AsyncGenerator[None]:
    yield


_OF_ONE_USE: Final[Any] = type(_nothing())

_entered: Final[WeakSet[AbstractAsyncContextManager[Any]]] = WeakSet()


def manager_of(opens: Opens) -> AbstractAsyncContextManager[Any]:
    """Raises a `TypeError` or `RuntimeError` if ``open`` returned no manager, or a used one."""
    given = cast("Any", opens)
    made: object = given if isinstance(opens, AbstractAsyncContextManager) else given()
    if not isinstance(made, AbstractAsyncContextManager):
        raise TypeError(
            f"open={given!r} must return an async context manager, not {made!r}; write "
            "@contextlib.asynccontextmanager above an async generator function"
        )
    manager: AbstractAsyncContextManager[Any] = cast("Any", made)
    if isinstance(made, _OF_ONE_USE):
        if manager in _entered:
            raise RuntimeError(
                f"open={given!r} was entered by a batcher before, and can be entered only once; "
                "give the function that makes it: open=pool, not open=pool()"
            )
        _entered.add(manager)
    return manager


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
            functions[name] = held(functools.partial(_listed, options[name]), name)
    if (bucket_by := options.get("bucket_by")) is not None:
        functions["bucket_by"] = held(functools.partial(_key, bucket_by), "bucket_by")
    if callable(dedupe := options.get("dedupe")):
        functions["dedupe"] = held(functools.partial(_key, dedupe), "dedupe")
    if (opens := options.get("open")) is not None:
        functions["open"] = HeldOpens(opens)
    if (policy := options.get("policy")) is not None:
        functions["policy"] = held(functools.partial(_policy, policy), "policy")
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


@functools.partial(held, name="a key of bucket_by")
def _are_equal(one: object, other: object) -> bool:
    return bool(one == other)


def _key(bucket_by: Callable[[Any], Any], item: Any) -> Any:
    return _as_key(bucket_by(item))


def _as_key(key: Any) -> Any:
    if type(key) in _PLAIN:
        return key
    try:
        return _Key(key)
    except TypeError:  # it can't be hashed, which is refused later
        return key


def _policy(make: Callable[[BatchOptions], Any], options: BatchOptions) -> Any:
    made = make(options)
    return _HeldPolicy(made) if isinstance(made, BatchPolicy) else made


_of_policy = functools.partial(held, name="the policy")


class _HeldPolicy(BatchPolicy):
    """A user's policy; an error of it breaks at most its batcher."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy

    @_of_policy
    def add(self, request: Request) -> bool:
        return bool(self._policy.add(request))

    @_of_policy
    def remove(self, request: Request) -> None:
        self._policy.remove(request)

    @_of_policy
    def decide(self, now: float, pressure: Pressure | None) -> Dispatch | Wait:
        return self._policy.decide(now, pressure)

    @_of_policy
    def take(self, dispatch: Dispatch) -> list[Request]:
        return list(self._policy.take(dispatch))

    @_of_policy
    def put_back(self, requests: Sequence[Request]) -> None:
        self._policy.put_back(requests)

    @_of_policy
    def waiting(self) -> list[Request]:
        return list(self._policy.waiting())

    @_of_policy
    def take_within(self, room: float) -> list[Request]:
        return list(self._policy.take_within(room))

    @_of_policy
    def demote(self, request: Request) -> bool:
        return bool(self._policy.demote(request))

    @_of_policy
    def __repr__(self) -> str:
        return repr(self._policy)
