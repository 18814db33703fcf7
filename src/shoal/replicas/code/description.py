"""The description of a replica's code: the methods that can be called.

A replica returns it when it has started. It is the same record for every placement, and is made of
values that can be sent between processes.
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
        name: The method's name; ``"__call__"`` for the default method and for a function.
        signature: The signature of a call with one item, whether or not the code takes lists.
        streams: Whether it returns a stream.
        batched: Whether it takes lists; otherwise it gets one item at a time.
        gathers: Whether it is async code of one item that forms batches itself, with methods that
            `shoal.batch` decorates. Many calls of it must then run at once.
    """

    name: str
    signature: Signature
    streams: bool
    batched: bool
    gathers: bool = False


@dataclass(frozen=True)
class Description:
    """The methods and hooks of a replica's code.

    Attributes:
        methods: The public methods, by name.
        reconfigures: Whether it has ``reconfigure(user_config)``.
        checks_health: Whether it has ``health()``.
    """

    methods: Mapping[str, Method]
    reconfigures: bool
    checks_health: bool

    def method(self, name: str) -> Method:
        """Returns a method.

        Raises:
            NoSuchName: No method has that name.
        """
        method = self.methods.get(name)
        if method is None:
            raise self.has_no(name)
        return method

    def has_no(self, name: str) -> NoSuchName:
        """Returns the error for a method that does not exist."""
        return NoSuchName(
            f"the backend has no method {name!r}; it has {', '.join(sorted(self.methods))}"
        )
