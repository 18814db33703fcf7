"""Every exception that Shoal raises, grouped by whose fault it is.

All derive from `ShoalError`, and from the builtin that fits, so that ``except TimeoutError`` works
for people who have never heard of Shoal. A mistake in an argument is a plain `TypeError` or
`ValueError`, as it is for any function. What the handler itself raises keeps its own type.
"""


class ShoalError(Exception):
    """The base of every error that is Shoal's own."""


# The caller's: the program is wired wrongly, or a limit that the caller set was reached.


class NotOpen(ShoalError, RuntimeError):  # noqa: N818 - named for the condition, as in trio
    """A batched function was called while no batcher for it was open in this event loop."""


class DeadlineExceeded(ShoalError, TimeoutError):  # noqa: N818
    """The request was not answered by its deadline, in line or in a handler."""


class SlowReader(ShoalError, TimeoutError):  # noqa: N818
    """A stream's reader held its batch back for longer than ``slow_reader_timeout_s``."""


# The operator's: the service has no room, or is going away.


class Overloaded(ShoalError, RuntimeError):  # noqa: N818
    """The line is full: ``max_queued_requests`` are waiting already."""


class BatcherClosed(ShoalError, ConnectionError):  # noqa: N818
    """The batcher stopped before it could answer; when it broke, ``__cause__`` says why."""


# The handler's: it broke the contract between a handler and its batch.


class WrongBatchSize(ShoalError, ValueError):  # noqa: N818
    """The handler gave back another number of results than it was given items.

    Attributes:
        expected: How many items the batch had.
        got: How many results came back, or None when they could not be counted.
    """

    def __init__(self, message: str, *, expected: int, got: int | None) -> None:
        super().__init__(message)
        self.expected = expected
        self.got = got


class WrongResultType(ShoalError, TypeError):  # noqa: N818
    """The handler gave back something that is not one result for each item of its batch."""


class HandlerTimeout(ShoalError, TimeoutError):  # noqa: N818
    """The handler ran for longer than ``handler_timeout_s``."""


class HandlerFailed(ShoalError, RuntimeError):  # noqa: N818
    """The handler raised an exception that can't be copied for each caller; it is the cause."""
