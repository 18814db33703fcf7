"""No worker outlives its parent, whatever either of them is doing when the parent is killed."""

import os
import signal
import sys
import time
from subprocess import PIPE, Popen

import pytest

from replicas.playing import MODULE, is_alive

pytestmark = [
    pytest.mark.real_time,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the kernel's part is Linux's"),
]

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
