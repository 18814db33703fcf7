"""The counts of HTTP responses; those of calls are the engine's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_ENDPOINT = "-"
"""The endpoint label of responses that no endpoint gave."""


class AnswerCounts:
    """Counts HTTP responses by endpoint and class of status."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()

    def count(self, endpoint: str, status: int) -> None:
        """Counts one response.

        Args:
            endpoint: The endpoint's name, or `NO_ENDPOINT`.
            status: The response's HTTP status.
        """
        self._counts[endpoint, status] += 1

    def __iter__(self) -> Iterator[tuple[str, str, int]]:
        """Yields the endpoint, status class (``"2xx"``) and count of each pair counted so far."""
        by_class: Counter[tuple[str, int]] = Counter()
        for (endpoint, status), count in self._counts.items():
            by_class[endpoint, status // 100] += count
        for (endpoint, hundreds), count in by_class.items():
            yield endpoint, f"{hundreds}xx", count
