"""Every exception that Shoal raises, grouped by whose fault it is.

All derive from `ShoalError`, and from the builtin that fits, so that ``except TimeoutError`` works
for people who have never heard of Shoal. A mistake in an argument is a plain `TypeError` or
`ValueError`, as it is for any function. What the handler itself raises keeps its own type.

All of them copy and pickle, with their message, attributes and notes, so they cross a pool of
processes. The standard way to do that calls the class with the error's ``args``, which fails for
one that takes more than a message; here no constructor is called again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

E = TypeVar("E", bound="ShoalError")


class ShoalError(Exception):
    """The base of every error that is Shoal's own."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        state = dict(self.__dict__)
        if "__notes__" in state:
            state["__notes__"] = list(state["__notes__"])  # or a copy's notes would be shared
        return _made_again, (type(self), self.args), state


def _made_again(kind: type[E], args: tuple[Any, ...]) -> E:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


# The caller's: the program is wired wrongly, or a limit that the caller set was reached.


class NotOpen(ShoalError, RuntimeError):
    """A batched function was called while no batcher for it was open in this event loop."""


class WouldDeadlock(ShoalError, RuntimeError):
    """A handler called its own batcher and would wait for itself: its batch has the only slot."""


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


class BackendUnavailable(ShoalError, ConnectionError):
    """No replica of the backend runs, and none can be started; ``__cause__`` says why."""


class ReplicaDied(ShoalError, ConnectionError):
    """A replica ended while it had work: its process exited or was killed, or its node was lost.

    Attributes:
        replica: Its tag, such as ``"embed#3"``.
        exit_code: What its process exited with; None if it was killed, or is not known.
        signal: The name of the signal that killed it, such as ``"SIGKILL"``; None if none did.
        last_lines: The last of what it wrote to its stderr.
    """

    def __init__(
        self,
        message: str,
        *,
        replica: str = "",
        exit_code: int | None = None,
        signal: str | None = None,
        last_lines: str = "",
    ) -> None:
        super().__init__(message)
        self.replica = replica
        self.exit_code = exit_code
        self.signal = signal
        self.last_lines = last_lines


class ReplicaNotStarted(ShoalError, RuntimeError):
    """A replica could not be started: its code can't be loaded, raised, or took too long."""


class ShutDown(ShoalError, RuntimeError):
    """The client, or what it drives, was shut down already."""


# The operator's: a command that can't be obeyed.


class NoSuchName(ShoalError, KeyError):
    """There is no backend or endpoint of that name; the message says which there are."""

    def __str__(self) -> str:
        # A KeyError's own shows the repr of its message.
        return str(self.args[0])


class NameTaken(ShoalError, ValueError):
    """There is a backend, an endpoint or a route of that name already."""


class InUse(ShoalError, RuntimeError):
    """A backend can't be deleted while an endpoint sends it requests."""


class NotDurable(ShoalError, ValueError):
    """An object can't be kept in a state file, where an import path could."""


class NotAllowed(ShoalError, PermissionError):
    """An import path leads to a module that the operator did not allow, or the token is wrong."""


class StateRefused(ShoalError, RuntimeError):
    """A state file is damaged, of another program, in use, or of a newer version of Shoal."""


# The handler's: it broke the contract between a handler and its batch.


class LifespanFailed(ShoalError, RuntimeError):
    """An application that was to be served did not start, or did not end, as it should.

    Attributes:
        details: The application's own account, usually a traceback.
    """

    def __init__(self, message: str, *, details: str) -> None:
        super().__init__(message)
        self.details = details


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
