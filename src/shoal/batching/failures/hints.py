"""Advice on errors of libraries whose objects belong to an event loop or a thread."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from shoal.batching.loops.this_loop import parking_of_this_loop

_NO_LOOP: Final = ("no running event loop", "no current event loop", "other framework like asyncio")
_ELSEWHERE: Final = (
    "created in a thread",
    "attached to a different loop",
    "bound to a different event loop",
    "Event loop is closed",
)
_PAGE: Final = "see the page 'Where your code runs'"
_NEEDS_ASYNCIO: Final = (
    'the code needs asyncio, and trio runs it: write shoal.blocking(f, backend="asyncio"), or '
    "shoal serve --event-loop asyncio"
)


def _says(error: BaseException, texts: tuple[str, ...]) -> bool:
    if not isinstance(error, Exception) or len(error.args) != 1:
        return False
    said: object = error.args[0]  # not str(error), which may be code of the user's
    return type(said) is str and any(text in said for text in texts)


def _needs_asyncio(error: BaseException) -> bool:
    is_trio = parking_of_this_loop().name == "trio"
    return is_trio and type(error) in (RuntimeError, TypeError) and _says(error, _NO_LOOP)


def with_hint(error: BaseException) -> BaseException:
    """Returns an error of a handler with advice, if it is one of code in the wrong loop or thread.

    The event loop that runs the handler must be running in this thread.
    """
    if _says(error, _ELSEWHERE):
        hint = (
            "make it where it is used: in `async def warm_up(self)` of a class with async methods, "
            f'with placement="thread", or with the option open= of a function: {_PAGE}'
        )
    elif _needs_asyncio(error):
        hint = f"{_NEEDS_ASYNCIO}: {_PAGE}"
    else:
        return error
    with suppress(Exception):  # its class may take other arguments
        hinted = type(error)(f"{error.args[0]}; {hint}")
        hinted.__cause__ = error
        return hinted
    return error


def constructor_hint(error: BaseException) -> str:
    """Returns advice on an error that a constructor raised, or an empty string."""
    if not _says(error, (*_NO_LOOP, *_ELSEWHERE)):
        return ""
    hint = (
        "; constructors run outside of the event loop, except those of classes with async methods: "
        f"make what needs the loop in `async def warm_up(self)`: {_PAGE}"
    )
    return f"{hint}; {_NEEDS_ASYNCIO}" if _needs_asyncio(error) else hint
