"""The lines of a backend, one for each method that has been called, and how they are configured."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.options.held import with_held_functions
from shoal.errors import BatcherClosed
from shoal.serving.backends.dispatch import Dispatcher, open_handler
from shoal.serving.backends.method_batcher import Line
from shoal.serving.config.batching import unset_batch_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anyio.abc import TaskGroup

    from shoal.core.counters import BatcherStatistics
    from shoal.replicas.code.description import Method
    from shoal.serving.config.config import BackendConfig
    from shoal.serving.replica_set.pool import Pool
    from shoal.serving.replica_set.supervisor import Supervisor

CALL: Final = "__call__"


class Lines:
    """The lines of a backend.

    Args:
        tag: The backend's tag.
        config: How it runs.
        enter: What each task calls first that the code may run in.

    Attributes:
        tag: The backend's tag.
        config: How it runs now.
        lines: Those that are open, by method.
        is_closing: Whether no more are opened.
        pool: The replicas that take work.
        supervisor: What keeps the replicas.
    """

    pool: Pool
    supervisor: Supervisor
    _tasks: TaskGroup

    def __init__(self, tag: str, config: BackendConfig, enter: Callable[[], object]) -> None:
        self.tag = tag
        self.config = config
        self.lines: dict[str, Line] = {}
        self.is_closing = False
        self._enter = enter
        self._opening = anyio.Lock()

    async def line(self, method: str) -> Line:
        """Returns the line of a method, and opens it if need be.

        Raises:
            NoSuchName: The code has no such method.
            BatcherClosed: The backend is closing.
            BackendUnavailable: No replica has been ready, and none can be started.
        """
        described = (await self.supervisor.described()).method(method)
        async with self._opening:
            if (line := self.lines.get(method)) is not None:
                return line
            if self.is_closing:
                raise BatcherClosed(f"the backend {self.tag} is closed")
            if self.config.fill == "closed":
                retries = lambda: self.config.retries  # noqa: E731 - as it is at each death
                handler = Dispatcher(self.tag, described, self.pool, retries).handler
            else:
                kept = await self.supervisor.any_ready()
                binding = kept.replica.open_binding(method)
                fill, streams = self.config.fill, self.config.streams
                handler = open_handler(self.pool, method, fill, streams, binding)
            options = self.batch_options(described, self.config)
            name = self.tag if method == CALL else f"{self.tag}/{method}"  # no tag has a slash
            line = Line(name, described, handler, self.pool, options)
            await self._tasks.start(line.keep, self._enter)
            self.lines[method] = line
            return line

    async def mend_lines(self) -> None:
        """Opens those anew whose batchers broke.

        Raises:
            Exception: What a policy raised when it was made.
        """
        for method, line in [*self.lines.items()]:
            if line.batcher.failure is not None:
                del self.lines[method]
                await self.line(method)

    def configure_lines(self, config: BackendConfig) -> None:
        """Has all lines take in another config, or none.

        Raises:
            TypeError: An option has the wrong type; nothing is changed.
            ValueError: An option does not fit the code; nothing is changed.
        """
        done: list[Line] = []
        try:
            for line in self.lines.values():
                line.batcher.configure(**self.batch_options(line.method, config))
                done.append(line)
        except BaseException:
            for line in done:
                line.batcher.configure(**self.batch_options(line.method, self.config))
            raise
        self.config = config

    async def close_lines(self, *, at_once: bool) -> None:
        """Closes them, once what is in them has been answered.

        Args:
            at_once: Whether to fail that instead.
        """
        self.is_closing = True
        async with self._opening:
            pass  # one that is being opened is there now
        async with anyio.create_task_group() as tasks:
            for line in self.lines.values():
                tasks.start_soon(partial(line.close, at_once=at_once))

    def drain(self) -> None:
        """Has batches wait for company no more."""
        for line in self.lines.values():
            line.batcher.drain()

    def statistics(self) -> Iterator[BatcherStatistics]:
        """Yields the figures of each line."""
        for line in self.lines.values():
            yield line.batcher.statistics()

    @property
    def queued(self) -> int:
        """How many requests are in line."""
        return sum([each.queued + each.parked for each in self.statistics()])

    @property
    def running(self) -> int:
        """How many requests are in batches that run."""
        return sum([each.running for each in self.statistics()])

    def batch_options(self, method: Method, config: BackendConfig) -> dict[str, Any]:
        """Returns the options of the batcher of a method, under some config.

        Raises:
            TypeError: An option has the wrong type.
            ValueError: An option does not fit the code.
        """
        description = self.supervisor.description
        if not method.batched and description is not None and description.method(CALL).batched:
            config = config.of_one()
        options = with_held_functions(
            {**unset_batch_options(), **config.batch_options(method.batched)}
        )
        # A slot for each batch that the replicas may have; the pool says how many they can take.
        slots = max(1, self.supervisor.wanted) * config.slots(
            method.batched, gathers=method.gathers
        )
        return {**options, "max_concurrent_batches": None if slots == math.inf else int(slots)}

    def resize_lines(self) -> None:
        """Says how many replicas there are to those that reckon with it."""
        for line in self.lines.values():
            options = self.batch_options(line.method, self.config)
            line.batcher.configure(max_concurrent_batches=options["max_concurrent_batches"])
