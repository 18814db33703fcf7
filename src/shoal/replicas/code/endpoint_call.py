"""A call to an endpoint: its options, and its form when code in a process sends it."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypedDict, cast

from shoal.batching.current import trace_headers
from shoal.core.options.names import refuse_unknown
from shoal.core.options.option import Option, option, options_of, seconds, text, whole


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, not {value!r}")
    return cast("Mapping[str, Any]", value)


@dataclass(frozen=True)
class HandleOptions:
    """The options of a handle, for each of its calls.

    Attributes:
        method_name: The method of the backend's code to call.
        shard_key: Equal keys go to one backend, and with ``sticky_load_factor`` to one replica.
        model: The model that the code needs for the call, if the backend has the option ``models``.
        http_method: The value of ``"method"`` in the request's metadata.
        http_headers: The value of ``"headers"`` there.
        timeout_s: How long a call may take from when it is made, in seconds.
        priority: The priority level of the request, from 1, the highest.
    """

    method_name: str = option("__call__", text)
    shard_key: str | None = option(None, text)
    model: str | None = option(None, text)
    http_method: str | None = option(None, text)
    http_headers: Mapping[str, str] | None = option(None, _mapping)
    timeout_s: float | None = option(None, seconds)
    priority: int | None = option(None, partial(whole, least=1))

    def with_changes(self, given: Mapping[str, Any]) -> HandleOptions:
        """Returns these options with changes, which it checks; None leaves an option as it is.

        Raises:
            TypeError: A name is unknown, or a value has the wrong type.
            ValueError: A value is out of its range.
        """
        refuse_unknown("a handle", given, HANDLE_OPTIONS)
        changes = {
            name: HANDLE_OPTIONS[name].check(name, value)
            for name, value in given.items()
            if value is not None
        }
        return HandleOptions(**{**vars(self), **changes})

    def changed(self) -> dict[str, Any]:
        return {
            name: value for name, value in vars(self).items() if value != getattr(_DEFAULTS, name)
        }


# The fields of `HandleOptions`, by their names.
HANDLE_OPTIONS: Final[Mapping[str, Option]] = options_of(HandleOptions)

_DEFAULTS: Final = HandleOptions()


class HandleKeywords(TypedDict, total=False):
    """The fields of `HandleOptions`, for type checkers; None leaves an option as it is."""

    method_name: str | None
    shard_key: str | None
    model: str | None
    http_method: str | None
    http_headers: Mapping[str, str] | None
    timeout_s: float | None
    priority: int | None


@dataclass(frozen=True)
class CallOut:
    """A call that code in a process makes to an endpoint."""

    endpoint: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    stream: bool = False
    options: HandleOptions = _DEFAULTS
    # The headers that continue the trace of the code; empty for none.
    trace: Mapping[str, str] = field(default_factory=trace_headers)


# The options of a call that asks whether the endpoint exists, instead of calling it.
IS_THERE: Final = HandleOptions(method_name="?")

# In a worker: its `ParentChannel`, which makes the calls. It is set before the user's code is
# loaded. Code that makes calls, such as a handle, reads it once and stores it, since threads that
# the code starts do not inherit it.
parent_channel: Final[ContextVar[Any]] = ContextVar("shoal.parent_channel")
