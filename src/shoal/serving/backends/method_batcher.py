"""The batcher of one method of a backend, in its own task, and the handler that runs its batches.

A batch is one call of one method, so each method that is called has its own batcher. Nearly always
that is only ``__call__``. The batchers share the backend's replicas.

The handler runs a batch on a replica, and on another one if that dies and ``retries`` allows it. It
takes its replica before it first waits, as `Capacity` requires. A request runs again only if no
part of its answer has reached the caller. In a batch that streams, the requests without an item run
again, and the others fail.

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
from shoal.batching.calls.stream import END, SKIP
from shoal.batching.current import running_batch
from shoal.batching.handlers.array_types import array_check
from shoal.batching.handlers.binding import Binding
from shoal.batching.handlers.handler import Fill, Handler
from shoal.batching.options import checked_options, refuse_change
from shoal.batching.running.run import RunsAgain
from shoal.core.replicas.members import LoadedModel, home_and_model_of
from shoal.errors import ReplicaDied
from shoal.failures.exceptions import own_copy
from shoal.serving.backends.pool import Pool, PoolCapacity, PoolMember

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
    from inspect import Signature

    from anyio.abc import TaskStatus

    from shoal.batching.calls.entry import Entry
    from shoal.batching.open_batch import OpenBatch
    from shoal.core.events import Observers
    from shoal.core.request import Request
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
        self.convert_with(converters)
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
        self._made: dict[Any, Any] = {}

    def made_by(self, make: Callable[[Signature], T]) -> T:
        """Returns what `make` returns for the signature of a call, cached by `make`."""
        if self.decodes:
            raise TypeError("its items are made by its decode function, from HTTP requests")
        made: T | None = self._made.get(make)
        if made is None:
            made = self._made[make] = make(self.batcher.signature)
        return made

    def made_of_results(self, make: Callable[[Signature], T]) -> T:
        """Returns the same for the signature without parameters, which says what results are."""
        made: T | None = self._made.get((make,))
        if made is None:
            signature = self.batcher.signature.replace(parameters=())
            made = self._made[make,] = make(signature)
        return made

    def convert_with(self, converters: Converters | None) -> None:
        self.converters = converters
        # Whether only HTTP requests make items, with the function of the backend.
        self.decodes = converters is not None and converters.decode is not None

    def check(self, options: dict[str, Any]) -> None:
        """Raises `TypeError` or `ValueError` for options that can't be applied."""
        checked_options(options, self._handler)
        if self.batcher.is_alive:
            refuse_change(self.batcher.options.open, options["open"])

    def configure(self, options: dict[str, Any]) -> None:
        self.batcher.configure(**options)
        self._fit_capacity()

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
            passed_on, broken = group.split(ends_the_server)
            if broken is not None:
                self._log_failure(broken)
            if passed_on is not None:
                raise passed_on from None

    async def close(self, *, at_once: bool) -> None:
        if at_once:
            self.batcher.configure(graceful_shutdown_timeout_s=0)
        await self.batcher.aclose()

    def _log_failure(self, error: BaseException) -> None:
        logger.error("the batcher of %s broke", self.batcher.name, exc_info=error)


def ends_the_server(error: BaseException) -> bool:
    """Whether an error must also end the tasks around the batcher that raised it."""
    if isinstance(error, BaseExceptionGroup):
        return False  # its members are checked one by one
    wanted = (KeyboardInterrupt, SystemExit, anyio.get_cancelled_exc_class())
    return isinstance(error, wanted)


class BatchDispatcher:
    def __init__(
        self,
        name: str,
        method: Method,
        pool: Pool,
        retries: Callable[[], int],
        models: ModelLoader | None = None,
    ) -> None:
        self._models = models
        self._name = name
        self._method = method.name
        self._pool = pool
        self._retries = retries  # read at each death: it may change
        binding = Binding.of_items(method.signature, "items")
        self.handler = Handler(self._steps if method.streams else self._run, binding=binding)
        self.handler.name = name
        self.handler.has_replicas = True

    async def _run(self, items: list[Any]) -> Any:
        tries = 0
        batch = running_batch.get()
        size = batch.size  # with padding there are more items
        home, model = home_and_model_of(batch)
        while True:
            member = self._pool.choose(size, home, model) or await self._pool.wait(size)
            self._pool.begin(member, size)
            used: LoadedModel | None = None
            try:
                if model is not None and self._models is not None:
                    used = await self._models.loaded(member, model)
                # Each run has a list of its own, which the code may change.
                results = await member.replica.run(self._method, list(items))
                if not member.replica.takes_work and issubclass(type(results), list):
                    self._put_back(member, batch.members, results, tries)
                return results
            except ReplicaDied as death:
                if not self._runs_again(member, death, tries + deaths_of(batch.members)):
                    raise
            finally:
                if used is not None:
                    used.batches -= 1
                self._pool.end(member, size)
            tries += 1

    async def _steps(self, items: list[Any]) -> AsyncGenerator[Any, None]:
        batch = running_batch.get()
        home, model = home_and_model_of(batch)
        remaining = list(range(len(items)))
        tries = 0
        while remaining:
            size = min(len(remaining), batch.size)
            member = self._pool.choose(size, home, model) or await self._pool.wait(size)
            # Recording each step costs time, so a batch that can't run again skips it.
            attempt = _Attempt(remaining, len(items)) if tries or self._retries() else None
            self._pool.begin(member, size)
            used: LoadedModel | None = None
            try:
                if model is not None and self._models is not None:
                    used = await self._models.loaded(member, model)
                steps = member.replica.run_stream(self._method, [items[i] for i in remaining])
                async with aclosing(steps):
                    async for step in steps:
                        yield step if attempt is None else attempt.spread(step)
                return
            except ReplicaDied as death:
                if attempt is None:
                    note_death(self._pool, member, death)
                    raise
                remaining = attempt.untouched()
                if not self._runs_again(member, death, tries, is_logged=bool(remaining)):
                    raise
                if attempt.begun:
                    yield attempt.failed(death)
            finally:
                if used is not None:
                    used.batches -= 1
                self._pool.end(member, size)
            tries += 1

    def _runs_again(
        self, member: PoolMember, death: ReplicaDied, tries: int, *, is_logged: bool = True
    ) -> bool:
        is_own = note_death(self._pool, member, death)
        if not is_own or tries >= self._retries():
            return False
        if is_logged:
            logger.warning("%s: a batch runs again, since %s", self._name, death)
        return True

    def _put_back(
        self, member: PoolMember, requests: Sequence[Request], results: list[Any], tries: int
    ) -> None:
        # A model server that has ended may have served some of its calls. The others are queued.
        died = [
            place
            for place, one in enumerate(results[: len(requests)])
            if issubclass(type(one), ReplicaDied) and one.replica == member.replica.tag
        ]
        again = [p for p in died if tries + deaths_of((requests[p],)) < self._retries()]
        if died and note_death(self._pool, member, results[died[0]]) and again:
            why = results[again[0]]
            logger.warning("%s: %d calls run again, since %s", self._name, len(again), why)
            for place in again:
                results[place] = RunsAgain(results[place])


def deaths_of(requests: Iterable[Request]) -> int:
    # For how many deaths of replicas they were put back, at most.
    return max([one.returned.deaths for one in requests if hasattr(one, "returned")], default=0)


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


class _Attempt:
    def __init__(self, positions: list[int], width: int) -> None:
        self._positions = positions
        self._width = width
        self._is_whole = len(positions) == width
        self._sent: set[int] = set()
        self._over: set[int] = set()

    @property
    def begun(self) -> bool:
        return bool(self._sent - self._over)

    def spread(self, step: Any) -> Any:
        """Records a step, and moves its values to their requests' places in the batch."""
        try:
            slots = list(step)
        except TypeError:
            return step
        if len(slots) != len(self._positions):
            return step
        for position, slot in zip(self._positions, slots, strict=True):
            if (
                slot is END
                or slot is StopIteration
                or slot is StopAsyncIteration
                or issubclass(type(slot), BaseException)
            ):
                self._over.add(position)
            elif slot is not SKIP:
                self._sent.add(position)
        return step if self._is_whole else self._at(dict(zip(self._positions, slots, strict=True)))

    def failed(self, death: ReplicaDied) -> list[Any]:
        """Returns a step that fails the requests that can't run again."""
        return self._at({position: own_copy(death) for position in self._sent - self._over})

    def untouched(self) -> list[int]:
        return [p for p in self._positions if p not in self._sent and p not in self._over]

    def _at(self, slots: dict[int, Any]) -> list[Any]:
        return [slots.get(position, SKIP) for position in range(self._width)]
