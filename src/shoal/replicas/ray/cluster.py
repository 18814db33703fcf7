"""The use of Ray: joins a cluster, and converts Ray's errors.

A process has one connection to Ray. The first replica opens it, and it stays open until the process
ends. `ray.init` must not run in the main thread: there it installs its own SIGTERM handler, and a
server would no longer shut down gracefully.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
import weakref
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from shoal.core.extras import needing
from shoal.loops.private import draining_nodes_of_ray, uses_ray_client

with needing("placement='ray'", "ray"):
    ray: Any = import_module("ray")

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

logger: Final = logging.getLogger("shoal.replicas")

# Ray ends the process if the GCS, its head service, is away for longer than this variable says: by
# default 60 s. The endpoints that don't use Ray would end too.
_GCS_TIMEOUT: Final = "RAY_gcs_rpc_server_reconnect_timeout_s"
_NEVER_S: Final = "1000000000"

# How long a thread waits for the thread that uses Ray. When the GCS is away, such calls take long.
_TURN_S: Final = 60.0

# How long the head node may take to accept a connection, and to answer.
_HEAD_S: Final = 5.0

# How long the GCS may take to say which nodes it drains, and how long replicas share the answer.
_GCS_S: Final = 2.0
_FRESH_S: Final = 1.0

# How long the actors of a dead node's program may take to end, before it connects again.
_ALL_GONE_S: Final = 10.0

# Held while this process connects to Ray or asks its GCS; only one thread may do that at a time.
_turn: Final = threading.Lock()

# What uses the current connection: links, streams and large arguments under way. In Ray, a call on
# a closed connection ends the process.
_users: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


@contextmanager
def my_turn(limit_s: float = _TURN_S) -> Generator[None]:
    if not _turn.acquire(timeout=limit_s):
        raise TimeoutError("Ray has not answered an earlier call; is its head node running?")
    try:
        if ray.is_initialized():
            _check_is_direct(uses_ray_client())
            _check_head_answers()
        yield
    finally:
        _turn.release()


def _check_head_answers() -> None:
    # Ray 2.60 ends the process when `ray.nodes` has waited for the GCS for 60 s.
    address = ray.get_runtime_context().gcs_address
    host, _, port = address.rpartition(":")
    try:
        _check_accepts(host.strip("[]"), int(port))
        draining_nodes_of_ray(_HEAD_S)  # a frozen head node accepts, and does not answer
    except Exception as error:
        raise ConnectionError(
            f"Ray's head node can't be reached at {address}: {error}; its actors keep running, "
            "and new ones start when it is back"
        ) from error


def _check_accepts(host: str, port: int) -> None:
    socket.create_connection((host, port), _HEAD_S).close()


def end_use(user: object) -> None:
    _users.discard(user)


class _OwnNode:
    def __init__(self) -> None:
        # Since when there is none, although there was one; None while there is one.
        self.lost_since: float | None = None
        self.address: tuple[str, int] | None = None

    def is_lost(self) -> bool:
        """Asks Ray's head node. It blocks."""
        own = ray.get_runtime_context().get_node_id()
        for node in ray.nodes():
            if node["NodeID"] == own and node["Alive"]:
                self.address = node["NodeManagerAddress"], node["NodeManagerPort"]
                return False
        return True

    def refuses(self) -> bool:
        """Asks the node itself, which is only certain if its answer is no. It blocks."""
        if self.address is None:
            return False
        try:
            _check_accepts(*self.address)
        except OSError:
            return True
        return False

    def note_loss(self) -> None:
        self.lost_since = self.lost_since or time.monotonic()


_own_node: Final = _OwnNode()


def lost_for_s() -> float:
    """Returns how long this process has been unable to connect to Ray again."""
    since = _own_node.lost_since
    return 0.0 if since is None else time.monotonic() - since


def join(user: object) -> None:
    """Connects this process to Ray, unless it is connected. It blocks.

    The connection stays open while it has users. It is lost when the Ray node of this process dies;
    Ray ends its actors on all nodes then, and this connects again.
    """
    try:
        with my_turn():
            if ray.is_initialized() and _own_node.is_lost():
                logger.warning("the Ray node of this program has died; connecting to Ray again")
                _own_node.note_loss()
                _disconnect()
            if not ray.is_initialized():
                _connect()
            _own_node.lost_since = None
            _users.add(user)
    except ConnectionError:
        if _own_node.refuses():  # it has died with the head node
            _own_node.note_loss()
        raise


def has_lost_node() -> bool:
    """Returns whether the Ray node of this process has died. It blocks."""
    try:
        with my_turn():
            return _own_node.is_lost()
    except ConnectionError:
        if not _own_node.refuses():
            raise
        return True


class _Draining:
    def __init__(self) -> None:
        self.nodes: Mapping[str, int] = {}
        self.read_at = -math.inf


_draining: Final = _Draining()


def draining_nodes() -> Mapping[str, int]:
    """Returns the nodes that Ray is draining, each with its deadline in ms, or 0. It may block."""
    now = time.monotonic()
    if now - _draining.read_at > _FRESH_S:
        # Without an answer, or while another thread asks the GCS, the last one counts.
        with suppress(Exception), my_turn(0.0):
            _draining.read_at = now
            _draining.nodes = draining_nodes_of_ray(_GCS_S) if ray.is_initialized() else {}
    return _draining.nodes


def _check_is_direct(is_client: bool) -> None:
    if is_client:
        raise ValueError(
            "placement='ray' can't use Ray Client, that is addresses with ray://; run this program "
            "on a node of the cluster, with RAY_ADDRESS=auto or the address of the head node, such "
            "as 10.0.0.1:6379"
        )


def _connect() -> None:
    # As with any `ray.init`, the cluster is the one in ``RAY_ADDRESS``, otherwise one that was
    # started on this machine, otherwise a new one.
    _check_is_direct("://" in os.environ.get("RAY_ADDRESS", ""))
    os.environ.setdefault(_GCS_TIMEOUT, _NEVER_S)
    ray.init()
    _own_node.is_lost()  # remembers its address


def _disconnect() -> None:
    end = time.monotonic() + _ALL_GONE_S
    while _users:
        if time.monotonic() > end:
            raise TimeoutError("the Ray node of this program has died, and Ray has not ended all")
        time.sleep(0.05)
    ray.shutdown()


def death_of(error: BaseException) -> str | None:
    """Returns how an actor died, if the error means that; otherwise None."""
    known = ray.exceptions
    if isinstance(error, known.RayTaskError):
        return None
    # An actor that Ray can't reach counts as dead: the replica's process is then killed, in case it
    # is still running. So is an actor if its node was lost with a result.
    if not isinstance(error, known.RayActorError | known.ObjectLostError):
        return None
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
