"""Continuous batches of replicas in processes: replicas go, die, and stream over HTTP.

Other files import these tests, to run them with another placement.
"""

import os
import signal
from typing import Any

import anyio
import pytest
from live_server import live, request

import shoal
from batching.callers import outcome
from serving.open_code import answers_slowly, writes
from serving.scenes import deployed
from shoal.errors import ReplicaDied
from shoal.serving.controller.controller import Controller

pytestmark = pytest.mark.real_time

HANG_S = 30


@pytest.fixture
def placed() -> dict[str, Any]:
    """The options of the placement."""
    return {"placement": "process"}


@pytest.mark.one_loop
async def test_no_request_is_lost_when_replicas_are_replaced(placed: dict[str, Any]) -> None:
    config = {"fill": "continuous", "num_replicas": 2, "max_batch_size": 4, **placed}
    found: list[Any] = []
    is_over = False
    with anyio.fail_after(HANG_S):
        async with Controller() as controller:
            handle = await deployed(controller, "b", answers_slowly, config=config)

            async def call_on(item: int) -> None:
                while not is_over:
                    found.append(await outcome(handle.call(item)) == item)

            async with anyio.create_task_group() as tasks:
                for item in range(12):
                    tasks.start_soon(call_on, item)
                await controller.restart_backend("b")
                await controller.scale_backend("b", 1)
                is_over = True
    assert len(found) > 12
    assert all(found)


async def test_a_death_fails_the_requests_of_its_replica_and_no_others(placed):
    config = {"fill": "continuous", "streams": True, "num_replicas": 2, "max_batch_size": 2}
    ends: list[tuple[int, Any]] = []
    with anyio.fail_after(HANG_S):
        async with Controller() as controller:
            handle = await deployed(controller, "b", writes, config=config | placed)
            pids: list[int] = []

            async def read(item: str) -> None:
                pid = 0
                try:
                    async with handle.stream(item) as stream:
                        async for number in stream:
                            if not pid:
                                pid = number
                                pids.append(pid)
                except Exception as error:
                    ends.append((pid, error))

            async with anyio.create_task_group() as tasks:
                for item in "abcde":  # the last one waits
                    tasks.start_soon(read, item)
                while len(pids) < 4:  # noqa: ASYNC110
                    await anyio.sleep(0.001)
                assert sorted(map(pids.count, set(pids))) == [2, 2]
                os.kill(pids[0], signal.SIGKILL)
                while len(pids) < 5:  # noqa: ASYNC110
                    await anyio.sleep(0.001)
                tasks.cancel_scope.cancel()
            assert pids[4] != pids[0]
    assert [pid for pid, _ in ends] == [pids[0]] * 2
    assert all(isinstance(error, ReplicaDied) for _, error in ends)
    if placed["placement"] == "process":
        assert all("SIGKILL" in str(error) for _, error in ends)


@pytest.mark.one_loop
async def test_a_stream_over_http_ends_with_an_error_when_its_process_is_killed(placed):
    app = shoal.App()
    app.endpoint("/write", name="write", fill="continuous", streams=True, **placed)(writes)
    async with live(app, hang_s=HANG_S) as server, await server.connect() as client:
        for _ in range(2):
            await client.send_all(request("/write", method="POST", body=b'"a text"'))
            received = b""
            while received.count(b"data: ") < 3:
                received += await client.receive_some()
            pid = int(received.partition(b"data: ")[2].split()[0])
            os.kill(pid, signal.SIGKILL)
            while not received.endswith(b"0\r\n\r\n"):
                received += await client.receive_some()
            assert received.startswith(b"HTTP/1.1 200")
            assert b"event: error" in received
            assert b"died" in received or b"killed" in received
            # The next request waits for the replica that is started in its place.
