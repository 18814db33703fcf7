"""Which server a call goes to first, and where it goes after a failure.

With one server, a refused call goes there again after a while. The waits grow, so that many clients
leave a server the time to recover, and are drawn at random, so that they do not come back at once.

With several, a call goes to the one with the fewest running requests of this client: a server that
is slow, or never answers, then holds few calls. After a failure that proves that the call did not
run, it goes to another one without a wait, and to each at most once. A server that failed or
refused rests: it gets no calls for a while, and then one, which decides about the others.
"""

from __future__ import annotations

import math
import random
import socket
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

import anyio

from shoal.errors import NotOpen
from shoal.http_client.connection import NotSent, Server, server_of, socket_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shoal.http_client.bodies import FailedResponse

_DNS: Final = "dns:"

_FIRST_DELAY_S: Final = 0.1
_MAX_DELAY_S: Final = 10.0
# A host that is down does not answer at all; the others should not wait long for it.
_CONNECT_TIMEOUT_S: Final = 2.0
# Names are looked up again by a call that finds the last result older than this, and sooner if the
# call could not connect.
_LOOK_UP_AFTER_S: Final = 5.0
_LOOK_UP_AFTER_FAILURE_S: Final = 1.0
_LOOK_UP_TIMEOUT_S: Final = 2.0


def urls_of(url: object) -> list[str]:
    urls: list[Any] = list(cast("Any", url)) if isinstance(url, (list, tuple)) else [url]
    if not urls:
        raise ValueError("a client needs the URL of at least one server")
    return urls


def tries_of(urls: list[str], max_attempts: int) -> Callable[[float], TriesOfOne | TriesOfSeveral]:
    """Returns a function that begins a call, whose last try must begin before a time."""
    if len(urls) > 1 or str(urls[0]).startswith(_DNS):
        servers = Servers(urls)
        return lambda _: TriesOfSeveral(servers, max_attempts)
    return partial(TriesOfOne, server_of(urls[0]), max_attempts)


class TriesOfOne:
    """The tries of a call at the only server: again after a while if it was refused."""

    def __init__(self, server: Server, max_attempts: int, until: float) -> None:
        self._server = server
        self._max_attempts = max_attempts
        self._until = until
        self._attempt = 0

    async def first(self) -> Server:
        return self._server

    async def after(self, failure: FailedResponse) -> Server | None:
        self._attempt += 1
        if not failure.was_refused or self._attempt == self._max_attempts:
            return None
        delay_s = delay_before(self._attempt, failure.retry_after_s or 0.0)
        if delay_s is None or anyio.current_time() + delay_s >= self._until:
            return None
        del failure  # asyncio keeps the frames of a wait that was cancelled for a while
        await anyio.sleep(delay_s)
        return self._server


class TriesOfSeveral:
    """The tries of a call at several servers: each at most once, at once."""

    def __init__(self, servers: Servers, max_attempts: int) -> None:
        self._servers = servers
        self._refusals_left = min(1, max_attempts - 1)
        self._tried = list[Server]()

    async def first(self) -> Server:
        await self._servers.look_up(_LOOK_UP_AFTER_S)
        server = self._servers.choose(self._tried, also_resting=True)
        if server is None:
            raise ConnectionRefusedError(
                f"{self._servers.url} has no addresses ({self._servers.lookup_error})"
            )
        return server

    async def after(self, failure: FailedResponse) -> Server | None:
        if failure.retry_after_s is not None:
            self._tried[-1].rest(failure.retry_after_s)
        was_not_reached = isinstance(failure.error, (ConnectionRefusedError, NotSent))
        was_refused = failure.was_refused or isinstance(failure.error, NotOpen)
        del failure  # as in TriesOfOne
        if was_not_reached:
            # It burdens no server, so any other may be tried, and the addresses may be old.
            await self._servers.look_up(_LOOK_UP_AFTER_FAILURE_S)
        elif was_refused and self._refusals_left > 0:
            self._refusals_left -= 1
        else:
            return None
        # A refused call goes to no server that rests: where all are overloaded, retries would
        # double their load.
        return self._servers.choose(self._tried, also_resting=was_not_reached)


class Servers:
    """Several servers, given by URLs and by host names whose addresses are looked up."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.lookup_error = "no lookup has ended"
        self._names = list[_Name]()
        # The one that was chosen last comes last, so that equals take turns.
        self._servers = list[Server]()
        self._lock = anyio.Lock()
        self._looked_up_at = -math.inf
        for url in dict.fromkeys(urls):
            is_name = str(url).startswith(_DNS)
            server = server_of(url[len(_DNS) :] if is_name else url)
            if socket_of(server.url) is not None:
                raise ValueError(f"one of several servers can't be a UNIX socket: {url!r}")
            server.connect_timeout_s = _CONNECT_TIMEOUT_S
            if is_name:
                self._names.append(_Name(server))
            else:
                server.url = f"{url} (one of several servers)"
                self._servers.append(server)
        self.url = ", ".join(urls)
        random.shuffle(self._servers)  # so that not all clients begin with the same one

    def choose(self, tried: list[Server], *, also_resting: bool) -> Server | None:
        """Adds the server that it chooses to those that were tried."""
        now = anyio.current_time()
        found = [one for one in self._servers if one not in tried]
        awake = [one for one in found if one.rests_until <= now]
        if awake:
            server = min(awake, key=lambda one: one.running)
        elif found and also_resting:
            server = min(found, key=lambda one: (one.failures, one.running))
        else:
            return None
        self._servers.remove(server)
        self._servers.append(server)
        tried.append(server)
        if server.failures:
            server.rest_again()  # from all but this call
        return server

    async def look_up(self, max_age_s: float) -> None:
        """Looks the names up, if this was not done for so long; while it lasts, others go on."""
        if not self._names:
            return
        has_some = bool(self._servers)
        if not has_some:
            max_age_s = _LOOK_UP_AFTER_FAILURE_S
        if self._is_known(max_age_s) or (has_some and self._lock.locked()):
            return
        async with self._lock:
            if self._is_known(max_age_s):
                return  # by the call that had the lock before
            # At the same time, so that a name without an answer does not hold up the others.
            with anyio.move_on_after(_LOOK_UP_TIMEOUT_S if has_some else math.inf):
                async with anyio.create_task_group() as tasks:
                    for name in self._names:
                        tasks.start_soon(self._look_up_one, name)
            self._looked_up_at = anyio.current_time()

    def _is_known(self, max_age_s: float) -> bool:
        return anyio.current_time() - self._looked_up_at < max_age_s

    async def _look_up_one(self, name: _Name) -> None:
        try:
            found = await name.look_up()
            if not found:
                raise OSError("its lookup found none")
        except (OSError, UnicodeError) as error:  # the addresses that are known stay
            self.lookup_error = str(error)
            return
        gone = [one for base, one in name.servers.items() if base not in found]
        new = [one for base, one in found.items() if base not in name.servers]
        random.shuffle(new)
        self._servers = [*new, *(one for one in self._servers if one not in gone)]
        name.servers = {base: name.servers.get(base, one) for base, one in found.items()}


class _Name:
    """A host name whose addresses are servers; `servers` has them by the base of their URLs."""

    def __init__(self, named: Server) -> None:
        self.servers = dict[str, Server]()
        self._named = named
        self._parts = urlsplit(named.base)

    async def look_up(self) -> dict[str, Server]:
        parts, named = self._parts, self._named
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        found = await anyio.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
        )
        servers = dict[str, Server]()
        for *_, (address, _) in found:
            at = f"[{address}]" if ":" in address else address
            base = f"{parts.scheme}://{at}:{port}{parts.path}"
            servers[base] = Server(
                f"{named.url} with the address {at}",
                base,
                headers={"host": parts.netloc},
                extensions={"sni_hostname": host},
                connect_timeout_s=named.connect_timeout_s,
            )
        return servers


def delay_before(attempt: int, asked_s: float) -> float | None:
    """Returns how long to wait after this attempt; None if the server asks for too long a wait."""
    if asked_s > _MAX_DELAY_S:
        return None
    # Not 2.0 ** attempt, which overflows for a thousand attempts.
    longest_s = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2.0 ** min(attempt - 1, 60))
    return min(_MAX_DELAY_S, asked_s + longest_s * random.uniform(0.5, 1.0))  # noqa: S311
