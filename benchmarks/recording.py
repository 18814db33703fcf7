"""What a recording costs: CPU time of calls with and without it, in rounds by turns.

    python benchmarks/recording.py

Calls are made in process, so that nothing else costs much: over HTTP a request takes about fifty
times as long. The least of the rounds counts, since other programs only add time.
"""

from __future__ import annotations

import time

import anyio
import orjson

import shoal
from shoal.http.admin.recordings import ArrivalRecorder

ROUNDS, CALLS, BATCH = 15, 20_000, 32


async def echo(items: list[int]) -> list[int]:
    return items


async def one_round(*, recorded: bool) -> tuple[float, float, int]:
    """Gives the CPU seconds of the calls, those of writing what was noted, and its bytes."""
    batcher = shoal.Batcher(echo, max_batch_size=BATCH, name="echo")
    recorder = ArrivalRecorder(anyio.current_time(), most_requests=10**9)
    if recorded:
        batcher.observers.add(recorder)
    written_s, size = 0.0, 0
    async with batcher as call:
        began = time.process_time()
        for _ in range(CALLS // 1000):
            await call.map(range(1000))
            at = time.process_time()
            size += sum(len(orjson.dumps(note)) + 1 for note in recorder.take())
            written_s += time.process_time() - at
        return time.process_time() - began - written_s, written_s, size


def main() -> None:
    plain: list[float] = []
    noted: list[float] = []
    written: list[float] = []
    size = 0
    for _ in range(ROUNDS):
        plain.append(anyio.run(lambda: one_round(recorded=False), backend="trio")[0])
        run_s, written_s, size = anyio.run(lambda: one_round(recorded=True), backend="trio")
        noted.append(run_s)
        written.append(written_s)
    more_s = (min(noted) - min(plain)) / CALLS
    print(f"without  {min(plain) / CALLS * 1e6:.2f} us a request")
    print(f"noting   {more_s * 1e6:+.2f} us a request")
    print(f"writing  {min(written) / CALLS * 1e6:+.2f} us a request, {size / CALLS:.0f} bytes")


if __name__ == "__main__":
    main()
