"""The timeouts of a server's connections.

A connection has one deadline at a time, and moves it with each request. Moving it costs an
assignment: its timer stays, and is set again if it expires before the deadline.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.core.timers import Timer
    from shoal.loops.timers import LoopTimers


_BYTES_PER_SEND_TIMEOUT: Final = 2**18
# A client that has sent so much of a body has the whole time again.
BYTES_PER_BODY_TIMEOUT: Final = 2**14


def time_to_send_s(size: int, send_timeout_s: float) -> float:
    """Returns the time-out multiplied by the 256 KiB units begun, for slow connections."""
    return send_timeout_s * (1 + size // _BYTES_PER_SEND_TIMEOUT)


class Timeout:
    __slots__ = ("_call", "_deadline", "_now", "_timeouts", "_timer", "_timer_at")

    def __init__(self, timeouts: LoopTimers, call: Callable[[], object]) -> None:
        self._timeouts = timeouts
        self._now = timeouts.now
        self._call: Callable[[], object] | None = call
        self._deadline = math.inf
        # Invariant: while the deadline is finite, there is a timer that expires no later.
        self._timer: Timer | None = None
        self._timer_at = math.inf

    def set(self, seconds: float) -> None:
        self._deadline = deadline = self._now() + seconds
        if deadline < self._timer_at:
            self._start(deadline)

    def stop(self) -> None:
        self._deadline = math.inf

    def close(self) -> None:
        """Removes the deadline for ever, and drops all references."""
        self._deadline = -math.inf
        self._call = None
        if self._timer is not None:
            self._timeouts.forget(self._timer)
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        if self._deadline > self._now():
            if self._deadline < math.inf:
                self._start(self._deadline)
        elif self._call is not None:
            self._deadline = math.inf
            self._call()

    def _start(self, at: float) -> None:
        if self._call is None:
            return
        if self._timer is not None:
            self._timeouts.forget(self._timer)
        self._timer_at = at
        self._timer = self._timeouts.add(at, self._expire)


class BodyTimeout:
    """The deadline of a body; time in which the application does not read is not counted."""

    __slots__ = ("_received", "_timeout", "_timeout_s")

    def __init__(self, timeouts: LoopTimers, timeout_s: float, call: Callable[[], object]) -> None:
        self._timeout_s = timeout_s
        self._timeout = Timeout(timeouts, call)
        self.resume()

    def received(self, size: int) -> None:
        self._received += size
        if self._received >= BYTES_PER_BODY_TIMEOUT:
            self.resume()

    def pause(self) -> None:
        self._timeout.stop()

    def resume(self) -> None:
        """Starts the time again from zero."""
        self._received = 0
        self._timeout.set(self._timeout_s)

    def close(self) -> None:
        self._timeout.close()


class Heartbeat:
    """Calls a function after a silence of between half of `after_s` and all of it."""

    __slots__ = ("_call", "_half_s", "_timeout", "is_silent")

    def __init__(self, timeouts: LoopTimers, after_s: float, call: Callable[[], object]) -> None:
        self.is_silent = True  # set it to False whenever something is sent
        self._call = call
        self._half_s = after_s / 2
        self._timeout = Timeout(timeouts, self._expire)
        self._timeout.set(self._half_s)

    def close(self) -> None:
        self._timeout.close()

    def _expire(self) -> None:
        if self.is_silent:
            self._call()
        self.is_silent = True
        self._timeout.set(self._half_s)
