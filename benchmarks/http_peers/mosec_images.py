"""The models of images_handlers.py under mosec, as its users write it; run as a module."""

from __future__ import annotations

from typing import Any

from mosec import Server, Worker  # type: ignore[import-not-found, unused-ignore]

from benchmarks.images_handlers import LARGEST, Classifier


class Images(Worker):  # type: ignore[misc, unused-ignore]
    """Takes the bytes of a request as they are."""

    def __init__(self) -> None:
        super().__init__()
        self._classifier = Classifier()

    def deserialize(self, data: bytes) -> bytes:
        """Returns the image."""
        return data

    def serialize(self, data: int) -> bytes:
        """Returns the answer's body."""
        return str(data).encode()

    def forward(self, data: list[bytes]) -> list[int]:
        """Returns the class of each image."""
        return self._classifier(data)


if __name__ == "__main__":
    server = Server()
    batches: dict[str, Any] = {"max_batch_size": LARGEST, "max_wait_time": 2}
    server.append_worker(Images, num=1, **batches)
    server.run()
