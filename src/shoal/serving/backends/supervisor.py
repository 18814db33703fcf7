"""The supervisor: keeps the wanted number of a backend's replicas running.

After every event (a replica became ready or died, the wanted number changed, all are to be
replaced) it passes the state of all replicas to `core.replicas.life`, which decides which to
start and which to drain. `Restarts` decides when to try again after a failure. The
supervisor carries these decisions out. Callers can wait for the first replica, any, or all.
"""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import anyio

from shoal.batching.current import Identity
from shoal.core.replicas.life import LifeState, Seen, decide
from shoal.errors import BatcherClosed, NotAllowed
from shoal.failures.held import held
from shoal.serving.backend_config import BackendConfig, same_user_config
from shoal.serving.backend_options import DEFAULTS
from shoal.serving.backends.managed import (
    ManagedReplica,
    NotMade,
    ReplicaFailures,
    may_wear_out,
    worn_out,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator

    from anyio.abc import TaskGroup

    from shoal.replicas.code.instance import Description
    from shoal.replicas.contract import Replica
    from shoal.serving.backends.pool import Pool, PoolMember
    from shoal.serving.devices import Devices


logger: Final = logging.getLogger("shoal.serving")

_STALE: Final = -1
"""The version of a replica that is to be replaced by one of the same kind."""


class Supervisor:
    def __init__(
        self,
        name: str,
        make: Callable[[str, int, BackendConfig], Replica],
        pool: Pool,
        config: BackendConfig,
        start_task: Callable[..., None],
        devices: Devices,
        enter: Callable[[], object] = lambda: None,
    ) -> None:
        self.config = config
        self.wanted = config.num_replicas
        self.managed: list[ManagedReplica] = []  # in any state
        # of their code; None until a replica has been ready
        self.description: Description | None = None
        self.failures = ReplicaFailures(name)
        self._name = name
        self._make = make
        self._pool = pool
        self._start_task = start_task
        self._devices = devices
        self._enter = enter  # called first in each replica's task
        self._version = 0
        self._versions = count(1)
        self._numbers = count()  # of all replicas ever made, for their tags
        # Until when failed starts are no reason to give up: model servers may still be starting.
        self.waits_until = -math.inf
        self._change = anyio.Event()
        self._is_draining = self._is_ending = self._is_over = self._is_first_awaited = False
        # During a change: the replicas from before it, and why a new one failed.
        self._before_change: list[ManagedReplica] | None = None
        # By the address of a model server, as are the times until which one may take to return.
        self._logged: dict[str, tuple[int, str]] = {}
        self._return_by: dict[str, float] = {}
        self._lost: Exception | None = None

    def scale(self, wanted: int) -> None:
        if wanted != self.wanted and not self._is_ending:
            logger.info("%s: from %d replicas to %d", self._name, self.wanted, wanted)
            self.wanted = wanted
            self.reconcile()

    def follow(self, addresses: Collection[str], *, is_news: bool = True) -> None:
        if self._is_ending:
            return
        if is_news:
            self.waits_until = anyio.current_time() + (
                self.config.replica.start_timeout_s or math.inf
            )
        there = {managed.replica.blueprint.address for managed in self.managed}
        if is_news and not there.issuperset(addresses):
            self.failures.forget(self.failures.last)  # a new address need not wait for others
        for managed in tuple(self.managed):
            address = managed.replica.blueprint.address
            if address in addresses or (self._before_change and not address):
                continue  # those of another placement end with the change
            managed.is_to_end = True
            if not (managed.life.was_asked_to_end or managed.life.is_over):
                self._retire(managed)
        self.wanted = len(addresses)
        self.reconcile()

    @contextmanager
    def keeping_ready(self) -> Generator[None]:
        """Keeps the ready replicas while the block runs, and only these if it fails."""
        config, version, wanted = self.config, self._version, self.wanted
        failure = self.failures.last
        self._before_change = there = list(self.managed)
        were = [(managed, managed.version, managed.config) for managed in there]
        self._lost = None
        self.failures.forget(failure)
        for managed in there:
            if managed.life.state is LifeState.NEW:
                managed.version = _STALE  # it waits for a restart delay; a new one need not
        try:
            self.reconcile()
            yield
        except BaseException:
            # As many model servers are wanted as were found last.
            is_followed = config.is_remote and self.config.is_remote
            self.config, self._version = config, version
            self.failures.forget(failure)
            if not (self._is_ending or is_followed):
                self.wanted = wanted
            for managed, its_version, its_config in were:
                if managed.life.is_ready:  # the change may have set these
                    managed.version, managed.config = its_version, its_config
            for managed in self.managed:
                if managed not in there and managed.made_with is not config:
                    managed.version = _STALE
            raise
        finally:
            self._before_change = None
            self.reconcile()

    def replace(self, config: BackendConfig, wanted: int) -> None:
        self.config, self.wanted = config, wanted
        self._version = next(self._versions)
        self.reconcile()

    def adopt(self, config: BackendConfig) -> None:
        self.config = config
        for managed in self.managed:  # also those that are starting with another user config
            if not same_user_config(managed.config, config):
                managed.version = _STALE
            if managed.life.is_ready:
                managed.config = config
        if self.description is not None:
            self._pool.resize(*self._limits(self.description))
        self.reconcile()

    def notify_draining(self) -> None:
        """Notifies the code of all replicas, present and future, that the backend will end."""
        self._is_draining = True
        for managed in self.managed:
            if managed.member is not None:
                managed.notify_draining()

    def _on_batch_ended(self, member: PoolMember) -> None:
        managed = next((k for k in self.managed if k.member is member), None)
        if managed is None or managed.is_being_replaced:
            return
        if (reason := worn_out(managed, member.total, self.config)) is not None:
            self._replace_one(managed, f"it {reason}")

    def _replace_one(self, managed: ManagedReplica, reason: str) -> None:
        """Starts a replica in the place of a ready one, which works until that one is ready."""
        if managed.is_being_replaced or not managed.life.is_ready:
            return
        logger.info("%s: is replaced, since %s", managed.replica.tag, reason)
        managed.is_being_replaced = True
        self.reconcile()

    async def end(self) -> None:
        self.wanted = 0
        self._is_ending = True
        self._wake()
        self.reconcile()
        while self.managed:
            await self._change.wait()

    @property
    def ready(self) -> list[ManagedReplica]:
        return [managed for managed in self.managed if managed.life.is_ready]

    async def settle(self) -> None:
        """Waits, during a change, for the wanted number of replicas of this version."""
        while self._lost is None and not self._is_complete():
            self._check_goes_on()
            await self._change.wait()
        self._check_goes_on()
        if self._lost is not None:
            raise self.failures.not_started(self._lost)

    async def wait_retired(self) -> None:
        """Waits until unwanted replicas have ended, or the backend is closing."""
        while self._has_others() and not (self._is_ending or self._is_over):
            await self._change.wait()

    async def wait_restored(self, count: int) -> None:
        """Waits, after a failed change, for the `count` replicas from before it."""
        # A dead replica's replacement is waited for only while starts succeed.
        while (len(self.ready) < min(count, self.wanted) and not self.failures.is_open) or any(
            managed.version != self._version for managed in self.managed
        ):
            self._check_goes_on()
            await self._change.wait()

    async def wait_first_ready(self) -> None:
        """Raises `ReplicaNotStarted`, and keeps it out of the log, if no replica starts."""
        while self.description is None:
            self._check_goes_on()
            if self._none_started():
                raise self.failures.not_started(self.failures.last)
            self._is_first_awaited = True
            is_waiting = anyio.current_time() < self.waits_until
            if not is_waiting and not self.managed:
                self._pool.check_available()  # there is no model server
            with anyio.CancelScope(deadline=self.waits_until if is_waiting else math.inf):
                await self._change.wait()

    async def wait_description(self) -> Description:
        """Raises `BackendUnavailable` if none was ready, and none can be started."""
        while self.description is None:
            await self._may_wait()
        return self.description

    async def wait_any_ready(self) -> ManagedReplica:
        """Raises `BackendUnavailable` if no replica is ready, and none can be started."""
        while not (ready := self.ready):
            await self._may_wait()
        return ready[0]

    def note_over(self) -> None:
        self._is_over = True
        self._wake()

    def reconcile(self) -> None:
        """Starts missing replicas, and retires unwanted ones."""
        if self._is_over:
            return  # a replica started now would be cancelled, and that would start another one
        self._pool.on_batch = self._on_batch_ended if may_wear_out(self.config) else None
        seen = [
            Seen(i, _STALE if k.is_being_replaced else k.version, k.life.state, k.ongoing)
            for i, k in enumerate(self.managed)
        ]
        keeps_ready = self._before_change is not None and not self._is_ending
        places = self._devices.places(self.config)
        decision = decide(seen, self.wanted, self._version, keeps_ready=keeps_ready, places=places)
        to_drain = [self.managed[i] for i in decision.drain]
        for _ in range(decision.start):
            self._start()
        for managed in to_drain:
            self._retire(managed)

    def _start(self) -> None:
        # A replica of an older version may still have the number that this one gets.
        same = [managed for managed in self.managed if managed.version == self._version]
        taken = {managed.replica.blueprint.number for managed in same}
        number = next(number for number in count() if number not in taken)
        managed = ManagedReplica(self._made(number), self.config, self._version)
        managed.replica.on_leaving = partial(self._replace_one, managed)
        self.managed.append(managed)
        delay_s = self.failures.record_start()
        self._start_task(
            self._manage, managed, delay_s, name=f"shoal replica {managed.replica.tag}"
        )

    def _made(self, number: int) -> Replica:
        tag = f"{self._name}#{next(self._numbers)}"
        try:
            return held(self._make, "the placement")(tag, number, self.config)
        except Exception as error:  # the placement could not make the replica
            return NotMade(Identity(self._name, tag), number, error)

    def _retire(self, managed: ManagedReplica) -> None:
        managed.life.on("drain")
        managed.is_to_end = True
        if managed.member is None:
            managed.abandon()
            return
        self._pool.withdraw(managed.member)
        grace_s = managed.config.batching.get(
            "graceful_shutdown_timeout_s", DEFAULTS.graceful_shutdown_timeout_s
        )
        name = f"shoal drain {managed.replica.tag}"
        self._start_task(managed.stop_when_idle, self._pool, grace_s, name=name)

    async def _manage(self, managed: ManagedReplica, delay_s: float) -> None:
        self._enter()
        try:
            async with anyio.create_task_group() as tasks:
                await managed.run(delay_s, partial(self._on_started, tasks, managed))
        except BaseException:  # this task is being cancelled, and so are all of them
            self._is_over = True
            raise
        finally:
            self._on_ended(managed)

    def _on_started(
        self, tasks: TaskGroup, managed: ManagedReplica, description: Description
    ) -> None:
        if not description.checks_health:
            self._on_ready(managed, description)
        tasks.start_soon(managed.checks.run, self._watch, managed, description)

    async def _watch(self, managed: ManagedReplica, description: Description) -> None:
        if description.checks_health:
            if not await managed.passes_first_check():
                return
            self._on_ready(managed, description)
        await managed.watch_health(self._on_unhealthy)

    def _on_ready(self, managed: ManagedReplica, description: Description) -> None:
        if self.config.is_remote and not _alike(self.description or description, description):
            managed.kill("it has other methods than before; restart this server as well")
            return
        managed.ready_at = now = anyio.current_time()
        self.failures.record_ready(None if managed.began_at is None else now - managed.began_at)
        self._logged.pop(managed.replica.blueprint.address, None)
        self._return_by.pop(managed.replica.blueprint.address, None)
        if not managed.life.was_asked_to_end:
            managed.life.on("ready")
            self.description = self.description or description
            managed.config = self.config
            managed.member = self._pool.add(managed.replica, *self._limits(description))
            if self._is_draining:
                managed.notify_draining()
        self.reconcile()
        self._wake()

    def _on_unhealthy(self, managed: ManagedReplica) -> None:
        assert managed.member is not None
        self._pool.withdraw(managed.member)
        self.reconcile()
        self._wake()

    def _on_ended(self, managed: ManagedReplica) -> None:
        self.managed.remove(managed)
        managed.replica.on_leaving = None  # a reference cycle, which only a collection would free
        self._devices.release(managed.replica.tag)
        if managed.member is not None:
            self._pool.withdraw(managed.member)
        if managed.failure is not None and not self._is_over:  # when over, all are cancelled
            is_replaced = self.wanted > 0 and not managed.is_to_end
            self.failures.record_failure(managed, is_replaced=is_replaced)
            if not (self._is_first_awaited and self._none_started()):  # it is raised then
                self._log(managed)
            if self._before_change is not None and managed not in self._before_change:
                self._lost = managed.failure if self._lost is None else self._lost
            if self.failures.is_open and not self.ready:
                self._pool.fail(managed.failure)
        self.reconcile()
        self._wake()

    def _log(self, managed: ManagedReplica) -> None:
        address = managed.replica.blueprint.address
        why = str(managed.failure).replace(managed.replica.tag, "")
        now, cause = anyio.current_time(), getattr(managed.failure, "__cause__", None)
        level = logging.ERROR
        if managed.replica.is_leaving:
            level = logging.INFO
            self._return_by[address] = now + (self.config.replica.start_timeout_s or math.inf)
        elif isinstance(cause, OSError) and not isinstance(cause, NotAllowed):
            may_come_until = max(self.waits_until, self._return_by.get(address, now))
            level = logging.INFO if now < may_come_until else level
        if address and self._logged.get(address) == (level, why):
            return
        self._logged[address] = level, why
        logger.log(level, "%s: %s", managed.replica.tag, managed.failure)

    def _limits(self, description: Description) -> tuple[float, int | None]:
        code = description.methods["__call__"]
        slots = self.config.slots(code.batched, gathers=code.gathers)
        return slots, self.config.max_ongoing_requests

    def _none_started(self) -> bool:
        if anyio.current_time() < self.waits_until:
            return False
        has_failed = self.failures.start_failures >= self.config.num_replicas
        return has_failed and self.description is None

    async def _may_wait(self) -> None:
        self._check_goes_on()
        self._pool.check_available()
        await self._change.wait()

    def _check_goes_on(self) -> None:
        if self._is_ending or self._is_over:
            raise BatcherClosed(f"the backend {self._name} is closed")

    def _is_complete(self) -> bool:
        return sum(managed.version == self._version for managed in self.ready) >= self.wanted

    def _has_others(self) -> bool:
        # Worn-out replicas do not count: in a busy backend some may always be draining.
        return any(
            not managed.life.is_over
            and (
                managed.version != self._version
                or (managed.life.was_asked_to_end and not managed.is_being_replaced)
            )
            for managed in self.managed
        )

    def _wake(self) -> None:
        self._change.set()
        self._change = anyio.Event()


def _alike(one: Description, other: Description) -> bool:
    forms, others = _forms(one), _forms(other)
    return all(forms[name] == others[name] for name in forms.keys() & others.keys())


def _forms(description: Description) -> dict[str, Any]:
    # Not the defaults and annotations, which may be of any class, and may not be comparable.
    return {
        name: (
            method.streams,
            method.batched,
            [(one.name, one.kind) for one in method.signature.parameters.values()],
        )
        for name, method in description.methods.items()
    }
