"""One managed replica: its task, the state of its life, its health checks, and its end.

A replica that its placement could not make is represented by one that fails to start (`NotMade`).
A replica is worn out, and is replaced, after ``max_batches_per_replica`` batches or with more
memory than ``max_memory_bytes``. `ReplicaFailures` counts starts and failures of a backend's
replicas, and gives the delay of restarts.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.lowlevel
from anyio.abc import TaskStatus

from shoal.core.histogram import TIME_BOUNDS_S, Histogram
from shoal.core.replicas.life import LONGEST_S, LifeState, ReplicaLife, Restarts
from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.failures.exceptions import must_propagate
from shoal.failures.held import held, shown
from shoal.loops.this_loop import parking_of_this_loop
from shoal.replicas.code.definition import Definition
from shoal.replicas.contract import Blueprint, Replica
from shoal.replicas.scopes import Beside

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.batching.current import Identity
    from shoal.replicas.code.instance import Description
    from shoal.serving.backend_config import BackendConfig
    from shoal.serving.backends.pool import Pool, PoolMember
    from shoal.status import ReplicaState


T = TypeVar("T")

logger: Final = logging.getLogger("shoal.serving")

_UNHEALTHY_AFTER: Final = 3
"""How many health checks in a row must fail before a replica is replaced, as in Ray Serve."""

_STATUS: Final[dict[LifeState, ReplicaState]] = {
    LifeState.NEW: "starting",
    LifeState.STARTING: "starting",
    LifeState.READY: "ready",
    LifeState.DRAINING: "draining",
}

_RECONNECT_S: Final = 2.0
"""The longest pause before a model server is tried again: a start is only a connection then."""

_MARGIN_S: Final = 5.0
"""How long a replica may take to end, beyond its ``cancel_grace_s``, before it is abandoned."""


class ManagedReplica:
    def __init__(self, replica: Replica, config: BackendConfig, version: int) -> None:
        self.replica = replica
        self.made_with = config  # the config that it was started with
        self.config = config
        self.version = version  # differs from the backend's if it is to be replaced
        # Another one starts in its place; it works until that one is ready.
        self.is_being_replaced = False
        # None starts in its place. `life` does not show this once it has died.
        self.is_to_end = False
        self.life = ReplicaLife()
        self.member: PoolMember | None = None  # None until it is ready
        self.failure: Exception | None = None  # None if it was asked to end
        self.began_at: float | None = None  # when its start began, on the loop's clock
        self.ready_at: float | None = None
        self.checks = Beside()
        self._scope = anyio.CancelScope()
        self._ended = anyio.Event()

    @property
    def ongoing(self) -> int:
        return 0 if self.member is None else self.member.requests

    async def run(self, delay_s: float, on_started: Callable[[Description], None]) -> None:
        """Starts the replica, and runs until it has ended. Cancellation ends it at once."""
        try:
            with self._scope:
                await anyio.sleep(delay_s)
                self.began_at = anyio.current_time()
                self.life.on("start")
                await self.replica.serve(task_status=_ReadyStatus(on_started))
        except (ReplicaDied, ReplicaNotStarted) as error:
            # The traceback's frames would keep this object and the replica's objects alive.
            self.failure = error.with_traceback(None)
        except BaseException as error:  # an error in a placement must not end other replicas
            if must_propagate(error, parking_of_this_loop()):
                raise
            self.failure = self._explained(f"it ended with {shown(error)}")
            self.failure.__cause__ = error
        finally:
            self._end()

    @property
    def state(self) -> ReplicaState:
        return _STATUS.get(self.life.state, "stopping")

    def _end(self) -> None:
        self._ended.set()
        self.checks.end()
        life = self.life
        if not life.is_over:
            life.on("ended")
        if life.state in (LifeState.FAILED, LifeState.DIED):
            if self.failure is None:
                self.failure = self._explained("it ended without being asked to")
        else:
            self.failure = None

    def _explained(self, what: str) -> Exception:
        if self.ready_at is not None:
            return ReplicaDied(f"{self.replica.tag}: {what}", replica=self.replica.tag)
        return ReplicaNotStarted(f"{self.replica.tag}: {what}")

    async def passes_first_check(self) -> bool:
        """Kills a replica that has just started and is not healthy."""
        trouble = await self.trouble()
        if trouble is None:
            return True
        if not self._ended.is_set():
            self.kill(f"its first health check failed: {trouble}")
            await self.give_up()
        return False

    async def watch_health(self, on_unhealthy: Callable[[ManagedReplica], None]) -> None:
        failures = 0
        while True:
            await anyio.sleep(self.config.health_check_period_s)
            if not self.life.is_ready:
                return
            trouble = await self.trouble()
            if self.replica.is_leaving:
                return  # it takes no more calls, and ends when its work has finished
            failures = 0 if trouble is None else failures + 1
            if trouble is not None and self.replica.takes_work:  # else its end is logged
                logger.warning("%s: a health check failed: %s", self.replica.tag, trouble)
            if failures == _UNHEALTHY_AFTER and not self.life.is_over:
                self.life.on("unhealthy")
                # before the kill, which may take long
                on_unhealthy(self)
                self.kill(f"{failures} health checks failed, the last with {trouble}")
                await self.give_up()
                return

    async def trouble(self) -> str | None:
        """Checks its health; returns what is wrong, or None if it is healthy."""
        timeout_s = self.config.health_check_timeout_s
        try:
            with anyio.fail_after(timeout_s):
                await self.replica.check_health()
        except TimeoutError as error:
            return shown(error, str) or f"no answer within {timeout_s:g} s"
        except Exception as error:
            return shown(error)
        return None

    def kill(self, reason: str) -> None:
        self._tell(self.replica.kill, reason)

    def notify_draining(self) -> None:
        self._tell(self.replica.drain)

    def memory_bytes(self) -> int | None:
        """Returns the memory of its process; None if it is unknown."""
        return self._tell(self.replica.memory_bytes)

    def _tell(self, method: Callable[..., T], *args: Any) -> T | None:
        """Calls a method of a placement; an exception of it is logged, and fails nothing else."""
        try:
            return held(method)(*args)
        except Exception:
            logger.exception("%s: %s() raised", self.replica.tag, method.__name__)
        return None

    def abandon(self) -> None:
        self._scope.cancel()

    async def stop_when_idle(self, pool: Pool, grace_s: float) -> None:
        """Ends it after its batches; those that run after `grace_s` fail."""
        assert self.member is not None
        with anyio.move_on_after(grace_s) as waiting:
            await pool.wait_idle(self.member)
        if self.life.is_over:
            return
        self.life.on("stop")
        if waiting.cancelled_caught:
            self.kill(f"its work did not end within {grace_s:g} s")
        else:
            self._tell(self.replica.stop)
        await self.give_up()

    async def give_up(self) -> None:
        """Waits for the end of a stopping replica; kills and abandons it if needed."""
        with anyio.move_on_after(self.config.replica.cancel_grace_s + _MARGIN_S):
            await self._ended.wait()
            return
        logger.error("%s: did not end in time, and is abandoned", self.replica.tag)
        self.kill("it did not end when it was asked to")
        self._scope.cancel()
        with anyio.move_on_after(_MARGIN_S):
            await self._ended.wait()


class _ReadyStatus(TaskStatus["Description"]):
    """The task status by which `Replica.serve` reports that the replica is ready."""

    # A nursery's `start` would return one pass of the scheduler later, when the replica may have
    # died, and would wrap the exceptions of `serve` in a group.

    def __init__(self, on_started: Callable[[Description], None]) -> None:
        self._on_started = on_started

    def started(self, value: Any = None) -> None:
        self._on_started(value)


class NotMade(Replica):
    def __init__(self, identity: Identity, number: int, cause: Exception) -> None:
        super().__init__(Blueprint(identity=identity, definition=Definition(None), number=number))
        self._cause = cause

    async def serve(self, *, task_status: TaskStatus[Description]) -> None:
        await anyio.lowlevel.checkpoint()
        raise ReplicaNotStarted(
            f"{self.tag}: its placement could not make it: {self._cause!r}"
        ) from self._cause

    def stop(self) -> None: ...

    def kill(self, reason: str) -> None: ...

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise ReplicaDied(f"{self.tag} never ran", replica=self.tag)

    run = run_stream = reconfigure = check_health = _refuse


def may_wear_out(config: BackendConfig) -> bool:
    return config.max_batches_per_replica is not None or "max_memory_bytes" in config.placed


def worn_out(managed: ManagedReplica, batches: int, config: BackendConfig) -> str | None:
    most, cap = config.max_batches_per_replica, config.placed.get("max_memory_bytes")
    if most is not None and batches >= most:
        return f"has run {batches} batches"
    memory = None if cap is None else managed.memory_bytes()
    if cap is not None and memory is not None and memory > cap:
        return f"has {memory} bytes of memory, more than max_memory_bytes={cap}"
    return None


class ReplicaFailures:
    def __init__(self, name: str) -> None:
        self.starts = self.deaths = self.restarts = self.start_failures = 0
        self.start_s = Histogram(TIME_BOUNDS_S)
        # The last failure; None once another replica is ready. The death of a replica that was
        # ending anyway does not set it.
        self.last: Exception | None = None
        self._name = name
        self._restarts = Restarts()

    @property
    def is_open(self) -> bool:
        """Whether starts failed so often that callers should not wait for one."""
        return self._restarts.is_open

    def record_start(self) -> float:
        self.starts += 1
        return max(0.0, self._restarts.next_at - anyio.current_time())

    def forget(self, last: Exception | None) -> None:
        """Removes the delay of the next start, since the config has changed."""
        self._restarts.forget()
        self.last = last

    def record_ready(self, took_s: float | None) -> None:
        if took_s is not None:
            self.start_s.gather((took_s,))
        self._restarts.started(anyio.current_time())
        self.last = None

    def record_failure(self, managed: ManagedReplica, *, is_replaced: bool) -> None:
        """`is_replaced`: whether another replica starts in its place, or already has."""
        if is_replaced or managed.ready_at is None:
            self.last = managed.failure
        now = anyio.current_time()
        is_remote = bool(managed.replica.blueprint.address)
        self._restarts.longest_s = _RECONNECT_S if is_remote else LONGEST_S
        point = random.random()  # noqa: S311 - spreads restarts in time
        if managed.ready_at is not None:
            self.deaths += not managed.replica.is_leaving
            self.restarts += is_replaced
            self._restarts.died(now, point, ready_at=managed.ready_at)
        else:
            self.start_failures += 1
            self._restarts.failed(now, point, began_at=managed.began_at)

    def not_started(self, cause: Exception | None) -> ReplicaNotStarted:
        if isinstance(cause, ReplicaNotStarted):
            return cause
        failure = ReplicaNotStarted(f"no replica of {self._name} could be started: {cause}")
        failure.__cause__ = cause
        return failure
