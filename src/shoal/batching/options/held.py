"""Limits the functions among a batcher's options to raising `Exception`s, for servers.

They size items, assign them to buckets, split them, pad and form batches. What they raise fails
only the call, the batch or the change that they were called for, even an error that would end a
program.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from shoal.batching.options.opens import HeldOpens
from shoal.core.policy import BatchPolicy
from shoal.failures.held import held

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from shoal.batching.handlers.handler import Handler
    from shoal.core.options.options import BatchOptions
    from shoal.core.policy import Dispatch, Pressure, Wait
    from shoal.core.request import Request

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
    return options if handler.told is None else with_held_functions(options)


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
