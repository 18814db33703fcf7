"""Detection of code that was written for the other event loop, by the errors that it raises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.replicas.threads import into_this_loop

if TYPE_CHECKING:
    from collections.abc import Mapping

# Parts of the error messages of code for one loop that runs in the other, by the loop it is for.
_SIGNS: Final[Mapping[str, tuple[str, ...]]] = {
    "asyncio": (
        "no running event loop",
        "no current event loop",
        "AsyncLibraryNotFoundError",
        "like asyncio?",
        "should be used inside a task",
    ),
    "trio": ("must be called from async context", "Task got bad yield"),
}


def hint_for(failure: str) -> str | None:
    """Returns a hint if an error looks like that of code for the other event loop.

    Args:
        failure: The error: its type and message, or a traceback.

    Returns:
        The hint, with the option that fixes it; None if it looks like another failure.
    """
    running, _ = into_this_loop()
    other = "trio" if running == "asyncio" else "asyncio"
    if not any(sign in failure for sign in _SIGNS[other]):
        return None
    return (
        f"this looks like code for {other}, and {running} runs this server: "
        f'start it with --event-loop {other}, or event_loop = "{other}" under [server] in its file'
    )
