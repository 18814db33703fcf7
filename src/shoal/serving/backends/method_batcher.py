"""The batcher of one method of a backend, in its own task, and the handler that runs its batches.

A batch is one call of one method, so each method that is called has its own batcher. Nearly always
that is only ``__call__``. The batchers share the backend's replicas.

The handler runs a batch on a replica, which it takes before it first waits, as `Capacity` requires.
If the replica dies, it raises `RunsAgain`: the batcher queues those requests again that ``retries``
allows, and of which no part of the answer has reached the caller. The others fail.

A batcher that breaks (because a policy of the user's raises, for example) must not end the others,
so its error stops here and is logged. Its callers have failed by then, and later calls fail with
the error as their cause.
"""

from __future__ import annotations

import logging
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio

from shoal.batching.batcher import Batcher
from shoal.batching.current import running_batch
from shoal.batching.handlers.array_types import array_check
from shoal.batching.handlers.binding import Binding
from shoal.batching.handlers.handler import Fill, Handler
from shoal.batching.options import checked_options, refuse_change
from shoal.batching.running.run import RunsAgain
from shoal.core.replicas.members import LoadedModel, home_and_model_of
from shoal.errors import ReplicaDied
from shoal.serving.backends.models import wait_loaded
from shoal.serving.backends.pool import Pool, PoolCapacity, PoolMember

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from inspect import Signature

    from anyio.abc import TaskStatus

    from shoal.batching.calls.entry import Entry
    from shoal.batching.open_batch import OpenBatch
    from shoal.core.events import Observers
    from shoal.core.request import Batch
    from shoal.replicas.code.instance import Method
    from shoal.serving.backend_options import Converters
    from shoal.serving.backends.models import ModelLoader


T = TypeVar("T")

logger: Final = logging.getLogger("shoal.serving")


class MethodBatcher:
    def __init__(
        self,
        name: str,
        method: Method,
        handler: Handler,
        pool: Pool,
        options: dict[str, Any],
        converters: Converters | None,
        observers: Observers,
    ) -> None:
        self.method = method
        self._convert_with(converters)
        self._handler = handler
        self._capacity = PoolCapacity(pool, 1)
        self.batcher: Batcher[Any] = Batcher(
            handler, name=name, capacity=self._capacity, observers=observers, **options
        )
        self._fit_capacity()
        self.streams = self.batcher.streams
        self.entry: Entry | None = None  # from when it is open
        # None if no parameter has an array type
        self.check_arrays = array_check(self.batcher.signature)
        self._codecs: dict[Any, Any] = {}
        self._codecs_of_results: dict[Any, Any] = {}

    def codec_of(self, make: Callable[[Signature], T]) -> T:
        """Returns what `make` returns for the signature of a call, cached by `make`."""
        if self.decodes:
            raise TypeError("its items are made by its decode function, from HTTP requests")
        codec: T | None = self._codecs.get(make)
        if codec is None:
            codec = self._codecs[make] = make(self.batcher.signature)
        return codec

    def codec_of_results(self, make: Callable[[Signature], T]) -> T:
        """Returns the same for the signature without parameters, which says what results are."""
        codec: T | None = self._codecs_of_results.get(make)
        if codec is None:
            signature = self.batcher.signature.replace(parameters=())
            codec = self._codecs_of_results[make] = make(signature)
        return codec

    def _convert_with(self, converters: Converters | None) -> None:
        self.converters = converters
        # Whether only HTTP requests make items, with the function of the backend.
        self.decodes = converters is not None and converters.decode is not None

    def check(self, options: dict[str, Any]) -> None:
        """Raises `TypeError` or `ValueError` for options that can't be applied."""
        checked_options(options, self._handler)
        if self.batcher.is_alive:
            refuse_change(self.batcher.options.open, options["open"])

    def configure(self, options: dict[str, Any], converters: Converters | None) -> None:
        self.batcher.configure(**options)
        self._fit_capacity()
        self._convert_with(converters)

    def _fit_capacity(self) -> None:
        # An open batch begins with one request.
        is_closed = self.batcher.fill == "closed"
        self._capacity.size = self.batcher.options.max_batch_size if is_closed else 1

    def forget_results(self) -> None:
        if self.batcher.is_alive:
            self.batcher.find().forget_results()

    async def run(self, enter: Callable[[], object], *, task_status: TaskStatus[None]) -> None:
        enter()
        is_open = False

        def on_open() -> None:
            nonlocal is_open
            is_open = True
            self.entry = self.batcher.find()
            task_status.started()

        try:
            await self.batcher.serve(on_open)
        except Exception as error:
            if not is_open:
                raise
            self._log_failure(error)
        except BaseExceptionGroup as group:
            # Some errors must also end the tasks around the batcher.
            passed_on, broken = group.split(
                (KeyboardInterrupt, SystemExit, anyio.get_cancelled_exc_class())
            )
            if broken is not None:
                self._log_failure(broken)
            if passed_on is not None:
                raise passed_on from None

    def _log_failure(self, error: BaseException) -> None:
        logger.error("the batcher of %s broke", self.batcher.name, exc_info=error)


def closed_handler(
    name: str, method: Method, pool: Pool, retries: Callable[[], int], models: ModelLoader
) -> Handler:
    """Makes the handler of batches that are whole when they run.

    `retries` is called at each death of a replica, since it may change.
    """

    async def take(batch: Batch) -> tuple[PoolMember, LoadedModel | None]:
        home, model = home_and_model_of(batch)
        member = pool.choose(batch.size, home, model) or await pool.wait(batch.size)
        pool.begin(member, batch.size)
        return member, None if model is None else models.use(member, model)

    # Both end alike, but one async context manager for both would make a call 10% slower.

    async def run(items: list[Any]) -> Any:
        batch = running_batch.get()
        member, used = await take(batch)
        try:
            if used is not None:
                await wait_loaded(used)
            results = await member.replica.run(method.name, items)
            if not member.replica.takes_work and issubclass(type(results), list):
                mark_deaths(member, results, batch.size)
            return results
        except ReplicaDied as death:
            if note_death(pool, member, death):
                raise RunsAgain(death, retries()) from None
            raise
        finally:
            pool.end(member, batch.size, used)

    async def steps(items: list[Any]) -> AsyncGenerator[Any, None]:
        batch = running_batch.get()
        member, used = await take(batch)
        try:
            if used is not None:
                await wait_loaded(used)
            async with aclosing(member.replica.run_stream(method.name, items)) as steps:
                async for step in steps:
                    yield step
        except ReplicaDied as death:
            if note_death(pool, member, death):
                raise RunsAgain(death, retries()) from None
            raise
        finally:
            pool.end(member, batch.size, used)

    def mark_deaths(member: PoolMember, results: list[Any], size: int) -> None:
        # A model server that has ended may have served some of its calls. The others run again.
        for place, one in enumerate(results[:size]):  # with padding there are more
            if issubclass(type(one), ReplicaDied) and one.replica == member.replica.tag:
                note_death(pool, member, one)
                results[place] = RunsAgain(one, retries())

    binding = Binding.of_items(method.signature, "items")
    handler = Handler(steps if method.streams else run, binding=binding)
    handler.name = name
    handler.has_replicas = True
    return handler


def note_death(pool: Pool, member: PoolMember, death: ReplicaDied) -> bool:
    """Withdraws a replica that died; returns whether it was the one that died."""
    # The replica that died may be another one, which the code has called, even on another server.
    takes_work = member.replica.takes_work
    if death.replica != member.replica.tag and (death.replica or takes_work):
        return False
    pool.withdraw(member)
    if takes_work:  # it must end, or nothing would take its place
        member.replica.kill("its work failed with ReplicaDied")
    return True


def open_handler(pool: Pool, method: str, fill: Fill, streams: bool, binding: Binding) -> Handler:
    """Makes the handler of batches that take requests while they run."""

    async def run(batch: OpenBatch[Any, Any]) -> None:
        member = pool.choose(1) or await pool.wait(1)
        running = running_batch.get()
        member.on_withdrawn.append(batch.leave)
        member.open.append(running)  # so that it counts by its requests
        pool.begin(member, 1)
        try:
            await member.replica.run_open(method, batch)
        except ReplicaDied as death:
            note_death(pool, member, death)
            raise
        finally:
            member.open.remove(running)
            member.on_withdrawn.remove(batch.leave)
            pool.end(member, 1)

    return Handler(run, fill=fill, streams=streams, binding=binding)
