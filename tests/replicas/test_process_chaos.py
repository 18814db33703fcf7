"""Workers and their parents are killed at random: nobody hangs, is told wrong, or is left over."""

import gc
import os
import random
import signal
import sys
import time
from collections import Counter
from subprocess import PIPE, Popen

import anyio
import pytest

from replicas.playing import MODULE, is_alive, made
from replicas.process_backends import Async, Block, Plain
from shoal.errors import ReplicaDied, ReplicaNotStarted
from shoal.testing.replicas.stage import Played
from worker_processes import children_of

pytestmark = [pytest.mark.real_time, pytest.mark.slow]


class Chaos:
    """Replicas that are killed and replaced while callers call them."""

    def __init__(self, kills: int, seed: int) -> None:
        self.kills = kills
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.played: Played | None = None
        self.is_over = False

    async def live(self) -> None:
        """Plays one replica after another, and kills each."""
        for number in range(self.kills):
            code = (Plain, Async)[number % 2]
            replica = made(code, number=number, shared_memory_bytes=2**21, cancel_grace_s=10.0)
            self.played = Played(replica)
            before = self.counts["answers"]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self.played.serve)
                if self.random.random() < 0.1:  # while it starts
                    await anyio.sleep(0.2 * self.random.random())
                else:
                    await self.played.ready.wait()
                    wanted = before + self.random.randrange(50)
                    while self.counts["answers"] < wanted:
                        assert not self.played.ended.is_set(), "it must not die by itself"
                        await anyio.sleep(0.001 * self.random.random())
                if self.random.random() < 0.3:
                    replica.kill("chaos")
                elif replica._worker is not None and not self.played.ended.is_set():
                    os.kill(replica._worker.pid, signal.SIGKILL)
                await self.played.ended.wait()
            assert isinstance(self.played.error, ReplicaDied | ReplicaNotStarted)
            self.counts["kills"] += 1
        self.is_over = True

    async def call(self) -> None:
        """Calls whatever replica there is, until all is over."""
        while not self.is_over:
            size = self.random.choice([1, 10, 5_000, 50_000, 300_000])
            number = self.random.randrange(1000)
            try:
                with anyio.move_on_after(0.02 if self.random.random() < 0.1 else 100):
                    await self.call_once(size, number)
            except ReplicaDied:
                self.counts["deaths"] += 1
                await anyio.sleep(0.02)

    async def call_once(self, size: int, number: int) -> None:
        if self.played is None:
            await anyio.sleep(0.01)
            return
        replica = self.played.replica
        kind = self.random.randrange(3)
        if kind == 0:
            doubled = await replica.run("__call__", [number, number + 1])
            assert doubled == [2 * number, 2 * number + 2]
        elif kind == 1:
            sent = bytes([number % 256]) * (8 * size)
            [echo] = await replica.run("echo", [Block(sent)])
            assert bytes(echo.memory) == sent
        else:
            steps = [step async for step in replica.run_stream("count", [7])]
            assert steps == [[step] for step in range(7)]
        self.counts["answers"] += 1


async def run_chaos(kills: int, seed: int) -> None:
    before = children_of(os.getpid())
    descriptors = len(os.listdir("/proc/self/fd"))
    chaos = Chaos(kills, seed)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(chaos.live)
        for _ in range(6):
            tasks.start_soon(chaos.call)
    assert chaos.counts["kills"] == kills
    assert chaos.counts["answers"] > kills
    assert children_of(os.getpid()) == before
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2  # the event loop's own


async def test_4_workers_killed_under_load_hang_nobody_and_leave_nothing():
    await run_chaos(4, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_1000_workers_killed_under_load_hang_nobody_and_leave_nothing():
    await run_chaos(1000, seed=2)


PARENT = f"""
import os, sys
import anyio
from replicas.playing import made

async def main():
    replica = made("{MODULE}:Plain", sys.argv[2])
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: replica.serve(task_status=task_status))
        [worker] = await replica.run("pid", [0])
        [child] = await replica.run("start_child", [0])
        if sys.argv[3] != "idle":
            tasks.start_soon(replica.run, sys.argv[3], [0])
            while not os.path.exists(sys.argv[2] + "/diary"):
                await anyio.sleep(0.005)
        print(worker, child, flush=True)
        await anyio.sleep_forever()

anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux's")
@pytest.mark.parametrize(
    ("backend", "work", "end"),
    [
        ("trio", "idle", signal.SIGKILL),
        ("asyncio", "in_sleep", signal.SIGKILL),
        ("trio", "in_c", signal.SIGKILL),
        ("asyncio", "in_c", signal.SIGTERM),
    ],
)
def test_a_worker_ends_with_its_parent(backend, work, end, tmp_path):
    path = os.pathsep.join(sys.path)
    with Popen(
        [sys.executable, "-c", PARENT, backend, str(tmp_path), work],
        stdout=PIPE,
        env={**os.environ, "PYTHONPATH": path},
    ) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        try:
            assert all(map(is_alive, pids))
            parent.send_signal(end)
            while any(map(is_alive, pids)):
                time.sleep(0.005)
        finally:
            for pid in filter(is_alive, pids):
                os.kill(pid, signal.SIGKILL)
            parent.kill()
