"""What is no `Exception`, and may come out of user code all the same."""

import anyio
import trio


class Panic(BaseException):
    """Like the class that Rust extensions raise."""


def trio_cancelled() -> BaseException:
    """Makes a `trio.Cancelled` as code may keep one."""
    kept: list[BaseException] = []

    async def main() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as error:
                kept.append(error)
                raise

    trio.run(main)
    return kept[0].with_traceback(None)


async def cancellation() -> BaseException:
    """Makes a cancellation of this event loop that is over, as code may keep one."""
    kept: list[BaseException] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class() as error:
            kept.append(error)
            raise
    return kept[0]
