"""All that Shoal reads of other libraries although they don't document it. It replaces nothing.

- ``Task._cancel_status`` of trio: the innermost cancel scope of a task, to notice a handler that
  has left one open. A public ``trio.lowlevel.current_cancel_scope()`` would do.
- ``_task_states`` and ``_parent_scope`` of anyio's asyncio backend: the same, and to leave the
  scope for the handler. A public way to the current scope and the one around it would do.
- ``Future._callbacks`` of asyncio, ``TaskGroup._parent_task``, and what the callbacks of ``gather``
  refer to: which task awaits a future, to refuse a call that waits for itself. From Python 3.14 on,
  `asyncio.capture_call_graph` does it.
- ``Future._asyncio_future_blocking`` of asyncio: whether a trio task, as asyncio's guest, awaits a
  future of asyncio. A public name for it would do.
- `OF_PYDANTIC`, a parameter of pydantic-core: whether the validator of a changed schema uses the
  validators that its models have already, which don't know the changes. A public parameter would
  do.
- The client of the GCS in a connected Ray driver, and its ``get_draining_nodes``: the nodes that
  will leave, as Ray Serve reads them. ``ray.nodes()`` could show it.
- ``__ray_ready__`` of Ray's actors, as Ray Serve calls it: a call that each actor answers, and that
  fails once the actor is dead. A public method with that name, or a callback on death, would do.
- ``ray.util.client.ray.is_connected``: whether the program uses Ray Client. A public
  ``ray.is_client()`` would do.

Where a library has none of that, each function returns what its docstring says. Then Shoal notices
less of what handlers do wrong: on asyncio one that never leaves a scope breaks its batcher, rather
than its batch. Models over HTTP accept NaN as text. Replicas stay on Ray's nodes until these have
gone, and notice the death of their shards by their next batch. And a program that uses Ray Client
fails with Ray's own errors. `tests/batching/test_private.py` and
`tests/http/json/test_json_type.py` take each away.
"""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    import trio

OF_TRIO_TASKS: Final = "_cancel_status"
OF_ANYIO: Final = "_task_states"
OF_ANYIO_SCOPES: Final = "_parent_scope"
OF_FUTURES: Final = "_callbacks"
OF_AWAITED_FUTURES: Final = "_asyncio_future_blocking"
OF_PYDANTIC: Final = "_use_prebuilt"
OF_RAY: Final = "get_draining_nodes"
OF_RAY_ACTORS: Final = "__ray_ready__"
OF_RAY_CLIENTS: Final = "is_connected"

V = TypeVar("V")


def scope_of_trio_task(task: trio.lowlevel.Task) -> Callable[[], object]:
    """Returns a function that identifies the innermost scope of a task, or returns None."""
    return partial(getattr, task, OF_TRIO_TASKS, None)


def scopes_of_anyio() -> Callable[[asyncio.Task[Any] | None], Any]:
    """Returns the function that returns anyio's record of a task; without anyio's, always None."""
    states: Any = getattr(import_module("anyio._backends._asyncio"), OF_ANYIO, {})
    found: Callable[[asyncio.Task[Any] | None], Any] = states.get
    return found


def scope_around(scope: object) -> object:
    """Returns the anyio scope entered before one, in the same task, if known."""
    return getattr(scope, OF_ANYIO_SCOPES, None)


def is_not_taken_up(future: object) -> bool:
    """Returns whether a future is awaited by something other than an asyncio task."""
    return bool(getattr(future, OF_AWAITED_FUTURES, False))


def tasks_that_await(future: object) -> Iterator[Any]:
    """Yields the tasks that await a future, or gather it with others."""
    loaded = sys.modules["asyncio"]  # not imported, since a program on trio has none
    for callback, *_ in getattr(future, OF_FUTURES, None) or ():
        owner = getattr(callback, "__self__", None)
        if isinstance(owner, loaded.Task):
            yield owner
        elif isinstance(owner, loaded.TaskGroup):
            yield getattr(owner, "_parent_task", None)
        elif getattr(callback, "__module__", "") == "asyncio.tasks":  # of gather(), or of shield()
            for name, waiter in zip(
                callback.__code__.co_freevars, callback.__closure__ or (), strict=True
            ):
                if name == "outer":
                    yield from tasks_that_await(waiter.cell_contents)


def rebuilt(validator: Callable[..., V], schema: object) -> V:
    """Builds a validator of a changed schema; if it can't, its models ignore the changes."""
    try:
        return validator(schema, **{OF_PYDANTIC: False})
    except TypeError:
        return validator(schema)


def draining_nodes_of_ray(timeout_s: float) -> dict[str, int]:
    """Returns Ray's nodes that are being drained, with their deadlines; empty if not known."""
    try:
        read = getattr(import_module("ray._private.worker").global_worker.gcs_client, OF_RAY)
    except (ImportError, AttributeError):
        return {}
    found: dict[str, int] = read(timeout=timeout_s)
    return found


def ready_call_of_ray_actor(handle: Any) -> Any:
    """Calls an actor, and returns the reference to its answer; None if that is not possible."""
    method = getattr(handle, OF_RAY_ACTORS, None)
    return None if method is None else method.remote()


def uses_ray_client() -> bool:
    """Returns whether the program is connected by Ray Client; False if not known."""
    try:
        client: Any = import_module("ray.util.client").ray
        # The object itself raises another error for an unknown attribute.
        read = getattr(cast("Any", type(client)), OF_RAY_CLIENTS)
    except (ImportError, AttributeError):
        return False
    return bool(read(client))
