"""Conversion of exceptions to data and back, to send them between processes safely.

An exception may fail to be pickled, or fail to be unpickled. So the worker tries both before it
sends one, and the parent handles one whose class it can't find. In these cases the type's name and
the text are sent, and become a `HandlerFailed`. In all cases the worker's traceback is a note on
the error.
"""

from __future__ import annotations

import pickle
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

from shoal.batching.failures.frames import users_part
from shoal.errors import HandlerFailed
from shoal.replicas.code import jobs
from shoal.replicas.process.wire.messages import unpickled

if TYPE_CHECKING:
    from collections.abc import Sequence


class ErrorAsData(NamedTuple):
    """An exception as data, for another process.

    Attributes:
        pickled: The pickled exception; None if it can't be sent.
        type_name: The name of its type.
        text: Its text.
        traceback: Its traceback, as text.
    """

    pickled: bytes | None
    type_name: str
    text: str
    traceback: str

    def as_exception(self, where: str, name: str = jobs.HANDLER) -> Exception:
        """Returns the exception, or a `HandlerFailed` in its place.

        Args:
            where: Where it was raised, for the note.
            name: The name of the code that raised it, for the message.
        """
        found = self._loaded()
        if found is None:
            said = f": {self.text}" if self.text else ""
            found = HandlerFailed(f"{name} raised {self.type_name}{said}")
        if self.traceback:
            found.add_note(f"In {where}:\n{self.traceback}")
        return found

    def _loaded(self) -> Exception | None:
        if self.pickled is None:
            return None
        try:
            found: Any = unpickled(self.pickled)
        except Exception:  # a foreign class may raise anything
            return None
        return found if isinstance(found, Exception) else None


def as_data(error: BaseException) -> ErrorAsData:
    """Converts an exception to data."""
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    return ErrorAsData(_pickled(error), name, _text(error), _traceback_text(error))


class SlotError(NamedTuple):
    """An exception as one of a batch's results, as data."""

    error: ErrorAsData


def slots_as_data(results: Any) -> Any:
    """Returns a handler's results with the exceptions among them converted to data."""
    if not issubclass(type(results), list | tuple):
        return results
    slots: Sequence[Any] = results
    if not any(isinstance(slot, BaseException) for slot in slots):
        return slots
    return [SlotError(as_data(s)) if isinstance(s, BaseException) else s for s in slots]


def slots_as_exceptions(results: Any, where: str) -> Any:
    """Reverses `slots_as_data`."""
    if not issubclass(type(results), list):
        return results
    slots: list[Any] = results
    if not any(isinstance(slot, SlotError) for slot in slots):
        return slots
    return [s.error.as_exception(where) if isinstance(s, SlotError) else s for s in slots]


def _pickled(error: BaseException) -> bytes | None:
    try:
        data = pickle.dumps(error, 5)
        again = unpickled(data)
        same = type(again) is type(error) and str(again) == str(error)
    except BaseException:  # a foreign class may raise anything
        return None
    return data if same else None


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # a foreign class may raise anything
        return ""


def _traceback_text(error: BaseException) -> str:
    if error.__traceback__ is None:
        return ""
    try:
        part = users_part(error.__traceback__) or error.__traceback__
        lines = traceback.format_exception(type(error), error, part)
    except BaseException:  # a foreign class may raise anything
        return ""
    return "".join(lines).rstrip()
