"""The timeouts of a server's connections: one set of timers, and one task that sleeps.

A connection has one deadline at a time, and moves it with each request. Moving it costs an
assignment: its timer stays where it is, and when it expires before the deadline, it is set again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import anyio.lowlevel

from shoal.core.timers import Timers
from shoal.loops.parking import Bell

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.core.timers import Timer
    from shoal.loops.parking import Parking


_BYTES_PER_SEND_TIMEOUT: Final = 2**18
_BYTES_PER_BODY_TIMEOUT: Final = 2**14
# Clients that came together run out of time together. To end them takes a while, for which others
# would have to wait.
_EXPIRED_AT_ONCE: Final = 16


def time_to_send_s(size: int, send_timeout_s: float) -> float:
    """Returns how long a client may take to receive `size` bytes.

    It is the timeout, once for each 256 KiB begun. A fixed deadline would disconnect a client that
    fetches a large answer over a slow connection.
    """
    return send_timeout_s * (1 + size // _BYTES_PER_SEND_TIMEOUT)


def time_to_receive_s(received: int, body_timeout_s: float) -> float:
    """Returns how long the client may take for a body, `received` bytes of which have arrived.

    It is the timeout, once for each 16 KiB begun, so a body must arrive at least that fast.
    """
    return body_timeout_s * (1 + received // _BYTES_PER_BODY_TIMEOUT)


class Timeouts:
    """All timeouts of a server.

    Args:
        parking: The event loop's way to wait.

    Attributes:
        now: The event loop's clock.
    """

    def __init__(self, parking: Parking) -> None:
        self.now = parking.now
        self._timers = Timers()
        self._bell = Bell(parking)
        self._asleep_until = math.inf

    def add(self, at: float, timeout: Timeout) -> Timer:
        """Starts a timer."""
        timer = self._timers.add(at, timeout)
        if at < self._asleep_until:
            self._bell.ring()
        return timer

    def forget(self, timer: Timer) -> None:
        """Ends a timer."""
        self._timers.forget(timer)

    async def run(self) -> None:
        """Calls what has timed out, until it is cancelled."""
        while True:
            now = self.now()
            for count, timeout in enumerate(tuple(self._timers.due(now)), 1):
                timeout.expire(now)
                if count % _EXPIRED_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
            self._asleep_until = self._timers.next_at()
            await self._bell.wait(self._asleep_until)
            self._asleep_until = -math.inf


class Timeout:
    """The deadline of one connection.

    Args:
        timeouts: Those of the server.
        call: Called when the deadline has passed.

    Invariant: while the deadline is finite, there is a timer that expires no later.
    """

    __slots__ = ("_call", "_deadline", "_now", "_timeouts", "_timer", "_timer_at")

    def __init__(self, timeouts: Timeouts, call: Callable[[], object]) -> None:
        self._timeouts = timeouts
        self._now = timeouts.now
        self._call: Callable[[], object] | None = call
        self._deadline = math.inf
        self._timer: Timer | None = None
        self._timer_at = math.inf

    def set(self, seconds: float) -> None:
        """Sets the deadline, from now on; infinity for none."""
        self._deadline = deadline = self._now() + seconds
        if deadline < self._timer_at:
            self._start(deadline)

    def stop(self) -> None:
        """Removes the deadline."""
        self._deadline = math.inf

    def close(self) -> None:
        """Removes the deadline for ever, and refers to nothing any more."""
        self._deadline = -math.inf
        self._call = None
        if self._timer is not None:
            self._timeouts.forget(self._timer)
            self._timer = None

    def expire(self, now: float) -> None:
        """Handles that its timer has expired."""
        self._timer = None
        self._timer_at = math.inf
        if self._deadline > now:
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
        self._timer = self._timeouts.add(at, self)


class BodyTimeout:
    """The deadline of one body.

    Time in which the application does not read, so that the client can't send, does not count.

    Args:
        timeouts: Those of the server.
        timeout_s: The time-out, in seconds.
        call: Called when the deadline has passed.
    """

    __slots__ = ("_began_at", "_call", "_received", "_timeout", "_timeout_s", "_timeouts")

    def __init__(self, timeouts: Timeouts, timeout_s: float, call: Callable[[], object]) -> None:
        self._timeouts = timeouts
        self._timeout_s = timeout_s
        self._call: Callable[[], object] | None = call
        self._timeout = Timeout(timeouts, self._expire)
        self.resume()

    def received(self, size: int, *, is_last: bool) -> None:
        """Notes that a part of the body has arrived."""
        self._received += size
        if is_last:
            self.close()

    def pause(self) -> None:
        """Stops the time."""
        self._timeout.stop()

    def resume(self) -> None:
        """Starts the time anew."""
        self._received = 0
        self._began_at = self._timeouts.now()
        self._timeout.set(self._timeout_s)

    def close(self) -> None:
        """Ends the deadline, and refers to nothing any more."""
        self._timeout.close()
        self._call = None

    def _expire(self) -> None:
        left_s = self.left_s
        if left_s > 0:
            self._timeout.set(left_s)
        elif self._call is not None:
            self._call()

    @property
    def left_s(self) -> float:
        """How much time the client has left, in seconds."""
        allowed_s = time_to_receive_s(self._received, self._timeout_s)
        return self._began_at + allowed_s - self._timeouts.now()


class Heartbeat:
    """Calls a function whenever something was silent for a time.

    Args:
        timeouts: Those of the server.
        after_s: The longest silence, in seconds.
        call: Called after a silence of half of that to all of it.

    Attributes:
        is_silent: Set to False whenever the silence is broken; that is all that it costs.
    """

    __slots__ = ("_call", "_half_s", "_timeout", "is_silent")

    def __init__(self, timeouts: Timeouts, after_s: float, call: Callable[[], object]) -> None:
        self.is_silent = True
        self._call = call
        self._half_s = after_s / 2
        self._timeout = Timeout(timeouts, self._expire)
        self._timeout.set(self._half_s)

    def close(self) -> None:
        """Ends it."""
        self._timeout.close()

    def _expire(self) -> None:
        if self.is_silent:
            self._call()
        self.is_silent = True
        self._timeout.set(self._half_s)
