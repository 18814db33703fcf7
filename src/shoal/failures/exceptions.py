"""Exceptions of user code: a copy for each caller, their classification, and their text.

A handler raises one exception, and many callers catch it. If they shared the object, each would add
its traceback to it, and one caller's ``raise ... from`` or ``add_note`` would show up in another's
log. Each caller therefore gets an object of the same type, with the original as its cause.
"""

from __future__ import annotations

import copy
import os
import signal
import threading
import traceback
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType, FunctionType, TracebackType
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from shoal.errors import HandlerFailed
from shoal.loops.event_loop import cancellations, holds_ctrl_c

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

    from anyio.abc import TaskGroup

    from shoal.loops.parking import Parking

_OWN: Final = f"{Path(__file__).parents[2]}{os.sep}"
# They call the user's code, or are between Shoal's frames.
_CALLERS: Final = frozenset(
    {
        *("anyio", "asyncio", "concurrent", "contextlib", "importlib", "_frozen_importlib"),
        *("outcome", "threading", "trio"),
    }
)

set_plainly: Final = object.__setattr__
"""Sets an attribute of an exception, even if its class is a frozen dataclass."""


@holds_ctrl_c
def own_copy(error: BaseException, name: str = "the handler") -> Exception:
    """Returns a copy of an error for one caller, with the error as its cause."""
    # It is a `HandlerFailed` if the type can't be copied, or if the error is not an `Exception`: an
    # unexpected one could end the caller's program.
    with suppress(BaseException):  # user code may raise anything
        if isinstance(error, Exception):
            twin = _copied(error)
            if twin is not error:
                assert type(twin) is type(error)
                set_plainly(twin, "__cause__", error)
                set_plainly(twin, "__traceback__", None)
                return twin
    said = ""
    with suppress(BaseException):  # user code may raise anything
        said = f": {error}" if str(error) else ""
    if isinstance(error, cancellations()):
        said += (
            "; no cancellation was requested, so it awaited something cancelled, or stored or "
            "created this exception itself"
        )
    failure = HandlerFailed(f"{name} raised {type(error).__name__}{said}")
    failure.__cause__ = error
    return failure


def ends_the_program(error: BaseException) -> bool:
    """Returns whether an error is `KeyboardInterrupt` or `SystemExit`, or a group with one."""
    return _holds(error, (KeyboardInterrupt, SystemExit))


def is_of_a_signal(error: BaseException) -> bool:
    """Returns whether a signal handler of the program raised an error that ends the program."""
    # Such an error can be raised in any code of the main thread, and is no bug of that code.
    if threading.current_thread() is not threading.main_thread() or not ends_the_program(error):
        return False
    handlers = map(signal.getsignal, signal.valid_signals())
    codes = {_code_of(handler) for handler in handlers if callable(handler)}
    return any(frame.f_code in codes for frame in _frames_of(error))


def _code_of(handler: Any) -> object:
    while isinstance(handler, partial):
        handler = handler.func
    call = handler if hasattr(handler, "__code__") else getattr(handler, "__func__", None)
    return getattr(call or type(handler).__call__, "__code__", None)


def _frames_of(error: BaseException) -> Iterator[FrameType]:
    traceback = error.__traceback__
    while traceback is not None:
        yield traceback.tb_frame
        traceback = traceback.tb_next
    for one in _members(error):
        yield from _frames_of(one)


def is_cancellation(error: BaseException) -> bool:
    """Returns whether an error is this event loop's cancellation, or a group with one."""
    return _holds(error, anyio.get_cancelled_exc_class())


def must_propagate(error: BaseException, parking: Parking) -> bool:
    """Returns whether a user code's error must propagate; else takes back its cancellation."""
    # These must: an error that ends the program, a cancellation if a cancel scope was cancelled,
    # and the `GeneratorExit` of a discarded coroutine. All others are errors of the code itself,
    # whatever their class, also a cancellation that was not requested.
    if isinstance(error, Exception):
        return False
    if ends_the_program(error):
        return True
    if isinstance(error, GeneratorExit):
        return not parking.is_in_task()
    if not is_cancellation(error):
        return False
    if parking.is_cancelled():
        return True
    parking.uncancel()
    return False


def _holds(
    error: BaseException, kinds: type[BaseException] | tuple[type[BaseException], ...]
) -> bool:
    return isinstance(error, kinds) or any(_holds(one, kinds) for one in _members(error))


def _copied(error: Exception) -> Exception:
    cls = type(error)
    if not isinstance(cls.__init__, FunctionType):
        # A builtin, or a plain subclass of one: the constructor sets its fields.
        twin = copy.copy(error)
    else:
        # A user-defined constructor could have any effect, so it is not called again.
        twin = rebuilt(cls, error.args, error.__dict__, slots_of(error))
    notes = getattr(error, "__notes__", None)
    if notes is not None:
        set_plainly(twin, "__notes__", list(notes))
    return twin


def slots_of(error: BaseException) -> dict[str, Any]:
    """Returns the values of an exception's slots."""
    found: dict[str, Any] = {}
    for base in type(error).__mro__:
        slots: Any = base.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else slots
        found |= {name: getattr(error, name) for name in names if hasattr(error, name)}
    return found


def rebuilt(
    cls: type[Any], args: tuple[Any, ...], attributes: dict[str, Any], slots: dict[str, Any]
) -> Any:
    """Makes an exception without calling its ``__init__``."""
    error: Any = cls.__new__(cls, *args)
    set_plainly(error, "args", args)
    for name, value in slots.items():
        set_plainly(error, name, value)
    error.__dict__.update(attributes)
    return error


def users_part(whole: TracebackType | None) -> TracebackType | None:
    """Returns a traceback from the first frame of the user's code on; None without such frames."""
    while whole is not None:
        frame = whole.tb_frame
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if not (frame.f_code.co_filename.startswith(_OWN) or package in _CALLERS):
            return whole
        whole = whole.tb_next
    return None


def failure_text(error: BaseException) -> str:
    """Returns an exception as text: the user's frames, the exception, and its notes."""
    error = alone(error)
    part = users_part(error.__traceback__)
    lines = "".join(traceback.format_exception(type(error), error, part)).splitlines()
    # The line of the exception is left out where the last note quotes it. The notes of a group come
    # last.
    last = lines[-1]
    quoted = {line for line in lines[:-1] if line and last.endswith(f": {line}")}
    if _members(error):
        lines.append(getattr(error, "__notes__", [in_one_line(error)])[-1])
    return "\n".join(line for line in lines if line not in quoted)


def alone(error: BaseException) -> BaseException:
    """Returns the exception in a group of one, as a task group raises it; others unchanged."""
    members = _members(error)
    return alone(members[0]) if len(members) == 1 else error


def _members(error: object) -> tuple[BaseException, ...]:
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).exceptions
    return ()


def class_name(error: BaseException) -> str:
    kind = type(error)
    in_module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"{in_module}{kind.__qualname__}"


def in_one_line(error: BaseException) -> str:
    return " ".join("".join(traceback.format_exception_only(type(error), error)[:1]).split())


@asynccontextmanager
async def ungrouped() -> AsyncGenerator[TaskGroup]:
    """A task group that raises an `Exception` of its block as it is, once all tasks have ended."""
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:
            failure = error
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # its traceback holds this frame


async def first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Waits until one of several functions returns, and cancels the others."""
    async with anyio.create_task_group() as tasks:

        async def wait(one: Callable[[], Awaitable[object]]) -> None:
            await one()
            tasks.cancel_scope.cancel()

        for one in waits:
            tasks.start_soon(wait, one)
