"""Every exception that Shoal raises, grouped by whose fault it is.

All derive from `ShoalError`, and from the builtin that fits, so that ``except TimeoutError`` works
for people who have never heard of Shoal. A mistake in an argument is a plain `TypeError` or
`ValueError`, as it is for any function. What the handler itself raises keeps its own type.
"""


class ShoalError(Exception):
    """The base of every error that is Shoal's own."""


# The caller's: the program is wired wrongly, or a limit that the caller set was reached.


class NotOpen(ShoalError, RuntimeError):
    """A batched function was called while no batcher for it was open in this event loop."""


class DeadlineExceeded(ShoalError, TimeoutError):
    """The request was not answered by its deadline, or waited in line for longer than it may."""


class ItemTooLarge(ShoalError, ValueError):
    """An item costs more than ``max_batch_size``, so no batch has room for it."""


class SlowReader(ShoalError, TimeoutError):
    """A stream's reader held its batch back for longer than ``slow_reader_timeout_s``."""


# The operator's: the service has no room, or is going away.


class Overloaded(ShoalError, RuntimeError):
    """There is no room for the request, or it can't end in time: full, shed, or refused as late."""


class BatcherClosed(ShoalError, ConnectionError):
    """The batcher stopped before it could answer; when it broke, ``__cause__`` says why."""


# The handler's: it broke the contract between a handler and its batch.


class WrongBatchSize(ShoalError, ValueError):
    """The handler gave back another number of results than it was given items.

    Attributes:
        expected: How many items the batch had.
        got: How many results came back, or None when they could not be counted.
    """

    def __init__(self, message: str, *, expected: int, got: int | None) -> None:
        super().__init__(message)
        self.expected = expected
        self.got = got


class WrongResultType(ShoalError, TypeError):
    """The handler gave back something that is not one result for each item of its batch."""


class Unfinished(ShoalError, RuntimeError):
    """The handler of an open batch ended, and had neither finished nor failed this request."""


class HandlerTimeout(ShoalError, TimeoutError):
    """The handler ran for longer than ``handler_timeout_s``."""


class HandlerFailed(ShoalError, RuntimeError):
    """The handler raised an exception that can't be copied for each caller; it is the cause."""
