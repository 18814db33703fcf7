"""A seeded schedule of faults against a controller under load, and what is left of it."""

import gc
import os
import random
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio

from serving.fault_backends import Boom, PlainServed, Served, illness
from serving.fault_load import HANG_S, FaultLoad
from shoal.errors import HandlerTimeout, Overloaded, ReplicaDied, ReplicaNotStarted, WrongBatchSize
from shoal.replicas.contract import Replica
from shoal.replicas.process.replica import ProcessReplica
from shoal.serving.controller.controller import Controller
from shoal.status import BackendStatus

LANES = 2
"""How many faults there are at a time, of different backends."""

BURST = 40
NEIGHBOURS = 10**9


class Code(Protocol):
    """Makes the code of a backend."""

    def __call__(self, ledger: str, work_s: float) -> Any: ...


def shoot(replica: Replica) -> bool:
    """Ends a replica as an accident does; says whether it was there to be ended.

    A process is sent SIGKILL. As long as it has not been reaped no other process can have its id.
    """
    if not isinstance(replica, ProcessReplica):
        replica.kill("it was shot")
        return True
    worker = replica._worker
    if worker is None or worker.ended.is_set():
        return False
    os.kill(worker.pid, signal.SIGKILL)
    return True


class FaultProgram:
    """Aims faults at the backends of a controller while it is under load."""

    def __init__(
        self,
        seed: int,
        faults: int,
        kinds: Collection[tuple[str, Code]],
        ledger: Path,
        *,
        work_s: float = 0.02,
        pause_s: float = 0.02,
    ) -> None:
        self.made: dict[str, int] = {}
        self._random = random.Random(seed)
        self._faults = faults
        self._kinds = list(kinds)
        self._ledger = ledger
        self._work_s = work_s
        self._pause_s = pause_s
        self._next = 0
        self._at_fault: set[str] = set()
        # Those that take traffic away from a backend, and those that send it there, don't meet.
        self._traffic = anyio.Lock()

    async def run(self) -> None:
        """Runs the program, and checks what the callers saw."""
        async with Controller() as self._controller:
            chance = random.Random(self._random.random())
            self.load = FaultLoad(self._controller, chance, self._pause_s)
            self.neighbours = FaultLoad(self._controller, chance, self._pause_s, first=NEIGHBOURS)
            tags = [await self._make(*kind) for kind in self._kinds]
            for kind in self._kinds[:2]:
                await self._make(*kind, is_neighbour=True)
            for number in range(3):
                await self._controller.create_endpoint(f"e{number}", backend=tags[number])
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(self.load.run, f"e{number}", 5)
                for name in list(self._controller.endpoints):
                    if name.startswith("to-n"):
                        tasks.start_soon(self.neighbours.run, name, 3)
                schedule = self._schedule()
                async with anyio.create_task_group() as lanes:
                    for _ in range(LANES):
                        lanes.start_soon(self._aim, schedule)
                self.load.stop()
                self.neighbours.stop()
            status = self._controller.status_now()
        self._check(status.backends)

    def _check(self, backends: Any) -> None:
        load, neighbours = self.load.seen, self.neighbours.seen
        assert load.stray == neighbours.stray == []
        assert load.asked == load.answered + sum(load.blamed.values())
        assert neighbours.asked == neighbours.answered > 0
        # Nothing was run twice, and all that was answered was run.
        ran = [int(line) for line in self._ledger.read_text().split()]
        assert len(ran) == len(set(ran))
        assert {*self.load.numbers, *self.neighbours.numbers} <= set(ran)
        assert sum(self.made.values()) == self._faults
        assert load.clear >= load.asked // 4
        for backend in backends.values():
            assert (backend.queued, backend.ongoing) == (0, 0)

    def _schedule(self) -> list[Callable[[str], Awaitable[None]]]:
        """Returns the faults of the program: of each kind as many, in any order."""
        kinds: list[Callable[[str], Awaitable[None]]] = [
            self._raise,
            self._hang,
            self._give_too_few,
            self._shoot,
            self._start_slowly,
            self._fail_to_start,
            self._be_ill,
            self._fill_the_queue,
            self._change_batching,
            self._change_what_needs_new_replicas,
            self._change_traffic,
            self._scale,
            self._restart,
            self._delete,
        ]
        schedule = [kinds[number % len(kinds)] for number in range(self._faults)]
        self._random.shuffle(schedule)
        return schedule

    async def _aim(self, schedule: list[Callable[[str], Awaitable[None]]]) -> None:
        while schedule:
            kind = schedule.pop()
            async with self._chosen() as tag:
                name = kind.__name__  # type: ignore[attr-defined]
                with anyio.move_on_after(HANG_S) as waiting:
                    await kind(tag)
                assert not waiting.cancelled_caught, (name, self._status(tag))
            self.made[name] = self.made.get(name, 0) + 1

    @asynccontextmanager
    async def _chosen(self) -> AsyncGenerator[str]:
        """Chooses a backend that no other lane is about."""
        tags = [tag for tag in self._controller.backends if tag.startswith("v")]
        tag = self._random.choice([tag for tag in tags if tag not in self._at_fault])
        self._at_fault.add(tag)
        try:
            yield tag
        finally:
            self._at_fault.remove(tag)

    async def _make(self, placement: str, code: Code, *, is_neighbour: bool = False) -> str:
        """Makes a backend, and an endpoint that leads to it alone."""
        tag = f"{'n' if is_neighbour else 'v'}{self._next}"
        self._next += 1
        await self._controller.create_backend(
            tag,
            code(str(self._ledger), self._work_s),
            config={
                "placement": placement,
                "num_replicas": self._random.randint(1, 2),
                "max_batch_size": 4,
                "health_check_period_s": 0.1,
                "cancel_grace_s": 0.1,
                "user_config": {},
            },
        )
        await self._controller.create_endpoint(f"to-{tag}", backend=tag)
        return tag

    async def _set(self, tag: str, **config: Any) -> None:
        await self._controller.update_backend_config(tag, config)

    def _status(self, tag: str) -> BackendStatus:
        return self._controller.status_now().backends[tag]

    async def _until(self, tag: str, condition: Callable[[BackendStatus], bool]) -> None:
        while not condition(self._status(tag)):  # noqa: ASYNC110 - a status is only asked for
            await anyio.sleep(0.01)

    async def _until_in_force(self, tag: str) -> None:
        """Waits until no batch gathers any more under the options of before."""
        batchers = self._controller.backends[tag].method_batchers.values()
        while any(each.batcher._session._former.awaits_change for each in batchers):  # noqa: ASYNC110 - nobody tells
            await anyio.sleep(0.01)

    async def _until_recovered(self, tag: str) -> None:
        def has_recovered(status: BackendStatus) -> bool:
            return [replica.state for replica in status.replicas] == ["ready"] * status.wanted

        await self._until(tag, has_recovered)

    async def _order(self, tag: str, order: str, *errors: type[Exception]) -> None:
        with self.load.aimed(tag, *errors):
            streams = self._random.random() < 0.3
            error = await self.load.call(f"to-{tag}", order, streams=streams)
            assert type(error) is errors[0]
            await self._until_recovered(tag)

    async def _raise(self, tag: str) -> None:
        await self._order(tag, "raise", Boom)

    async def _give_too_few(self, tag: str) -> None:
        await self._order(tag, "short", WrongBatchSize)

    async def _hang(self, tag: str) -> None:
        # Plain code that hangs ends with its process.
        errors = (HandlerTimeout, ReplicaDied)
        with self.load.aimed(tag, *errors):
            await self._set(tag, handler_timeout_s=0.2)
            await self._until_in_force(tag)
            await self._order(tag, "hang", *errors)
            await self._set(tag, handler_timeout_s=None)

    async def _shoot(self, tag: str) -> None:
        deaths = self._status(tag).deaths
        with self.load.aimed(tag, ReplicaDied):
            # The death of one that was about to end is no death.
            ready = self._controller.backends[tag].supervisor.ready
            if not ready or not shoot(self._random.choice(ready).replica):
                return
            await self._until(tag, lambda status: status.deaths > deaths)
            await self._until_recovered(tag)

    async def _be_ill(self, tag: str) -> None:
        deaths = self._status(tag).deaths
        with self.load.aimed(tag, ReplicaDied):
            ill = illness(str(self._ledger), tag)
            ill.touch()
            await self._until(tag, lambda status: status.deaths > deaths)
            ill.unlink()
            await self._until_recovered(tag)

    async def _fill_the_queue(self, tag: str) -> None:
        with self.load.aimed(tag, Overloaded):
            await self._set(tag, max_queued_requests=2)
            async with anyio.create_task_group() as tasks:
                for _ in range(BURST):
                    tasks.start_soon(self.load.call, f"to-{tag}")
            await self._set(tag, max_queued_requests=1024)

    async def _start_slowly(self, tag: str) -> None:
        await self._set(tag, user_config={"start_s": self._random.uniform(0.1, 0.3)})
        await self._controller.restart_backend(tag)
        await self._set(tag, user_config={})

    async def _fail_to_start(self, tag: str) -> None:
        await self._set(tag, user_config={"start": "fail"})
        try:
            await self._controller.restart_backend(tag)
        except ReplicaNotStarted:
            pass
        else:
            raise AssertionError("it was restarted, though it can't start")
        await self._set(tag, user_config={})

    async def _change_batching(self, tag: str) -> None:
        await self._set(
            tag,
            max_batch_size=self._random.randint(1, 8),
            batch_wait_timeout_s=self._random.choice([0, 0.005]),
            max_concurrent_batches=self._random.randint(1, 3),
            max_ongoing_requests=self._random.choice([None, 8, 16]),
        )

    async def _change_what_needs_new_replicas(self, tag: str) -> None:
        await self._set(tag, cancel_grace_s=self._random.uniform(0.09, 0.11))

    async def _scale(self, tag: str) -> None:
        await self._controller.scale_backend(tag, self._random.randint(1, 3))

    async def _restart(self, tag: str) -> None:
        await self._controller.restart_backend(tag)

    async def _change_traffic(self, tag: str) -> None:
        async with self._traffic:
            others = [other for other in self._controller.backends if other[0] == "v"]
            chosen = {tag, *self._random.sample(others, 2)}
            parts = {each: self._random.randint(1, 4) for each in sorted(chosen)}
            total = sum(parts.values())
            weights = {each: part / total for each, part in parts.items()}
            await self._controller.set_traffic(self._random.choice(["e0", "e1", "e2"]), weights)

    async def _delete(self, tag: str) -> None:
        """Deletes a backend once a new one of its kind has taken its traffic over."""
        config = await self._controller.get_backend_config(tag)
        kind = next(kind for kind in self._kinds if kind[0] == config.placement)
        successor = await self._make(*kind)
        async with self._traffic:
            for name in ("e0", "e1", "e2"):
                traffic = self._controller.endpoints[name].traffic
                assert traffic is not None
                weights = dict(traffic.weights)
                if tag in weights:
                    share = weights.pop(tag)
                    weights[successor] = weights.get(successor, 0) + share
                    await self._controller.set_traffic(name, weights)
            await self._controller.delete_endpoint(f"to-{tag}")
            await self._controller.delete_backend(tag)


class Footprint:
    """What this process holds of the system: its children, its files, and shared memory."""

    def __init__(self) -> None:
        self.children = _children()
        self.files = sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in _open_files())
        self.shared = {entry.name for entry in Path("/dev/shm").iterdir()}

    def check(self) -> None:
        """Checks that nothing has come since."""
        gc.collect()
        now = Footprint()
        assert now.children == self.children
        assert len(now.files) <= len(self.files), (self.files, now.files)
        assert not {name for name in now.shared - self.shared if name.startswith(("psm", "shoal"))}


def _children() -> set[int]:
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


def _open_files() -> list[str]:
    with os.scandir("/proc/self/fd") as entries:
        names = [entry.name for entry in entries]
    return [name for name in names if os.path.lexists(f"/proc/self/fd/{name}")]


PROCESSES: list[tuple[str, Code]] = [
    ("process", Served),
    ("task", Served),
    ("process", PlainServed),
    ("process", Served),
    ("task", Served),
]
TASKS: list[tuple[str, Code]] = [("task", Served)] * 5
