"""What all handles have in common: options of their own, and answers to other systems' spelling."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from types import TracebackType


class RemoteCall(Coroutine[Any, Any, Any]):
    """What `remote` gives: the coroutine of the call.

    Those who come from Ray ask it for its ``result()``, or give it to ``ray.get``, which shows its
    text; both are told what to write instead.

    Args:
        coroutine: The coroutine, which this stands for in all else.
        endpoint: What it calls.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], endpoint: str) -> None:
        self._coroutine = coroutine
        self._endpoint = endpoint

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()

    def send(self, value: Any, /) -> Any:
        """See `Coroutine.send`."""
        return self._coroutine.send(value)

    def throw(
        self,
        kind: Any,
        value: BaseException | object = None,
        traceback: TracebackType | None = None,
        /,
    ) -> Any:
        """See `Coroutine.throw`."""
        if value is None and traceback is None:
            return self._coroutine.throw(kind)
        return self._coroutine.throw(kind, value, traceback)

    def close(self) -> None:
        """See `Coroutine.close`."""
        self._coroutine.close()

    def result(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Says what to write instead.

        Raises:
            TypeError: Always.
        """
        self._coroutine.close()
        raise TypeError(
            f"a call of the endpoint {self._endpoint!r} has no result() to wait for; write\n"
            f"    {_INSTEAD}"
        )

    def __getattr__(self, name: str) -> Any:
        # What event loops look at of a coroutine, such as whether it runs.
        return getattr(self._coroutine, name)

    def __repr__(self) -> str:
        return f"<a call of the endpoint {self._endpoint!r}, to be awaited: {_INSTEAD}>"


SYNC_CALL: Final = "handle.options(method_name={name!r}).call(...)"
"""How a method is called by a handle that blocks."""

_INSTEAD: Final = (
    "result = await handle.remote(...), or in code without await handle.sync.call(...)"
)


def no_such_attribute(name: str, call: str) -> AttributeError:
    """Makes the error of ``handle.method``, which is how Ray Serve calls methods.

    Args:
        name: The attribute.
        call: How a handle of that kind makes a call.
    """
    if name.startswith("_"):
        return AttributeError(f"a handle has no attribute {name!r}")
    return AttributeError(
        f"a handle has no attribute {name!r}; to call the method of that name write\n"
        f"    {call.format(name=name)}",
        name=name,
    )


class Optioned(ABC):
    """A handle."""

    def options(
        self,
        *,
        method_name: str | None = None,
        shard_key: str | None = None,
        http_method: str | None = None,
        http_headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        priority: int | None = None,
    ) -> Self:
        """Returns the same handle with options of its own; see `Handle.options`."""
        given = {
            "method_name": method_name,
            "shard_key": shard_key,
            "http_method": http_method,
            "http_headers": http_headers,
            "timeout_s": timeout_s,
            "priority": priority,
        }
        return self._optioned({name: value for name, value in given.items() if value is not None})

    def remote(self, *args: Any, **kwargs: Any) -> RemoteCall:
        """Does what `call` does; Ray Serve's spelling."""
        return RemoteCall(self.call(*args, **kwargs), self.endpoint)

    if TYPE_CHECKING:

        @property
        def endpoint(self) -> str:
            """The endpoint's name."""
            ...

    else:

        def __getattr__(self, name: str) -> NoReturn:
            raise no_such_attribute(name, "await handle.options(method_name={name!r}).call(...)")

    @abstractmethod
    async def call(self, *args: Any, **kwargs: Any) -> Any:
        """See `Handle.call`."""

    @abstractmethod
    def _optioned(self, given: dict[str, Any]) -> Self:
        """Returns the same handle with some options changed."""
