"""Advice on errors of libraries whose objects belong to an event loop or a thread."""

from __future__ import annotations

from typing import Final

_NO_LOOP: Final = ("no running event loop", "no current event loop", "other framework like asyncio")
_OTHER_THREAD: Final = (
    "created in a thread",
    "attached to a different loop",
    "bound to a different event loop",
)
_PAGE: Final = "see the page 'Where your code runs'"


def _says(error: BaseException, texts: tuple[str, ...]) -> bool:
    if not isinstance(error, Exception) or len(error.args) != 1:
        return False
    said: object = error.args[0]  # not str(error), which may be code of the user's
    return type(said) is str and any(text in said for text in texts)


def handler_hint(error: BaseException, loop: str) -> str:
    """Returns advice on an error that a handler raised, or an empty string.

    Args:
        error: The error.
        loop: The event loop that runs the handler: "trio" or "asyncio".
    """
    if loop == "trio" and type(error) in (RuntimeError, TypeError) and _says(error, _NO_LOOP):
        return (
            "the handler needs asyncio, and trio runs it: write shoal.blocking(f, "
            'backend="asyncio"), or shoal serve --event-loop asyncio'
        )
    if _says(error, _OTHER_THREAD):
        return f"make it in `async def warm_up(self)`, or with the option open=: {_PAGE}"
    return ""


def constructor_hint(error: BaseException) -> str:
    """Returns advice on an error that a constructor raised, or an empty string."""
    if not _says(error, (*_NO_LOOP, *_OTHER_THREAD)):
        return ""
    return (
        "; a constructor runs outside of the event loop: make what needs the loop in "
        f"`async def warm_up(self)`: {_PAGE}"
    )
