"""One exception for each caller.

A handler raises one exception and many callers must catch it. Were they to share the object, each
would add its traceback to it, and one caller's ``raise ... from`` or ``add_note`` would show in
another's log. So each gets an object of its own, of the same type, with the original as its cause.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from types import FunctionType
from typing import TYPE_CHECKING, Any

import anyio

from shoal.errors import HandlerFailed

if TYPE_CHECKING:
    from collections.abc import Iterable


def own_copy(error: BaseException) -> BaseException:
    """Makes a caller's own copy of an error.

    Args:
        error: What the handler raised, or put into a slot.

    Returns:
        An exception of the same type, arguments and attributes, with `error` as its cause; or a
        `HandlerFailed` with `error` as its cause where the type does not let itself be copied, or
        where it is the event loop's cancellation.
    """
    twin = error
    with suppress(Exception):  # whatever a foreign class does when it is copied
        twin = _copied(error)
        # One that says "you are cancelled" is for the event loop alone.
        if twin is not error and not isinstance(twin, anyio.get_cancelled_exc_class()):
            assert type(twin) is type(error)
            twin.__cause__ = error
            twin.__traceback__ = None
            return twin
    said = ""
    with suppress(Exception):
        said = f": {error}"
    twin = HandlerFailed(f"the handler raised {type(error).__name__}{said}")
    twin.__cause__ = error
    return twin


def _copied(error: BaseException) -> BaseException:
    cls = type(error)
    if not isinstance(cls.__init__, FunctionType):
        # A builtin, or a plain subclass of one: its fields are set by calling it with its
        # arguments.
        twin: BaseException = copy.copy(error)
    else:
        # Calling a constructor of the user's again could do anything, so it is gone round.
        twin = cls.__new__(cls, *error.args)
        twin.args = error.args
        for name in _slots(cls):
            if hasattr(error, name):
                setattr(twin, name, getattr(error, name))
        twin.__dict__.update(error.__dict__)
    notes = getattr(error, "__notes__", None)
    if notes is not None:
        twin.__notes__ = list(notes)
    return twin


def _slots(cls: type) -> Iterable[str]:
    for base in cls.__mro__:
        slots: Any = base.__dict__.get("__slots__", ())
        yield from (slots,) if isinstance(slots, str) else slots
