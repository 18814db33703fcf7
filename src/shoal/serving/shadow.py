"""Shadow traffic: copies of an endpoint's requests, for a backend; its answers are discarded.

A copy runs in a task of the controller, so it outlives the request and can't delay or fail it. It
starts together with the request, and its answer is compared with the request's, if that has one. At
most `MOST_COPIES` copies run at once; further ones are dropped and counted.
"""

from __future__ import annotations

import inspect
import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self

import anyio

from shoal.core.forming.call_options import CallOptions
from shoal.failures.held import held, holding
from shoal.loops.event_loop import holds_ctrl_c
from shoal.replicas.code.definition import imported, qualified_name
from shoal.status import ShadowStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shoal.core.traffic import Shadow
    from shoal.serving.backends.backend import Backend


logger: Final = logging.getLogger("shoal.serving")

MOST_COPIES: Final = 256
"""The most copies of one shadow that may run at once."""

_TIMEOUT_S: Final = 60.0
_NO_ANSWER: Final = object()


class PrimaryAnswer:
    """The answer to the copied request, for the tasks that compare it."""

    def __init__(self) -> None:
        self.value: Any = _NO_ANSWER  # so it stays if the request failed
        self.ended = anyio.Event()


class ShadowFlow:
    def __init__(self, backend: Backend, declared: Shadow) -> None:
        self.backend = backend
        self.declared = declared
        compare = declared.compare
        self._are_alike = imported(compare) if isinstance(compare, str) else compare
        if self._are_alike is not None and (
            not callable(self._are_alike) or inspect.iscoroutinefunction(self._are_alike)
        ):
            raise TypeError(
                f"compare must be a plain function of two answers, or the import path of one, not "
                f"{compare!r}"
            )
        if self._are_alike is not None:
            self._are_alike = held(partial(_are_alike, self._are_alike), "compare")
        self._under_way = 0
        self._sent = self._dropped = self._failed = self._agreed = self._disagreed = 0
        self._latency_s = 0.0

    @classmethod
    def restored(cls, allowed: Callable[[Any], str], backend: Backend, declared: Shadow) -> Self:
        """Makes a shadow from the state file, without a comparison that may not or can't load."""
        flow = cls(backend, replace(declared, compare=None))
        if declared.compare is not None:
            try:
                flow = cls(backend, replace(declared, compare=allowed(declared.compare)))
            except Exception:
                logger.exception("%s: shadow answers are not compared", backend.tag)
        flow.declared = declared
        return flow

    def change(self, other: ShadowFlow) -> None:
        """Applies the settings of another one, and keeps the counts."""
        self.declared, self._are_alike = other.declared, other._are_alike

    def takes(self, point: float) -> bool:
        """Returns whether to copy a request; `point` is a random number from 0 to 1."""
        if not self.declared.takes(point):
            return False
        if self._under_way >= MOST_COPIES:
            self._dropped += 1
            return False
        self._under_way += 1
        self._sent += 1
        return True

    @holds_ctrl_c
    async def copy(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        metadata: Mapping[str, Any],
        answer: PrimaryAnswer,
    ) -> None:
        """Sends a copy of a request that `takes` accepted, and counts its outcome."""
        started, are_alike = anyio.current_time(), self._are_alike  # which may change
        try:
            with anyio.fail_after(_TIMEOUT_S), holding():
                result = await self._result(method, args, kwargs, CallOptions(metadata=metadata))
        except Exception as error:
            self._failed += 1
            logger.debug("%s: a shadow request failed", self.backend.tag, exc_info=error)
            return
        finally:
            self._under_way -= 1
            self._latency_s += anyio.current_time() - started
        if are_alike is None:
            return
        with anyio.move_on_after(_TIMEOUT_S):  # the request may wait for long
            await answer.ended.wait()
            if answer.value is not _NO_ANSWER:
                self._count_alike(are_alike, answer.value, result)

    async def _result(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], call_options: CallOptions
    ) -> Any:
        method_batcher = await self.backend.method_batcher(method)
        entry = method_batcher.batcher.find()
        item = entry.item(args, kwargs)
        if not method_batcher.streams:
            return await entry.call(item, call_options)
        async with entry.begin_stream_of(item, call_options) as stream:
            return [item async for item in stream]

    def _count_alike(self, are_alike: Callable[[Any, Any], bool], first: Any, second: Any) -> None:
        try:
            agreed = are_alike(first, second)
        except Exception as error:
            self._failed += 1
            logger.warning("%s: compare raised", self.backend.tag, exc_info=error)
            return
        if agreed:
            self._agreed += 1
        else:
            self._disagreed += 1

    def status(self) -> ShadowStatus:
        compare = self.declared.compare
        if compare is not None and not isinstance(compare, str):
            compare = qualified_name(compare)
        return ShadowStatus(
            backend=self.backend.tag,
            proportion=self.declared.proportion,
            compare=compare,
            sent=self._sent,
            dropped=self._dropped,
            failed=self._failed,
            agreed=self._agreed,
            disagreed=self._disagreed,
            latency_s=self._latency_s,
        )


def _are_alike(compare: Callable[[Any, Any], object], first: Any, second: Any) -> bool:
    return bool(compare(first, second))
