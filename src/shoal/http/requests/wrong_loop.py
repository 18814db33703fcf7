"""Code that is for the other event loop, known by how it fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from shoal.replicas.run_soon import into_this_loop

if TYPE_CHECKING:
    from collections.abc import Mapping

# What code for one loop is told when the other runs it, by the loop that it is for.
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
    """Says which event loop code is for that has failed in the running one.

    Args:
        failure: What it raised: the type and the message, or a traceback.

    Returns:
        What is wrong, and the option that mends it; None if it looks like another failure.
    """
    running, _ = into_this_loop()
    other = "trio" if running == "asyncio" else "asyncio"
    if not any(sign in failure for sign in _SIGNS[other]):
        return None
    return (
        f"this looks like code for {other}, and {running} runs this server: "
        f'start it with --event-loop {other}, or event_loop = "{other}" under [server] in its file'
    )
