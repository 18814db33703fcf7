"""Runs hostile connections against a server, many at once, and checks what is left of them."""

import select
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from agreed import HANG_S, checksum
from fuzz_clients import HALF_CLOSE, LINGER, PROTOCOLS, RESET, HostileConnection, hostile_connection
from hostile_server import MIB, HostileServer, flaws_of_log, wait_until

AT_ONCE = 100
WARM_UP = 60
PROBE_EVERY = 250
# How long a client waits for an answer, and leaves a connection open, in seconds.
AWAIT_S = 0.05
LINGER_S = 0.1
MOST_MEMORY = 20 * MIB
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass
class Mutated:
    """What became of a server that hostile connections were made to."""

    connections: int = 0
    sent: int = 0
    is_up: bool = True
    probes: int = 0
    wrong: int = 0
    slowest_s: float = 0.0
    grown: int = 0
    sockets: int = 0
    tasks: Counter[str] = field(default_factory=Counter)
    left_after_s: float = 0.0
    log: int = 0
    log_flaws: list[str] = field(default_factory=list)

    def flaws(self) -> list[str]:
        if not self.is_up:
            return [f"the server exited after {self.connections} connections"]
        checks = {
            f"{self.wrong} of {self.probes} requests of a good client failed": self.wrong,
            f"{self.sockets} sockets were left": self.sockets,
            f"tasks were left: {dict(self.tasks)}": self.tasks,
            f"the memory grew by {self.grown / MIB:.1f} MiB": self.grown > MOST_MEMORY,
            f"the log has {self.log / MIB:.1f} MiB": self.log > MIB,
        }
        return [flaw for flaw, is_so in checks.items() if is_so]


class Client:
    """One hostile connection on a socket that never waits."""

    def __init__(self, server: HostileServer, does: HostileConnection) -> None:
        self.socket = server.connect()
        self.socket.setblocking(False)
        self.sent = 0
        self._steps = deque(does.steps)
        self._way = does.way
        self._until = time.monotonic() + AWAIT_S
        self._is_leaving = False

    def turn(self, now: float, *, is_readable: bool) -> bool:
        """Goes on as far as it can; returns whether it has left."""
        try:
            if is_readable:
                if not self.socket.recv(2**16):
                    return self._leave()
                if self._steps and self._steps[0] is None:
                    self._steps.popleft()
            while self._steps:
                step = self._steps[0]
                if step is None:
                    if now < self._until:
                        return False
                elif step:
                    self.sent += self.socket.send(step)
                    self._until = now + AWAIT_S
                self._steps.popleft()
            return self._end(now)
        except BlockingIOError:  # the server does not read
            self._steps.clear()
            return False
        except OSError:
            return self._leave()

    def _end(self, now: float) -> bool:
        if not self._is_leaving:
            self._is_leaving = True
            if self._way == HALF_CLOSE:
                self.socket.shutdown(socket.SHUT_WR)
                self._until = now + LINGER_S
            elif self._way == LINGER:
                self._until = now + LINGER_S
            else:
                return self._leave()
        return now >= self._until and self._leave()

    def _leave(self) -> bool:
        if self._way == RESET:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.socket.close()
        return True


def run_mutated(
    server: HostileServer, connections: int, *, seed: int = 0, protocols: Sequence[str] = PROTOCOLS
) -> Mutated:
    """Makes hostile connections, and then waits until nothing is left of them."""
    found = Mutated()
    try:
        # The memory of the most connections at once is no growth, nor what they import and cache.
        warm_up(server, max(WARM_UP, connections // 20))
    except OSError:  # it did not live through that
        return Mutated(WARM_UP, is_up=False)
    sockets, tasks, memory, log = (
        *(server.sockets(), server.tasks(), server.memory(), server.log_size()),
    )
    window: dict[int, Client] = {}
    poll = select.poll()
    for number in range(connections):
        try:
            client = Client(server, hostile_connection(seed, number, protocols))
        except OSError:
            break
        found.connections += 1
        _begin(client, found, window, poll)
        if number % PROBE_EVERY == 0:
            if not server.is_up():
                break
            _probe(found, server, number)
    _turns(found, window, poll, at_most=0)
    found.is_up = server.is_up()
    if found.is_up:
        _look_at_rest(found, server, sockets, tasks)
        found.grown = server.memory() - memory
    found.log = server.log_size() - log
    found.log_flaws = flaws_of_log(server.log())
    return found


def warm_up(server: HostileServer, connections: int = WARM_UP) -> None:
    """Makes other hostile connections than a run."""
    poll = select.poll()
    window: dict[int, Client] = {}
    for number in range(connections):
        _begin(Client(server, hostile_connection(-1, number)), Mutated(), window, poll)
    _turns(Mutated(), window, poll, at_most=0)
    sockets = server.sockets()
    wait_until(lambda: server.sockets() <= min(sockets, 6), HANG_S)
    server.ask("POST", "/sum", "warm")


def _begin(client: Client, found: Mutated, window: dict[int, Client], poll: select.poll) -> None:
    window[client.socket.fileno()] = client
    poll.register(client.socket, select.POLLIN)
    _turns(found, window, poll, at_most=AT_ONCE)


def _turns(found: Mutated, window: dict[int, Client], poll: select.poll, *, at_most: int) -> None:
    """Lets clients go on until no more than so many are there."""
    while len(window) > at_most:
        readable = {fd for fd, _ in poll.poll(5)}
        now = time.monotonic()
        for fd, client in list(window.items()):
            if client.turn(now, is_readable=fd in readable):
                del window[fd]
                poll.unregister(fd)
                found.sent += client.sent


def _probe(found: Mutated, server: HostileServer, number: int) -> None:
    began = time.monotonic()
    found.probes += 1
    try:
        status, answer = server.ask("POST", "/sum", f"good {number}")
        found.wrong += (status, answer) != (200, checksum(f"good {number}"))
    except (OSError, ValueError):
        found.wrong += 1
    found.slowest_s = max(found.slowest_s, time.monotonic() - began)


def _look_at_rest(found: Mutated, server: HostileServer, sockets: int, tasks: Counter[str]) -> None:
    """Waits until no socket and no task is left, or the time for that is over."""
    began = time.monotonic()

    def is_nothing_left() -> bool:
        found.sockets = max(0, server.sockets() - sockets)
        found.tasks = server.tasks() - tasks
        return not found.sockets and not found.tasks

    wait_until(is_nothing_left, HANG_S)
    found.left_after_s = time.monotonic() - began
