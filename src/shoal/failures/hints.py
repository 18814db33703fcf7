"""Advice on errors of objects that belong to another event loop or thread."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from shoal.loops.this_loop import parking_of_this_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Parts of the error messages of code for one loop that runs in the other, by the loop it is for.
_SIGNS: Final[Mapping[str, tuple[str, ...]]] = {
    "asyncio": (
        "no running event loop",
        "no current event loop",
        "AsyncLibraryNotFoundError",
        "framework like asyncio",
        "should be used inside a task",
    ),
    "trio": ("must be called from async context", "Task got bad yield"),
}
_ELSEWHERE: Final = (
    "created in a thread",
    "attached to a different loop",
    "bound to a different event loop",
    "Event loop is closed",
)
_PAGE: Final = "see 'Where your code runs' on the page 'Replicas'"

_args: Final[Callable[[BaseException], tuple[object, ...]]] = vars(BaseException)["args"].__get__


def _message(error: BaseException) -> str:
    # Not error.args or str(error), which may be code of the user's.
    args: tuple[object, ...] = _args(error) if isinstance(error, Exception) else ()
    return args[0] if len(args) == 1 and type(args[0]) is str else ""


def _says(error: BaseException, texts: tuple[str, ...]) -> bool:
    return any(text in _message(error) for text in texts)


def _loop_of(failure: str) -> tuple[str, str] | None:
    """Returns the loop that failed code was written for, and the running one; None if unknown."""
    running = parking_of_this_loop().name
    other = "trio" if running == "asyncio" else "asyncio"
    return (other, running) if any(sign in failure for sign in _SIGNS[other]) else None


def _loop_hint(error: BaseException) -> str:
    loops = _loop_of(_message(error)) if type(error) in (RuntimeError, TypeError) else None
    if loops is None:
        return ""
    other, running = loops
    return (
        f"the code needs {other}, and {running} runs it: write "
        f'shoal.blocking(f, backend="{other}"), or shoal serve --event-loop {other}'
    )


def server_hint(failure: str) -> str | None:
    """Returns advice for a server if its code seems to be written for the other event loop."""
    loops = _loop_of(failure)
    if loops is None:
        return None
    other, running = loops
    return (
        f"this looks like code for {other}, and {running} runs this server: "
        f'start it with --event-loop {other}, or event_loop = "{other}" under [server] in its file'
    )


def with_hint(error: BaseException) -> BaseException:
    """Adds advice to an error of a handler if its code runs in the wrong loop or thread."""
    if _says(error, (_PAGE,)):  # from a call of this handler's
        return error
    if _says(error, _ELSEWHERE):
        hint = (
            "make it where it is used: in `async def warm_up(self)` of a class with async methods, "
            f'with placement="thread", or with the option open= of a function: {_PAGE}'
        )
    elif loop_hint := _loop_hint(error):
        hint = f"{loop_hint}: {_PAGE}"
    else:
        return error
    with suppress(Exception):  # its class may take other arguments
        hinted = type(error)(f"{_message(error)}; {hint}")
        hinted.__cause__ = error
        return hinted
    return error


def constructor_hint(error: BaseException) -> str:
    if not _says(error, (*_SIGNS["asyncio"], *_ELSEWHERE)):
        return ""
    hint = (
        "; constructors run outside of the event loop, except those of classes with async methods: "
        f"make what needs the loop in `async def warm_up(self)`: {_PAGE}"
    )
    loop_hint = _loop_hint(error)
    return f"{hint}; {loop_hint}" if loop_hint else hint
