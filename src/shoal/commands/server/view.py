"""The state of a server as ``shoal top`` knows it, from the messages of its dashboard's feed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_SAMPLES: Final = 120
"""How many seconds are kept."""

_NOTHING: Final[Mapping[str, Any]] = {}


class ServerView:
    """A server as its last messages describe it."""

    def __init__(self) -> None:
        self.state: dict[str, Any] | None = None  # backends, endpoints and last failures
        self.samples: deque[dict[str, Any]] = deque(maxlen=MOST_SAMPLES)  # of seconds
        # The largest batch of each batcher, and whether requests join its batches.
        self.limits: dict[str, tuple[float, bool]] = {}
        self._run: Any = None

    def take(self, message: Mapping[str, Any]) -> bool:
        """Returns whether a message has news; raises `LookupError` or `TypeError` if malformed."""
        if message["run"] != self._run:  # another server, with another clock and other numbers
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
        return self.state is not None and bool(self.samples)

    @property
    def latest(self) -> Mapping[str, Any]:
        return self.samples[-1] if self.samples else _NOTHING

    def rates(self) -> list[float]:
        """Returns how many requests were answered in each of the last seconds."""
        return [sample["all"]["finished"] for sample in self.samples]
