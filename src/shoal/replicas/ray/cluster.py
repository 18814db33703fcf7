"""Ray itself: how this process joins a cluster, and what Ray is asked for.

The program's side of Ray is one for the process. The first replica connects it, and it stays until
the process ends. `ray.init` must not run in the main thread: there it takes SIGTERM for itself, and
the graceful end of a server would be lost.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from shoal.errors import HandlerFailed, Overloaded, WrongResultType

try:
    ray: Any = import_module("ray")
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        "placement='ray' needs Ray: pip install 'shoal[ray]'", name=missing.name
    ) from missing

from shoal.replicas.ray.actor import GROUPS, WORK_THREADS, ReplicaActor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.replicas.contract import Blueprint

_OURS: Final[Mapping[str, Any]] = {
    "max_restarts": 0,
    "max_task_retries": 0,
    "max_concurrency": WORK_THREADS,
    "lifetime": "non_detached",
}
"""What is the same for each actor: Shoal's supervisor restarts and repeats, and nothing of it may
outlive the program."""

_NOT_FOR_MANY: Final = ("name", "namespace", "get_if_exists")
"""What a backend's replicas can't have in common."""

_LARGE_BYTES: Final = 1_000_000
"""From here on a thread copies what is sent: the event loop would stand still meanwhile."""

_LOOKED_AT: Final = (0, 8, 16, 256)
"""How many elements of a list are looked at to tell its size, by the depth that is left: all items
of a batch, nearly always, and few of what is in them."""

_joining: Final = threading.Lock()
"""Held while this process connects, which only one thread may do at a time."""


def join() -> None:
    """Connects this process to Ray, if nobody has yet. It blocks.

    The cluster is the one that ``RAY_ADDRESS`` says, else one that was started on this machine,
    else a new one, as with any `ray.init`.

    Raises:
        Exception: What Ray raised.
    """
    with _joining:
        if not ray.is_initialized():
            ray.init()


def actor_options(blueprint: Blueprint) -> dict[str, Any]:
    """Returns what Ray is told about a replica's actor.

    A replica takes one CPU where nothing is said, as in Ray Serve, so that Ray spreads them out.

    Raises:
        ValueError: ``ray_options`` has something that is not for users to say.
    """
    options = blueprint.options
    given = dict(options.ray_options)
    refused = [name for name in given if name in _OURS or name in _NOT_FOR_MANY]
    if refused:
        raise ValueError(
            f"ray_options can't have {', '.join(refused)}: Shoal says that itself, for each replica"
        )
    given.setdefault("num_cpus", 1)
    if options.env:
        runtime_env = dict(given.get("runtime_env") or {})
        runtime_env["env_vars"] = {**(runtime_env.get("env_vars") or {}), **options.env}
        given["runtime_env"] = runtime_env
    return {**given, **_OURS}


def new_actor(blueprint: Blueprint, loop: str) -> Any:
    """Asks Ray for an actor, and returns the handle of it. It may block.

    Args:
        blueprint: What it is to be.
        loop: The event loop for async code.

    Raises:
        Exception: What Ray says against the options.
    """
    options = actor_options(blueprint)
    actor_class: Any = ray.remote(concurrency_groups=dict(GROUPS))(ReplicaActor)
    return actor_class.options(**options).remote(tuple(blueprint.identity), loop)


def death_of(error: BaseException) -> str | None:
    """Says how an actor died, if that is what an error means.

    That Ray can't reach it is as good as its death: the replica's process is killed then, in case
    that it still runs. So is a result that was lost with its node.
    """
    known = ray.exceptions
    if isinstance(error, known.RayTaskError):
        return None
    if not isinstance(error, known.RayActorError | known.ObjectLostError):
        return None
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


def failure_of(error: Exception, tag: str) -> Exception:
    """Makes an error of ours of one that came from Ray's own doing, not from the user's code."""
    known = ray.exceptions
    said = str(getattr(error, "cause", None) or error).strip().splitlines()
    text = said[-1] if said else type(error).__name__
    if isinstance(error, known.TaskCancelledError):
        return HandlerFailed(f"the handler was interrupted in {tag}")
    if isinstance(error, known.RayTaskError) and isinstance(error, known.RaySystemError):
        return TypeError(f"{tag} can't load what it was given: {text}")
    return WrongResultType(f"what {tag} gave back can't be sent: {text}")


async def put_if_large(load: Any, items: list[Any], tag: str) -> Any:
    """Puts what is sent into Ray's store, if it is large, and returns what stands for it.

    Args:
        load: What is sent.
        items: What of it may be large.
        tag: The replica that it is for.

    Raises:
        TypeError: It can't be pickled.
        Overloaded: The store has no room for it.

    Cancellation: waits until it is copied.
    """
    if least_bytes(items) < _LARGE_BYTES:
        return load
    try:
        return await anyio.to_thread.run_sync(ray.put, load)
    except Exception as error:
        check_can_be_sent(load, tag)
        raise Overloaded(f"Ray can't store what {tag} is called with: {error!r}") from error


def check_can_be_sent(content: Any, tag: str) -> None:
    """Looks whether it was what should be sent that made a call to Ray fail.

    Args:
        content: What should be sent.
        tag: The replica that it is for.

    Raises:
        TypeError: It can't be pickled.
    """
    cloudpickle: Any = ray.cloudpickle
    try:
        cloudpickle.dumps(content)
    except Exception as error:
        raise TypeError(f"what {tag} is called with can't be sent: {error!r}") from error


def least_bytes(value: Any, depth: int = 3) -> int:
    """Returns how many bytes a value takes at least, as far as that is seen at a glance.

    The first element of a long list stands for all of them.

    Args:
        value: Anything.
        depth: How many lists within lists are looked into.
    """
    if isinstance(value, bytes | bytearray | str):
        return len(value)
    size: Any = getattr(value, "nbytes", None)  # arrays and tensors
    if isinstance(size, int):
        return size
    elements: Any = value
    if isinstance(value, dict):
        elements = tuple(elements.values())
    if depth == 0 or type(elements) not in (list, tuple):
        return 0
    if len(elements) > _LOOKED_AT[depth]:
        return len(elements) * max(8, least_bytes(elements[0], depth - 1))
    return sum([least_bytes(element, depth - 1) for element in elements])
