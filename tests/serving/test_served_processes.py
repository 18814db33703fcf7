"""``shoal serve`` with replicas that are processes: what it leaves when it is told to end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import trio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

pytestmark = [pytest.mark.trio, pytest.mark.real_time, pytest.mark.timeout(60)]

HERE = Path(__file__).parent
HANG_S = 30
CLIENTS = 16


class Served:
    """A running ``shoal serve process_app:app``."""

    def __init__(self, process: subprocess.Popen[str], ledger: Path) -> None:
        assert process.stderr is not None
        self.process = process
        self._ledger = ledger
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r" on (http://\S+)\n", line):
                self.url = found[1]
                return
        raise AssertionError("".join(said))

    def workers(self) -> dict[int, str]:
        """Returns its child processes, each with the time of its start."""
        found = {}
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for pid in (task / "children").read_text().split():
                if (started := start_of(int(pid))) is not None:
                    found[int(pid)] = started
        return found

    def ran(self) -> list[int]:
        """Returns the items that ``/work`` has run."""
        return [int(line) for line in self._ledger.read_text().split()]

    async def ended(self) -> int:
        """Waits for its end, and returns its exit code."""
        await trio.to_thread.run_sync(self.process.communicate)
        assert self.process.returncode is not None
        return self.process.returncode


def start_of(pid: int) -> str | None:
    """Returns when a process was started; None if there is none, or only its name is left."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


@contextmanager
def serving(folder: Path) -> Generator[Served]:
    ledger = folder / "ledger"
    ledger.touch()
    with subprocess.Popen(
        [sys.executable, "-m", "shoal", "serve", "process_app:app", "--port", "0"],
        cwd=HERE,
        env={**os.environ, "LEDGER": str(ledger)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Served(process, ledger)
        finally:
            process.kill()


@pytest.fixture
def served(tmp_path: Path) -> Generator[Served]:
    with serving(tmp_path) as served:
        yield served


class Clients:
    """Clients that call ``/work`` again and again."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.answers: dict[int, httpx.Response] = {}
        self.refused: dict[int, httpx.TransportError] = {}
        self.asked = 0
        self._client = client
        self._is_over = False
        self._change = trio.Event()

    def stop(self) -> None:
        self._is_over = True

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(CLIENTS):
                nursery.start_soon(self._call_on)

    async def _call_on(self) -> None:
        while not self._is_over:
            item = self.asked
            self.asked += 1
            try:
                self.answers[item] = await self._client.post("/work", json=item)
            except httpx.TransportError as error:
                self.refused[item] = error
            self._change.set()
            self._change = trio.Event()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self._change.wait()


@asynccontextmanager
async def under_load(served: Served) -> AsyncGenerator[Clients]:
    limits = httpx.Limits(max_connections=CLIENTS + 4)
    with trio.fail_after(HANG_S):
        async with (
            httpx.AsyncClient(base_url=served.url, timeout=HANG_S, limits=limits) as client,
            trio.open_nursery() as nursery,
        ):
            clients = Clients(client)
            nursery.start_soon(clients.run)
            yield clients


async def test_a_server_that_is_told_to_end_answers_what_it_took_and_leaves_no_process(
    served: Served,
) -> None:
    async with under_load(served) as clients:
        await clients.until(lambda: len(clients.answers) > 4 * CLIENTS)
        workers = served.workers()
        sent_before = clients.asked
        served.process.send_signal(signal.SIGTERM)
        code = await served.ended()
        clients.stop()
    assert code == 0
    assert len(workers) == 2
    assert [pid for pid, started in workers.items() if start_of(pid) == started] == []
    for item, answer in clients.answers.items():
        assert (answer.status_code, answer.json()) == (200, item)
    # What was sent before the signal was answered; who was still about to connect was refused.
    cut = {item: error for item, error in clients.refused.items() if item < sent_before}
    assert [error for error in cut.values() if not isinstance(error, httpx.ConnectError)] == []
    items = served.ran()
    assert set(items) == set(clients.answers)
    assert len(items) == len(set(items))
