"""The replica that the calling code runs in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

from shoal.batching import current

if TYPE_CHECKING:
    from contextvars import ContextVar


class Identity(NamedTuple):
    """The tags of a replica and its backend.

    Attributes:
        backend: The tag of its backend.
        replica: The replica's tag, such as ``"embed#3"``; tags are never reused.
        most_requests: How many requests it has at once, if its code takes one item at a time and
            forms batches by itself.
    """

    backend: str
    replica: str
    most_requests: float = math.inf


running_replica: Final[ContextVar[Identity]] = current.running_replica


def current_backend_tag() -> str:
    """Returns the tag of the backend that the calling code belongs to.

    It works in a backend's constructor, its methods, and the functions that they call, wherever
    the replica runs.

    Raises:
        RuntimeError: No backend is running here.
    """
    return _identity("current_backend_tag").backend


def current_replica_tag() -> str:
    """Returns the tag of the replica that the calling code runs in, such as ``"embed#3"``.

    Raises:
        RuntimeError: No backend is running here.
    """
    return _identity("current_replica_tag").replica


def _identity(function: str) -> Identity:
    try:
        return running_replica.get()
    except LookupError:
        raise RuntimeError(
            f"{function}() works only in a backend's code, and none is running here"
        ) from None
