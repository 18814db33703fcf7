"""The use of Ray: joins a cluster, creates actors, and converts Ray's errors.

A process has one connection to Ray. The first replica opens it, and it stays open until the process
ends. `ray.init` must not run in the main thread: there it installs its own SIGTERM handler, and a
server would no longer shut down gracefully.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from shoal.core.extras import needing
from shoal.errors import HandlerFailed, Overloaded, WrongResultType

with needing("placement='ray'", "ray"):
    ray: Any = import_module("ray")

from shoal.replicas.placements import RayOptions
from shoal.replicas.ray.actor import GROUPS, WORK_THREADS, ReplicaActor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shoal.replicas.contract import Blueprint

# The options of every actor: Shoal's supervisor restarts replicas and retries work, and actors must
# not outlive the program.
_OURS: Final[Mapping[str, Any]] = {
    "max_restarts": 0,
    "max_task_retries": 0,
    "max_concurrency": WORK_THREADS,
    "lifetime": "non_detached",
}

# Options that a backend's replicas can't share.
_NOT_FOR_MANY: Final = ("name", "namespace", "get_if_exists")

# Options that decide where there is a place for an actor.
_ASKED: Final = ("num_cpus", "num_gpus", "memory", "resources", "scheduling_strategy")

# From this size on, a thread copies what is sent, because copying would block the event loop.
_LARGE_BYTES: Final = 1_000_000

# How many elements of a list are measured to estimate its size, by the remaining depth: nearly
# always all items of a batch, and few of the elements in them.
_LOOKED_AT: Final = (0, 8, 16, 256)

_MOST_SHOWN: Final = 8

# Held while this process connects to Ray; only one thread may do that at a time.
_joining: Final = threading.Lock()


def join() -> None:
    """Connects this process to Ray, unless it is connected. It blocks."""
    # As with any `ray.init`, the cluster is the one in ``RAY_ADDRESS``, otherwise one that was
    # started on this machine, otherwise a new one.
    with _joining:
        if not ray.is_initialized():
            ray.init()


def actor_options(blueprint: Blueprint) -> dict[str, Any]:
    """Returns the Ray options of a replica's actor; ValueError for options that Shoal sets."""
    options = RayOptions(**blueprint.placement_options)
    given = dict(options.ray_options)
    refused = [name for name in given if name in _OURS or name in _NOT_FOR_MANY]
    if refused:
        raise ValueError(
            f"ray_options can't have {', '.join(refused)}: Shoal sets that itself for each replica"
        )
    # As in Ray Serve, so that Ray spreads replicas out.
    given.setdefault("num_cpus", 1)
    if options.gpus is not None:
        given["num_gpus"] = options.gpus
    if options.env:
        runtime_env = dict(given.get("runtime_env") or {})
        runtime_env["env_vars"] = {**(runtime_env.get("env_vars") or {}), **options.env}
        given["runtime_env"] = runtime_env
    return {**given, **_OURS}


def asked_of_ray(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the resources that an actor requests from the cluster, for messages."""
    return {name: options[name] for name in _ASKED if name in options}


def new_actor(blueprint: Blueprint, loop: str) -> Any:
    """Requests an actor from Ray, and returns its handle. It may block."""
    options = actor_options(blueprint)
    actor_class: Any = ray.remote(concurrency_groups=dict(GROUPS))(ReplicaActor)
    return actor_class.options(**options).remote(tuple(blueprint.identity), loop)


def free_resources() -> str:
    """Returns the cluster's free resources, for messages. It blocks."""
    free: Mapping[str, float] = ray.available_resources()
    there: Mapping[str, float] = ray.cluster_resources()
    shown = [
        f"{free.get(name, 0.0):g} of {number:g} {name}"
        for name, number in sorted(there.items())
        if ":" not in name and not name.endswith("memory")
    ]
    return f"these are free: {', '.join(shown[:_MOST_SHOWN])}" if shown else "none are free"


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


def failure_of(error: Exception, tag: str) -> Exception:
    """Converts an error of Ray's, not of the user's code, to one of Shoal's."""
    known = ray.exceptions
    said = str(getattr(error, "cause", None) or error).strip().splitlines()
    text = said[-1] if said else type(error).__name__
    if isinstance(error, known.TaskCancelledError):
        return HandlerFailed(f"the handler was interrupted in {tag}")
    if isinstance(error, known.RayTaskError) and isinstance(error, known.RaySystemError):
        return TypeError(f"{tag} can't unpickle its arguments: {text}")
    return WrongResultType(f"the result of {tag} can't be sent: {text}")


async def put_if_large(load: Any, items: list[Any], tag: str) -> Any:
    """Puts a large load into Ray's object store, even when cancelled; returns its reference."""
    if least_bytes(items) < _LARGE_BYTES:
        return load
    try:
        return await anyio.to_thread.run_sync(ray.put, load)
    except Exception as error:
        check_can_be_sent(load, tag)
        raise Overloaded(f"Ray can't store the arguments of a call to {tag}: {error!r}") from error


def check_can_be_sent(content: Any, tag: str) -> None:
    """Raises a TypeError if a call failed because its arguments can't be pickled."""
    cloudpickle: Any = ray.cloudpickle
    try:
        cloudpickle.dumps(content)
    except Exception as error:
        raise TypeError(f"the arguments of a call to {tag} can't be sent: {error!r}") from error


def least_bytes(value: Any, depth: int = 3) -> int:
    """Returns a cheap estimate of the minimum size of a value, in bytes."""
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
        # The first element stands for all others of a long list.
        return len(elements) * max(8, least_bytes(elements[0], depth - 1))
    return sum([least_bytes(element, depth - 1) for element in elements])
