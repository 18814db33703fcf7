"""The option ``open``: the context manager around the batches of a batcher."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakSet

from shoal.failures.exceptions import own_copy
from shoal.failures.held import holding
from shoal.loops.event_loop import holds_ctrl_c

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import TracebackType

    from shoal.core.options.options import Opens


@asynccontextmanager
async def _nothing() -> AsyncGenerator[None]:
    yield


_OF_ONE_USE: Final[Any] = type(_nothing())

_entered: Final[WeakSet[AbstractAsyncContextManager[Any]]] = WeakSet()


def manager_of(opens: Opens) -> AbstractAsyncContextManager[Any]:
    """Returns the context manager for one opening of a batcher.

    Raises:
        TypeError: The function did not return one.
        RuntimeError: It can be entered only once, and was.
        Exception: What the function raised.
    """
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
    """Refuses another ``open`` for a batcher that is open.

    Raises:
        ValueError: They are not the same.
    """
    if before != wanted:
        raise ValueError(
            "open= can't be changed while the batcher is open: its connections are in use; open "
            "another batcher, or make another backend"
        )


@dataclass(frozen=True)
class HeldOpens:
    """An ``open`` that raises only `Exception`s; see `holding`."""

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
