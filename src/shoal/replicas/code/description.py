"""What a replica says about its code when it has started: the methods that it can be asked for.

It is the same record wherever the replica runs, and made of what can be sent between processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from inspect import Signature

from shoal.errors import NoSuchName


@dataclass(frozen=True)
class Method:
    """One method of a backend's code.

    Attributes:
        name: Its name; ``"__call__"`` for the usual one, and for a function.
        signature: That of a call of one item, whether or not the code takes lists.
        streams: Whether it answers by a stream.
        batched: Whether it takes lists; else it gets one item at a time.
        gathers: Whether it is async code of one item that forms batches by itself, by methods that
            are decorated with `shoal.batch`: so many calls of it must run at once.
    """

    name: str
    signature: Signature
    streams: bool
    batched: bool
    gathers: bool = False


@dataclass(frozen=True)
class Description:
    """What a replica's code can do.

    Attributes:
        methods: Its public methods, by name.
        reconfigures: Whether it has ``reconfigure(user_config)``.
        checks_health: Whether it has ``health()``.
    """

    methods: Mapping[str, Method]
    reconfigures: bool
    checks_health: bool

    def method(self, name: str) -> Method:
        """Returns a method.

        Raises:
            NoSuchName: There is none of that name.
        """
        found = self.methods.get(name)
        if found is None:
            raise NoSuchName(
                f"the backend has no method {name!r}; it has {', '.join(sorted(self.methods))}"
            )
        return found
