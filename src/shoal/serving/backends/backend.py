"""A backend: user code with a config, its batchers, and the replicas that run their batches.

::

    request > queue (of a batcher) > batch > pool > replica
          dispatched when a replica is idle ^

Each method that has been called has its own batcher.

The batchers, the pool and the supervisor depend on each other in two ways only: the pool is the
batchers' `Capacity`, and the supervisor adds replicas to the pool and withdraws them.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.current import Identity
from shoal.batching.options import with_held_functions
from shoal.core.replicas.autoscaling import Autoscaler, AutoscalingOptions
from shoal.errors import BatcherClosed, NoSuchName
from shoal.failures.held import shown
from shoal.replicas.contract import Blueprint, Replica
from shoal.replicas.placements import placement_name, placement_of
from shoal.serving.backend_options import loaded_converters, unset_batch_options
from shoal.serving.backends.membership import Membership
from shoal.serving.backends.method_batcher import MethodBatcher, closed_handler, open_handler
from shoal.serving.backends.models import LOAD, UNLOAD, ModelLoader, model_states
from shoal.serving.backends.pool import Pool
from shoal.serving.backends.supervisor import Supervisor
from shoal.status import BackendState, BackendStatus, ReplicaStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from anyio.abc import TaskGroup, TaskStatus

    from shoal.core.counters import BatcherStatistics
    from shoal.core.events import Observers
    from shoal.core.options.records import Models
    from shoal.replicas.code.definition import Definition
    from shoal.replicas.code.instance import Description, Method
    from shoal.serving.backend_config import BackendConfig
    from shoal.serving.devices import Devices


class Scaling:
    """The autoscaling of one backend: a task that runs only while it is configured."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._scope: anyio.CancelScope | None = None
        self._options: AutoscalingOptions | None = None
        self._woken = anyio.Event()

    def wake(self) -> None:
        """Decides now if no replica is wanted; called when a batch is due."""
        if not self._backend.supervisor.wanted:
            self._woken.set()

    def configure(self, options: AutoscalingOptions | None) -> None:
        if options == self._options:
            return
        self._options = options
        if self._scope is not None:
            self._scope.cancel()
            self._scope = None
        if options is not None:
            self._scope = anyio.CancelScope()
            self._backend.start_task(self._run, options, self._scope)

    async def _run(self, options: AutoscalingOptions, scope: anyio.CancelScope) -> None:
        scaler = Autoscaler(options)
        with scope:
            while True:
                now = anyio.current_time()
                # A request that was refused since there was no replica is no longer in the queue.
                queued = max(self._backend.queued, self._woken.is_set())
                scaler.observe(now, queued, self._backend.ongoing)
                self._woken = anyio.Event()
                wanted = scaler.decide(now, self._backend.supervisor.wanted)
                if self._backend.supervisor.description is None:
                    wanted = max(wanted, 1)  # the first one shows what the code is
                if wanted != self._backend.supervisor.wanted:
                    self._backend.scale_by_load(wanted)
                with anyio.move_on_after(options.metrics_interval_s):
                    await self._woken.wait()


CALL: Final = "__call__"

logger: Final = logging.getLogger("shoal.serving")


class Backend:
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
        self.change_lock = anyio.Lock()  # held while the config changes
        self.method_batchers: dict[str, MethodBatcher] = {}
        self.is_closing = False
        self.on_closing: set[Callable[[], object]] = set()  # called when it begins to close
        self._enter = enter  # called first in each task in which the code may run
        self._observers = observers
        self.devices = devices
        self._prepare = prepare  # called with each replica before it starts
        self._opening = anyio.Lock()
        self._logged_oddity: str | None = None
        self._scaling = Scaling(self)
        self.pool = Pool(tag, self._scaling.wake)
        self.models = ModelLoader(
            self.pool, self.start_task, self._code_unloads, self._models_options
        )
        self.supervisor = Supervisor(
            tag, self._make, self.pool, config, self.start_task, devices, enter
        )
        self.membership = Membership(tag, self.pool, self.supervisor, self.start_task)
        self._ended = anyio.Event()
        self._drain_scope = anyio.CancelScope()
        self.gone = anyio.Event()  # set when it was deleted, and its tag is free again

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                if self.config.is_remote:
                    await self.membership.begin(self.config)
                self.supervisor.reconcile()
                self._scaling.configure(self.config.autoscaling)
                task_status.started()
                await anyio.sleep_forever()  # until `close` cancels it
        finally:
            self.supervisor.note_over()
            self._ended.set()

    async def wait_ready(self) -> None:
        """Waits until a replica is ready and calls are accepted."""
        await self.supervisor.wait_first_ready()
        await self.method_batcher(CALL)
        self.log_oddity()

    def adopt(self, config: BackendConfig) -> None:
        """Applies a config; if that raises, the caller applies the one from before."""
        converters = loaded_converters(config.decode, config.encode)
        for method_batcher in self.method_batchers.values():
            options = self.batch_options(method_batcher.method, config)
            method_batcher.configure(options, converters)
        self.config = config
        self.forget_results()
        self.supervisor.adopt(config)
        self._scaling.configure(config.autoscaling)
        self.membership.configure(config)
        self.log_oddity()

    def forget_results(self) -> None:
        """Empties the result caches, since other replicas may now give other results."""
        for method_batcher in self.method_batchers.values():
            method_batcher.forget_results()

    def set_wanted(self, num_replicas: int) -> None:
        self.supervisor.scale(num_replicas)
        for method_batcher in self.method_batchers.values():
            options = self.batch_options(method_batcher.method, self.config)
            limit = options["max_concurrent_batches"]
            method_batcher.batcher.configure(max_concurrent_batches=limit)

    def scale_by_load(self, num_replicas: int) -> None:
        # GPUs limit it.
        places = self.devices.places(self.config)
        if places is not None:
            there = len(self.supervisor.managed) + places
            num_replicas = min(num_replicas, max(there, self.supervisor.wanted, 1))
        self.set_wanted(num_replicas)

    def drain(self) -> None:
        """Stops batches from waiting to fill, and notifies the code that the backend will end."""
        for method_batcher in self.method_batchers.values():
            method_batcher.batcher.drain()
        self.supervisor.notify_draining()

    async def close(self) -> None:
        # Cancellation ends the backend at once, and does not wait until it has ended.
        self.is_closing = True
        for notify in tuple(self.on_closing):
            notify()
        self.supervisor.notify_draining()
        self._scaling.configure(None)
        self.membership.end()
        try:
            with self._drain_scope:
                async with self._opening:
                    pass  # a batcher that was being opened is in the dict now
                async with anyio.create_task_group() as tasks:
                    for method_batcher in self.method_batchers.values():
                        tasks.start_soon(method_batcher.batcher.aclose)
                await self.supervisor.end()
        finally:
            self._tasks.cancel_scope.cancel()
        await self._ended.wait()

    def end_at_once(self) -> None:
        """Lets `close` stop waiting for requests."""
        self._drain_scope.cancel()

    def start_task(
        self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any, name: object = None
    ) -> None:
        self._tasks.start_soon(function, *args, name=name)

    async def method_batcher(self, method: str) -> MethodBatcher:
        described = (await self.supervisor.wait_description()).method(method)
        async with self._opening:
            if (method_batcher := self.method_batchers.get(method)) is not None:
                return method_batcher
            if self.is_closing:
                raise BatcherClosed(f"the backend {self.tag} is closed")
            if method in (LOAD, UNLOAD) and self._models_options() is not None:
                raise NoSuchName(f"{method} of {self.tag} is called by the server only")
            if self.config.fill == "closed":
                retries = lambda: self.config.retries  # noqa: E731 - as it is at each death
                handler = closed_handler(self.tag, described, self.pool, retries, self.models)
            else:
                if self.config.fill == "continuous":
                    self._check_continuous(await self.supervisor.wait_description())
                managed = await self.supervisor.wait_any_ready()
                binding = managed.replica.open_binding(method)
                fill, streams = self.config.fill, self.config.streams
                handler = open_handler(self.pool, method, fill, streams, binding)
            options = self.batch_options(described, self.config)
            name = self.tag if method == CALL else f"{self.tag}/{method}"  # no tag has a slash
            converters = loaded_converters(self.config.decode, self.config.encode)
            method_batcher = MethodBatcher(
                name, described, handler, self.pool, options, converters, self._observers
            )
            config, wanted = self.config, self.supervisor.wanted
            await self._tasks.start(method_batcher.run, self._enter)
            self.method_batchers[method] = method_batcher
            # Entering `open` may take long.
            if self.config is not config or self.supervisor.wanted != wanted:
                converters = loaded_converters(self.config.decode, self.config.encode)
                method_batcher.configure(self.batch_options(described, self.config), converters)
            return method_batcher

    def _check_continuous(self, description: Description) -> None:
        # Or a method would wait for ever for the replica that another one keeps.
        names = [one.name for one in description.methods.values() if one.open_signature is not None]
        if len(names) > 1:
            raise TypeError(
                f"{self.tag}: {', '.join(sorted(names))} take open batches, and with "
                "fill='continuous' a batch keeps its replica; give each a backend of its own"
            )

    def _code_unloads(self) -> bool:
        description = self.supervisor.description
        return description is not None and UNLOAD in description.methods

    def _models_options(self) -> Models | None:
        found: Models | None = self.config.batching.get("models")
        return found

    async def mend_batchers(self) -> None:
        """Replaces broken batchers; raises the errors of the user's policy."""
        for method, method_batcher in [*self.method_batchers.items()]:
            if method_batcher.batcher.failure is not None:
                del self.method_batchers[method]
                await self.method_batcher(method)

    def statistics(self) -> Iterator[BatcherStatistics]:
        for method_batcher in self.method_batchers.values():
            yield method_batcher.batcher.statistics()

    @property
    def queued(self) -> int:
        return sum([each.queued + each.parked for each in self.statistics()])

    @property
    def running(self) -> int:
        return sum([each.running for each in self.statistics()])

    def batch_options(self, method: Method, config: BackendConfig) -> dict[str, Any]:
        description = self.supervisor.description
        if not method.batched and description is not None and description.method(CALL).batched:
            config = config.of_one()
        # A stream to a model server is alone in its message, or its reader would hold up others.
        batched = method.batched and not (config.is_remote and method.streams)
        options = with_held_functions({**unset_batch_options(), **config.batch_options(batched)})
        # A slot for each batch that the replicas may have; the pool knows how many they can take.
        slots = max(1, self.supervisor.wanted) * config.slots(
            method.batched, gathers=method.gathers
        )
        has_limit = slots < math.inf and not config.is_remote  # then the pool has one
        return {**options, "max_concurrent_batches": int(slots) if has_limit else None}

    @property
    def failure(self) -> BaseException | None:
        """Why a batcher broke, or why no replica can be started."""
        for method_batcher in self.method_batchers.values():
            if method_batcher.batcher.failure is not None:
                return method_batcher.batcher.failure
        return self.pool.failure

    @property
    def last_failure(self) -> BaseException | None:
        """Its failure, or else the last one of its replicas."""
        failure = self.failure  # its class may define a truth value
        return self.supervisor.failures.last if failure is None else failure

    @property
    def ongoing(self) -> int:
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
                address=self.membership.address_for_new() if config.is_remote else "",
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

    @property
    def state(self) -> BackendState:
        if self.is_closing:
            return "draining"
        if self.failure is not None:
            return "unavailable"
        supervisor = self.supervisor
        if not supervisor.wanted:
            return "ready"  # a request starts a replica
        if not supervisor.ready:
            failures = supervisor.failures
            return "unavailable" if failures.deaths or failures.restarts else "starting"
        return "degraded" if len(supervisor.ready) < supervisor.wanted else "ready"

    def status(self) -> BackendStatus:
        supervisor = self.supervisor
        failures = supervisor.failures
        failure = self.last_failure
        batchers = list(self.statistics())
        return BackendStatus(
            tag=self.tag,
            code=self.definition.import_path or self.definition.name,
            placement=placement_name(self.config.placement),
            state=self.state,
            wanted=supervisor.wanted,
            replicas=[
                ReplicaStatus(
                    tag=managed.replica.tag,
                    state=managed.state,
                    ongoing=managed.ongoing,
                    batches=0 if managed.member is None else managed.member.total,
                    memory_bytes=managed.memory_bytes(),
                    gpus=managed.replica.blueprint.devices,
                    address=managed.replica.blueprint.address or None,
                    models={} if managed.member is None else model_states(managed.member),
                )
                for managed in supervisor.managed
            ],
            queued=self.queued,
            ongoing=self.ongoing,
            requests=sum(
                [e.finished + e.failed + e.declined + e.cancelled + e.expired for e in batchers]
            ),
            errors=sum([each.failed for each in batchers]),
            starts=failures.starts,
            deaths=failures.deaths,
            restarts=failures.restarts,
            model_loads=self.models.loads,
            model_load_failures=self.models.failures,
            model_unloads=self.models.unloads,
            model_load_s=self.models.load_s,
            failure=None if failure is None else shown(failure, str),
        )
