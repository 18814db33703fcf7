"""Conversion of exceptions to data and back, to send them between processes safely.

An exception may fail to be pickled, or fail to be unpickled: pickle calls its class with ``args``,
which fails where ``__init__`` takes others. The worker tries both before it sends one. If that
fails, it sends the class, the ``args`` and the attributes, and the other end makes the exception
without calling ``__init__``. If that fails too, or the parent can't find the class, the type's name
and the text are sent, and become a `HandlerFailed`. An exception group is treated member by member.

In all cases the worker's traceback is a note on the error, and its causes cross in the same way.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from shoal.batching.running.run import kinds_of
from shoal.errors import HandlerFailed
from shoal.failures.exceptions import class_name, rebuilt, set_plainly, slots_of, users_part
from shoal.loops.event_loop import holds_ctrl_c
from shoal.replicas.code import jobs
from shoal.replicas.process.wire.messages import Dumps, unpickled

if TYPE_CHECKING:
    from collections.abc import Sequence


# How many causes of an error are sent, with itself.
_LONGEST_CHAIN: Final = 10


class ErrorAsData(NamedTuple):
    pickled: bytes | None
    type_name: str
    text: str
    traceback: str
    # Its cause, or else its context if that is shown.
    cause: ErrorAsData | None = None
    is_raised_from: bool = False

    @holds_ctrl_c
    def as_exception(self, where: str, name: str = jobs.HANDLER) -> Exception:
        """Returns the exception, or a `HandlerFailed` in its place, with a note on `where`."""
        error = self._loaded()
        if error is None:
            error = _failed(name, self.type_name, self.text)
        if self.traceback:
            # Its notes may be no list, and a foreign class may raise anything.
            with suppress(BaseException):
                error.add_note(f"In {where}:\n{self.traceback}")
        if self.cause is not None:
            before = self.cause.as_exception(where, name)
            set_plainly(error, "__cause__" if self.is_raised_from else "__context__", before)
        return error

    def _loaded(self) -> Exception | None:
        if self.pickled is None:
            return None
        try:
            error: Any = unpickled(self.pickled)
        except Exception:  # a foreign class may raise anything
            return None
        return error if isinstance(error, Exception) else None


def as_data(error: BaseException, dumps: Dumps = pickle.dumps) -> ErrorAsData:
    # The text of its traceback has those of its causes.
    return _chained(error, dumps, _LONGEST_CHAIN)._replace(traceback=_traceback_text(error))


def _chained(error: BaseException, dumps: Dumps, left: int) -> ErrorAsData:
    before = error.__cause__
    if before is None and not error.__suppress_context__:
        before = error.__context__
    return ErrorAsData(
        _pickled(error, dumps),
        class_name(error),
        _text(error),
        "",
        _chained(before, dumps, left - 1) if before is not None and left > 1 else None,
        error.__cause__ is not None,
    )


class SlotError(NamedTuple):
    error: ErrorAsData


def slots_as_data(results: Any, dumps: Dumps = pickle.dumps) -> Any:
    """Returns a handler's results with the exceptions among them converted to data."""
    if not issubclass(type(results), list | tuple):
        return results
    slots: Sequence[Any] = results
    if not any(isinstance(slot, BaseException) for slot in slots):
        return slots
    return [SlotError(as_data(s, dumps)) if isinstance(s, BaseException) else s for s in slots]


def check_may_leave(results: Any) -> None:
    """Raises a TypeError for a response that only the server's process can send."""
    responses: Any = sys.modules.get("starlette.responses")
    # The last name in that module, which another thread may be importing.
    if not hasattr(responses, "FileResponse") or type(results) not in (list, tuple):
        return
    for kind in kinds_of(results):
        if issubclass(kind, (responses.StreamingResponse, responses.FileResponse)):
            raise TypeError(
                f"a {kind.__name__} can't leave its process; write the handler as a generator to "
                "stream, return a Response with all of the bytes, or run the code with "
                "placement='task' or 'thread'"
            )


def slots_as_exceptions(results: Any, where: str) -> Any:
    if not issubclass(type(results), list):
        return results
    slots: list[Any] = results
    if SlotError not in map(type, slots):
        return slots
    return [s.error.as_exception(where) if isinstance(s, SlotError) else s for s in slots]


def _pickled(error: BaseException, dumps: Dumps) -> bytes | None:
    return _surviving(error, error, dumps) or _surviving(_Rebuilt(error, dumps), error, dumps)


def _surviving(form: object, error: BaseException, dumps: Dumps) -> bytes | None:
    """Returns a form of an error, pickled; None if unpickling does not return an equal error."""
    try:
        data = dumps(form, 5)
        again = unpickled(data)
        return data if _are_alike(again, error, deep=form is error) else None
    except BaseException:  # a foreign class may raise anything
        return None


def _are_alike(one: object, other: BaseException, *, deep: bool) -> bool:
    if type(one) is not type(other) or str(one) != str(other):
        return False
    if not deep or not isinstance(other, BaseExceptionGroup):
        return True
    pairs = zip(cast("Any", one).exceptions, cast("Any", other).exceptions, strict=True)
    return all(_are_alike(member, of_other, deep=True) for member, of_other in pairs)


class _Rebuilt:
    """The form of an error that is rebuilt without calling its ``__init__``."""

    def __init__(self, error: BaseException, dumps: Dumps) -> None:
        self._error = error
        self._dumps = dumps

    def __reduce__(self) -> Any:
        error, cls = self._error, type(self._error)
        args: Any = error.args
        slots = slots_of(error)
        if isinstance(error, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", error)
            args = group.message, [_Member(member, self._dumps) for member in group.exceptions]
        return rebuilt, (cls, args, error.__dict__, slots)


class _Member:
    """The form of a group's member, or a `HandlerFailed` if the member can't be sent."""

    def __init__(self, error: BaseException, dumps: Dumps) -> None:
        self._error = error
        self._data = _pickled(error, dumps)

    def __reduce__(self) -> Any:
        if self._data is not None:
            return unpickled, (self._data,)
        return _failed, (jobs.HANDLER, class_name(self._error), _text(self._error))


def _failed(name: str, type_name: str, text: str) -> HandlerFailed:
    return HandlerFailed(f"{name} raised {type_name}" + (f": {text}" if text else ""))


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
