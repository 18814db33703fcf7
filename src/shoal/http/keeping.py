"""Keeping batchers open, each in a task of its own, for as long as the application is served.

The lifespan's nursery is the server's: an error that reaches it ends the process, with every
stream in it. So a batcher that breaks is let go in its own task. Its callers have failed by then;
the server stays up, answers what else it serves, and says which one broke.
"""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from anyio.abc import TaskStatus

    from shoal.http.endpoint import Endpoint

_log: Final = logging.getLogger("shoal.http")


@asynccontextmanager
async def kept_open(endpoints: Sequence[Endpoint]) -> AsyncGenerator[None]:
    """Loads the models and keeps the batchers of endpoints open, in order.

    They close in reverse order, one after the other, so that a handler which calls an endpoint
    declared before its own finds it open to the end.

    Raises:
        Exception: What an endpoint raised while it was opened, as it was raised, with a note that
            says which it was.
    """
    kept: list[_Kept] = []
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            for endpoint in endpoints:
                try:
                    await endpoint.source.load()
                    one = _Kept(endpoint)
                    await tasks.start(one.keep)
                except Exception as error:
                    error.add_note(f"the endpoint {endpoint.path} could not be opened: {error!r}")
                    raise
                kept.append(one)
            yield
        except Exception as error:
            failure = error
        finally:
            for one in reversed(kept):
                one.closing.set()
                await one.closed.wait()
    if failure is not None:
        raise failure


@dataclass
class _Kept:
    """One endpoint's batcher, and the task that keeps it open."""

    endpoint: Endpoint
    closing: anyio.Event = field(default_factory=anyio.Event)
    closed: anyio.Event = field(default_factory=anyio.Event)

    async def keep(self, *, task_status: TaskStatus[None]) -> None:
        endpoint = self.endpoint
        is_open = False
        try:
            async with endpoint.source.opened(endpoint.name) as batcher:
                endpoint.batcher = batcher
                is_open = True
                task_status.started()
                await self.closing.wait()
        except Exception as error:
            if not is_open:
                raise
            self._let_go(error)
        except BaseExceptionGroup as group:
            passing, broken = group.split(_is_for_others)
            if broken is not None:
                self._let_go(broken)
            if passing is not None:
                raise passing from None
        finally:
            self.closed.set()

    def _let_go(self, error: BaseException) -> None:
        _log.error(
            "the batcher of %s broke; the endpoint answers 503 from now on",
            self.endpoint.name,
            exc_info=error,
        )


def _is_for_others(error: BaseException) -> bool:
    """Says whether an error ends more than the batcher where it came up."""
    if isinstance(error, BaseExceptionGroup):
        return False  # its parts are asked
    wanted = (KeyboardInterrupt, SystemExit, anyio.get_cancelled_exc_class())
    return isinstance(error, wanted)
