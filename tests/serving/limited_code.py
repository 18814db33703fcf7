"""Code in other processes that is refused once by a service behind it."""

from collections.abc import Iterator

import shoal


class RefusedOnce:
    def __init__(self) -> None:
        self.runs = 0

    @shoal.accept_batch
    def __call__(self, items: list[int]) -> list[int]:
        self.runs += 1
        if self.runs == 1:
            raise shoal.RetryLater(0.02)
        return [item * 10 + self.runs for item in items]


class StreamRefusedOnce(RefusedOnce):
    @shoal.accept_batch
    def __call__(self, items: list[int]) -> Iterator[list[int]]:  # type: ignore[override]
        yield super().__call__(items)
