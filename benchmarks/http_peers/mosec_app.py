"""The model of http_handlers.py under mosec, as its users write it; run as a module."""

from __future__ import annotations

import time
from typing import Any, Final

from mosec import Runtime, Server, SSEWorker, Worker  # type: ignore[import-not-found, unused-ignore]

MAX_BATCH_SIZE: Final = 64
MAX_WAIT_TIME_MS: Final = 2
TOKENS: Final = 32


class Predict(Worker):  # type: ignore[misc, unused-ignore]
    """2 ms per batch and 0.05 ms per item."""

    def forward(self, data: list[dict[str, int]]) -> list[dict[str, int]]:
        """Returns a result for each item."""
        time.sleep(0.002 + 0.00005 * len(data))
        return [{"value": 2 * item["value"]} for item in data]


class Generate(SSEWorker):  # type: ignore[misc, unused-ignore]
    """2 ms per step, with a token for each prompt."""

    def forward(self, data: list[dict[str, int]]) -> list[Any]:
        """Sends the tokens; what it returns is not sent."""
        for nth in range(TOKENS):
            time.sleep(0.002)
            for place in range(len(data)):
                self.send_stream_event(f"token {nth}", place)
        return [None] * len(data)


if __name__ == "__main__":
    server = Server()
    batches: dict[str, Any] = {"max_batch_size": MAX_BATCH_SIZE, "max_wait_time": MAX_WAIT_TIME_MS}
    server.register_runtime(
        {"/predict": [Runtime(Predict, **batches)], "/generate": [Runtime(Generate, **batches)]}
    )
    server.run()
