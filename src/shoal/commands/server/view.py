"""What ``shoal top`` knows of a server: the messages of its dashboard's feed, put together."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_SAMPLES: Final = 120
"""How many seconds are kept."""

_NOTHING: Final[Mapping[str, Any]] = {}


class ServerView:
    """A server as the last messages describe it.

    Attributes:
        state: Its backends, endpoints and last failures; None before the first message with them.
        samples: The last seconds, the oldest first.
        limits: The largest batch of each batcher, and whether requests join its batches.
    """

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None
        self.samples: deque[dict[str, Any]] = deque(maxlen=MOST_SAMPLES)
        self.limits: dict[str, tuple[float, bool]] = {}
        self._run: Any = None

    def take(self, message: Mapping[str, Any]) -> bool:
        """Takes a message; returns whether there is something new to show.

        Raises:
            LookupError, TypeError: It is not a message of the feed.
        """
        if message["run"] != self._run:  # another server, whose clock and numbers are others
            self._run = message["run"]
            self.state = None
            self.samples.clear()
        samples = message["samples"]
        self.samples.extend(samples)
        self.limits = {lane["name"]: (lane["limit"], lane["open"]) for lane in message["lanes"]}
        state = message.get("state")
        if state is not None:
            self.state = state
        return bool(samples) or state is not None

    @property
    def is_complete(self) -> bool:
        """Whether it has all that is shown."""
        return self.state is not None and bool(self.samples)

    @property
    def latest(self) -> Mapping[str, Any]:
        """The last second; empty if there was none."""
        return self.samples[-1] if self.samples else _NOTHING

    def rates(self) -> list[float]:
        """Returns how many requests were answered in each of the last seconds."""
        return [sample["all"]["finished"] for sample in self.samples]
