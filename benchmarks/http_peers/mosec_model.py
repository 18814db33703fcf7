"""model.py under mosec; run as a module."""

from __future__ import annotations

from typing import Any, Final

from mosec import Runtime, Server, SSEWorker, Worker  # type: ignore[import-not-found, unused-ignore]

from benchmarks.http_peers import model


class Predict(Worker):  # type: ignore[misc, unused-ignore]
    """The model."""

    def forward(self, data: list[dict[str, int]]) -> list[dict[str, int]]:
        """Returns a result for each item."""
        return [{"value": value} for value in model.predict([item["value"] for item in data])]


class Generate(SSEWorker):  # type: ignore[misc, unused-ignore]
    """The model, with streams."""

    def forward(self, data: list[dict[str, int]]) -> list[Any]:
        """Sends the tokens; what it returns is not sent."""
        for tokens in model.generate([item["value"] for item in data]):
            for place, token in enumerate(tokens):
                self.send_stream_event(token, place)
        return [None] * len(data)


OPTIONS: Final[Any] = {"max_batch_size": model.SIZE, "max_wait_time": int(model.WAIT_S * 1e3)}

if __name__ == "__main__":
    server = Server()
    server.register_runtime(
        {"/predict": [Runtime(Predict, **OPTIONS)], "/generate": [Runtime(Generate, **OPTIONS)]}
    )
    server.run()
