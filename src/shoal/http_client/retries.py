"""Retries of calls that were not made: how often, and after how long.

Only a call that the server refused as too many, or that did not reach it, is made again; see
`shoal.http_client.problems`. So a call whose handler may have run is never repeated.

`shoal.retrying` waits for the same short time between tries, as is right within a process, where a
try is cheap. Here the waits grow, so that many clients leave a server the time to recover, and are
drawn at random, so that they do not come back at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from shoal.core.options.checks import more_than_0, whole


@dataclass(frozen=True)
class RetryOptions:
    """When a call that was refused is made again.

    The wait before the second try is half to all of `first_delay_s`, drawn at random; before each
    further try it is twice as long. If the server says ``Retry-After``, that is added.

    Attributes:
        attempts: The largest number of tries; 1 for no retries.
        first_delay_s: The longest first wait, in seconds.
        max_delay_s: The longest wait, in seconds. A server that asks for a longer one is not tried
            again.
        seed: The seed of the random numbers; None to choose one.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of its range.
    """

    attempts: int = 4
    first_delay_s: float = 0.1
    max_delay_s: float = 10.0
    seed: int | None = None

    def __post_init__(self) -> None:
        whole("attempts", self.attempts, least=1)
        more_than_0("first_delay_s", self.first_delay_s)
        more_than_0("max_delay_s", self.max_delay_s)


class Backoff:
    """Chooses the waits of one client.

    Args:
        options: The options.
    """

    def __init__(self, options: RetryOptions) -> None:
        self._options = options
        self._random = Random(options.seed)  # noqa: S311 (no secret)

    def delay_s(self, attempt: int, retry_after_s: float | None) -> float | None:
        """Returns how long to wait before the next try, in seconds; None if there is none.

        Args:
            attempt: How many tries were made.
            retry_after_s: How long the server asks to wait; None if it does not ask for it.
        """
        options = self._options
        if attempt >= options.attempts:
            return None
        asked_s = retry_after_s or 0.0
        if asked_s > options.max_delay_s:
            return None
        # Not 2.0 ** attempt, which overflows for a thousand attempts.
        longest_s = min(options.max_delay_s, options.first_delay_s * 2.0 ** min(attempt - 1, 60))
        return min(options.max_delay_s, asked_s + longest_s * self._random.uniform(0.5, 1.0))
