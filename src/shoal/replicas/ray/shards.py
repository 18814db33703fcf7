"""The other actors of a replica, its shards: notices when one of them dies.

They are the actors in the attributes of the code's object, also in lists, tuples and dicts. Without
one of them the replica can't work, but only the next batch would notice.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.loops.private import ready_call_of_ray_actor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PERIOD_S: Final = 1.0
_DEPTH: Final = 3


def _shards_of(code: Any) -> list[Any]:
    handle_class: Any = import_module("ray.actor").ActorHandle
    return list(_handles_in(getattr(code, "__dict__", {}), handle_class, _DEPTH))


def _handles_in(value: Any, handle_class: type[Any], depth: int) -> Iterator[Any]:
    if isinstance(value, handle_class):
        yield value
    elif depth and type(value) in (dict, list, tuple):
        elements: Any = cast("Any", value).values() if type(value) is dict else value
        for element in tuple(elements):
            yield from _handles_in(element, handle_class, depth - 1)


class Shards:
    """The other actors of the code's object `code`; `on_death` gets how one of them has died."""

    def __init__(self, code: Any, on_death: Callable[[str], object]) -> None:
        self._code = code
        self._on_death = on_death
        threading.Thread(target=self._watch, name="shoal shards", daemon=True).start()

    def explain(self, error: BaseException) -> str | None:
        """Returns how a shard has died if an error of the code means that; otherwise None."""
        ray: Any = import_module("ray")
        if not isinstance(error, ray.exceptions.ActorDiedError):
            return None
        asked: dict[Any, Any] = {}
        self._ask(asked)
        return self._dead_among(asked)

    def _watch(self) -> None:
        pause = threading.Event()
        asked: dict[Any, Any] = {}
        while True:
            # A busy actor answers late, but the pending call of a dead one fails at once.
            self._ask(asked)
            how = self._dead_among(asked)
            if how is not None:
                self._on_death(how)
                return
            if not asked:
                pause.wait(_PERIOD_S)

    def _ask(self, asked: dict[Any, Any]) -> None:
        waiting = set(map(id, asked.values()))
        for shard in _shards_of(self._code):
            if id(shard) not in waiting and (call := ready_call_of_ray_actor(shard)) is not None:
                asked[call] = shard

    def _dead_among(self, asked: dict[Any, Any]) -> str | None:
        """Waits for the answers, at most for a period, and removes them."""
        ray: Any = import_module("ray")
        if not asked:
            return None
        done, _ = ray.wait([*asked], num_returns=len(asked), timeout=_PERIOD_S)
        for reference in done:
            shard = asked.pop(reference)
            try:
                ray.get(reference)
            except ray.exceptions.ActorDiedError as error:
                # The code may have replaced it.
                if any(shard is held for held in _shards_of(self._code)):
                    lines = str(error).strip().splitlines()
                    return f"died: its actor {shard!r} has died: {lines[-1].strip()}"
            except Exception:  # noqa: S110 - it is being restarted, or does not answer
                pass
        return None
