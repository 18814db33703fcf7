"""The other actors of a replica, its shards: whether an error of the code means that one has died.

They are the actors in the attributes of the code's object, also in lists, tuples and dicts. Without
one of them the replica can't work.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.loops.private import ready_call_of_ray_actor

if TYPE_CHECKING:
    from collections.abc import Iterator

# How long the shards may take to answer. A busy actor answers late, but the call of a dead one
# fails at once.
_LIMIT_S: Final = 1.0
_DEPTH: Final = 3


def death_of_shard(code: Any, error: BaseException) -> str | None:
    """Returns how a shard of the object has died if the error means that; otherwise None."""
    ray: Any = import_module("ray")
    if not isinstance(error, ray.exceptions.ActorDiedError):
        return None
    handle_class: Any = import_module("ray.actor").ActorHandle
    shards = _handles_in(getattr(code, "__dict__", {}), handle_class, _DEPTH)
    asked = {
        call: shard for shard in shards if (call := ready_call_of_ray_actor(shard)) is not None
    }
    if not asked:
        return None
    done, _ = ray.wait([*asked], num_returns=len(asked), timeout=_LIMIT_S)
    for call in done:
        try:
            ray.get(call)
        except ray.exceptions.ActorDiedError as death:
            lines = str(death).strip().splitlines()
            return f"died: its actor {asked[call]!r} has died: {lines[-1].strip()}"
        except Exception:  # noqa: S112 - it is being restarted, or does not answer
            continue
    return None


def _handles_in(value: Any, handle_class: type[Any], depth: int) -> Iterator[Any]:
    if isinstance(value, handle_class):
        yield value
    elif depth and type(value) in (dict, list, tuple):
        elements: Any = cast("Any", value).values() if type(value) is dict else value
        for element in tuple(elements):
            yield from _handles_in(element, handle_class, depth - 1)
