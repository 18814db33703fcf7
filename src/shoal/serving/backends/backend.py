"""A backend: user code with a config, its batchers, and the replicas that run their batches.

::

    request > queue (of a batcher) > batch > pool > replica
          dispatched when a replica is idle ^

Each method that has been called has its own batcher.

The batchers, the pool and the supervisor depend on each other in two ways only: the pool is the
batchers' `Room`, and the supervisor adds replicas to the pool and withdraws them.
"""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.options.held import with_held_functions
from shoal.errors import BatcherClosed
from shoal.replicas.code.current import Identity
from shoal.replicas.contract import Blueprint
from shoal.replicas.placements import placement_of
from shoal.serving.backends.dispatch import BatchDispatcher, open_handler
from shoal.serving.backends.method_batcher import MethodBatcher
from shoal.serving.backends.scaling import Scaling
from shoal.serving.config.batching import unset_batch_options
from shoal.serving.config.converters import loaded_converters
from shoal.serving.replica_set.pool import Pool
from shoal.serving.replica_set.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from anyio.abc import TaskGroup, TaskStatus

    from shoal.core.counters import BatcherStatistics
    from shoal.core.events import Observers
    from shoal.replicas.code.definition import Definition
    from shoal.replicas.code.description import Method
    from shoal.replicas.contract import Replica
    from shoal.serving.config.config import BackendConfig
    from shoal.serving.devices import Devices

CALL: Final = "__call__"

logger: Final = logging.getLogger("shoal.serving")


class Backend:
    """User code that is served.

    Args:
        tag: The backend's name.
        definition: The code.
        config: The options it starts with.
        prepare: Called with each replica before it starts.
        enter: Called first in each task in which the code may run.
        observers: What is told of its batches.
        devices: The server's GPUs.

    Attributes:
        tag: The backend's name.
        definition: The code.
        config: The current options.
        devices: The server's GPUs.
        changing: The lock to hold while changing the backend.
        method_batchers: The open batchers, by method.
        is_closing: Whether the backend is being closed.
        pool: The replicas that take work.
        supervisor: Starts and ends the replicas.
    """

    pool: Pool
    supervisor: Supervisor
    _tasks: TaskGroup

    def __init__(
        self,
        tag: str,
        definition: Definition,
        config: BackendConfig,
        prepare: Callable[[Replica], None],
        enter: Callable[[], object],
        observers: Observers,
        devices: Devices,
    ) -> None:
        self.tag = tag
        self.definition = definition
        self.config = config
        self.changing = anyio.Lock()
        self.method_batchers: dict[str, MethodBatcher] = {}
        self.is_closing = False
        self._enter = enter
        self._observers = observers
        self.devices = devices
        self._prepare = prepare
        self._opening = anyio.Lock()
        self._logged_oddity: str | None = None
        self._scaling = Scaling(
            lambda: (self.queued, self.ongoing),
            lambda: self.supervisor.wanted,
            self._scale_by_load,
            self.start_task,
        )
        self._ended = anyio.Event()
        self._closing = anyio.Event()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Serves until the backend is closed.

        Args:
            task_status: Signalled when the first replicas are being started.
        """
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                self.pool = Pool(self.tag, self._scaling.wake)
                self.supervisor = Supervisor(
                    self.tag, self._make, self.pool, self.config, tasks, self.devices, self._enter
                )
                self.supervisor.begin()
                self._scaling.configure(self.config.autoscaling)
                task_status.started()
                await self._closing.wait()
                tasks.cancel_scope.cancel()
        finally:
            self.supervisor.note_over()
            self._ended.set()

    async def ready(self) -> None:
        """Waits until a replica is ready and calls are accepted.

        Raises:
            ReplicaNotStarted: None of the first replicas could be started.
            ValueError: The config does not fit the code.
        """
        await self.supervisor.first_ready()
        await self.method_batcher(CALL)
        self.log_oddity()

    def adopt(self, config: BackendConfig) -> None:
        """Applies another config to the batchers, the supervisor, the pool and the autoscaling.

        Raises:
            TypeError: An option has the wrong type; nothing is changed.
            ValueError: An option does not fit the code; nothing is changed.
        """
        self.configure_batchers(config)
        self.forget_results()
        self.supervisor.adopt(config)
        if (description := self.supervisor.description) is not None:
            code = description.method(CALL)
            slots = config.slots(code.batched, gathers=code.gathers)
            self.pool.resize(slots, config.max_ongoing_requests)
        self._scaling.configure(config.autoscaling)
        self.log_oddity()

    def forget_results(self) -> None:
        """Empties the caches of results, since replicas with other results may answer now."""
        for method_batcher in self.method_batchers.values():
            method_batcher.forget_results()

    def set_wanted(self, num_replicas: int) -> None:
        """Changes the wanted number of replicas, without waiting for them."""
        self.supervisor.scale(num_replicas)
        self.resize_batchers()

    def _scale_by_load(self, num_replicas: int) -> None:
        """Changes the wanted number of replicas to what there are GPUs for, at most."""
        places = self.devices.places(self.config)
        if places is not None:
            there = len(self.supervisor.managed) + places
            num_replicas = min(num_replicas, max(there, self.supervisor.wanted, 1))
        self.set_wanted(num_replicas)

    def drain(self) -> None:
        """Stops batches from waiting to fill, and tells the code that the backend will end."""
        for method_batcher in self.method_batchers.values():
            method_batcher.batcher.drain()
        self.supervisor.drain()

    async def close(self, *, at_once: bool = False) -> None:
        """Ends the backend, once its queued requests have been answered.

        Args:
            at_once: Whether to fail the queued requests instead.

        Cancellation: the backend ends at once; `wait_ended` waits for that.
        """
        self.is_closing = True
        self.supervisor.drain()
        self._scaling.configure(None)
        try:
            await self.close_batchers(at_once=at_once)
            await self.supervisor.end(at_once=at_once)
        finally:
            self._closing.set()
        await self.wait_ended()

    async def wait_ended(self) -> None:
        """Waits until no task of the backend runs any more."""
        await self._ended.wait()

    def start_task(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Starts a task that ends with the backend."""
        self._tasks.start_soon(function, *args)

    async def method_batcher(self, method: str) -> MethodBatcher:
        """Returns the batcher of a method, and opens it if it is not open yet.

        Raises:
            NoSuchName: The code has no such method.
            BatcherClosed: The backend is closing.
            BackendUnavailable: No replica has been ready, and none can be started.
        """
        described = (await self.supervisor.described()).method(method)
        async with self._opening:
            if (method_batcher := self.method_batchers.get(method)) is not None:
                return method_batcher
            if self.is_closing:
                raise BatcherClosed(f"the backend {self.tag} is closed")
            if self.config.fill == "closed":
                retries = lambda: self.config.retries  # noqa: E731 - as it is at each death
                handler = BatchDispatcher(self.tag, described, self.pool, retries).handler
            else:
                managed = await self.supervisor.any_ready()
                binding = managed.replica.open_binding(method)
                fill, streams = self.config.fill, self.config.streams
                handler = open_handler(self.pool, method, fill, streams, binding)
            options = self.batch_options(described, self.config)
            name = self.tag if method == CALL else f"{self.tag}/{method}"  # no tag has a slash
            converters = loaded_converters(self.config.decode, self.config.encode)
            method_batcher = MethodBatcher(
                name, described, handler, self.pool, options, converters, self._observers
            )
            await self._tasks.start(method_batcher.run, self._enter)
            self.method_batchers[method] = method_batcher
            return method_batcher

    async def mend_batchers(self) -> None:
        """Replaces the batchers that broke by new ones.

        Raises:
            Exception: A policy raised this when it was made.
        """
        for method, method_batcher in [*self.method_batchers.items()]:
            if method_batcher.batcher.failure is not None:
                del self.method_batchers[method]
                await self.method_batcher(method)

    def configure_batchers(self, config: BackendConfig) -> None:
        """Applies another config to all batchers, or to none if one of them refuses it.

        Raises:
            TypeError: An option has the wrong type; nothing is changed.
            ValueError: An option does not fit the code; nothing is changed.
        """
        done: list[MethodBatcher] = []
        converters = loaded_converters(config.decode, config.encode)
        try:
            for method_batcher in self.method_batchers.values():
                method_batcher.configure(self.batch_options(method_batcher.method, config))
                done.append(method_batcher)
        except BaseException:
            for method_batcher in done:
                method_batcher.configure(self.batch_options(method_batcher.method, self.config))
            raise
        for method_batcher in done:
            method_batcher.convert_with(converters)
        self.config = config

    async def close_batchers(self, *, at_once: bool) -> None:
        """Closes all batchers, once their queued requests have been answered.

        Args:
            at_once: Whether to fail the queued requests instead.
        """
        self.is_closing = True
        async with self._opening:
            pass  # a batcher that was being opened is in the dict now
        async with anyio.create_task_group() as tasks:
            for method_batcher in self.method_batchers.values():
                tasks.start_soon(partial(method_batcher.close, at_once=at_once))

    def statistics(self) -> Iterator[BatcherStatistics]:
        """Yields the statistics of each batcher."""
        for method_batcher in self.method_batchers.values():
            yield method_batcher.batcher.statistics()

    @property
    def queued(self) -> int:
        """The number of queued requests."""
        return sum([each.queued + each.parked for each in self.statistics()])

    @property
    def running(self) -> int:
        """The number of requests in running batches."""
        return sum([each.running for each in self.statistics()])

    def batch_options(self, method: Method, config: BackendConfig) -> dict[str, Any]:
        """Returns the options that the batcher of a method has with some config.

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
        # A slot for each batch that the replicas may have; the pool knows how many they can take.
        slots = max(1, self.supervisor.wanted) * config.slots(
            method.batched, gathers=method.gathers
        )
        return {**options, "max_concurrent_batches": None if slots == math.inf else int(slots)}

    def resize_batchers(self) -> None:
        """Sets the batchers' ``max_concurrent_batches`` to fit the wanted number of replicas."""
        for method_batcher in self.method_batchers.values():
            options = self.batch_options(method_batcher.method, self.config)
            method_batcher.batcher.configure(
                max_concurrent_batches=options["max_concurrent_batches"]
            )

    @property
    def failure(self) -> BaseException | None:
        """Why a batcher broke, or why no replica can be started; None if neither has happened."""
        broken = [
            method_batcher.batcher.failure for method_batcher in self.method_batchers.values()
        ]
        return next(filter(None, broken), self.pool.failure)

    @property
    def ongoing(self) -> int:
        """The number of requests in replicas."""
        return sum([managed.ongoing for managed in self.supervisor.managed])

    def _make(self, tag: str, number: int, config: BackendConfig) -> Replica:
        self.definition.check_allowed()
        replica = placement_of(config.placement)(
            Blueprint(
                identity=Identity(self.tag, tag, config.most_requests),
                number=number,
                definition=self.definition,
                user_config=config.user_config,
                options=config.replica,
                placement_options=config.for_placement(),
                devices=self.devices.take(tag, config),
            )
        )
        self._prepare(replica)
        return replica

    def log_oddity(self) -> None:
        """Logs a warning about options that are allowed but probably a mistake."""
        description = self.supervisor.description
        if description is None:
            return
        oddity = self.config.oddity(description.method(CALL).batched)
        before, self._logged_oddity = self._logged_oddity, oddity
        if oddity is not None and oddity != before:
            logger.warning("%s: %s", self.tag, oddity)
