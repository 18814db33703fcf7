"""Every exception that Shoal raises, grouped by whose fault it is.

All derive from `ShoalError` and from the builtin that fits, so ``except TimeoutError`` works in
code that does not know Shoal. A mistake in an argument is a plain `TypeError` or `ValueError`.
Exceptions that the handler raises keep their type.

All can be copied and pickled, with their message, attributes and notes, so they can be sent between
processes. The default ``__reduce__`` calls the class with the error's ``args``, which fails for a
class that takes more than a message. `ShoalError.__reduce__` calls no constructor.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

E = TypeVar("E", bound="ShoalError")


class ShoalError(Exception):
    """The base class of Shoal's own exceptions."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        state = dict(self.__dict__)
        if "__notes__" in state:
            state["__notes__"] = list(state["__notes__"])  # copies must not share the list
        return _rebuilt, (type(self), self.args), state


def _rebuilt(kind: type[E], args: tuple[Any, ...]) -> E:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


# Caller errors: the program uses Shoal wrongly, or a limit that the caller set was reached.


class NotOpen(ShoalError, RuntimeError):
    """A batched function was called while no batcher for it was open in this event loop."""


class WouldDeadlock(ShoalError, RuntimeError):
    """A handler waits for itself.

    It called its own batcher while its batch occupied the only worker slot; or it left a block that
    waits for it: of `shoal.blocking`, `shoal.open_batchers`, `shoal.Batcher` or `shoal.start`.
    """


class DeadlineExceeded(ShoalError, TimeoutError):
    """The request missed its deadline, or waited in the queue for longer than allowed."""


class ItemTooLarge(ShoalError, ValueError):
    """An item costs more than a batch may, so it does not fit into any.

    Attributes:
        limit_exceeded: The item's cost and the limit, in a sentence for clients; empty if the
            code of a backend raised it.
    """

    limit_exceeded = ""


class NoSuchModel(ShoalError, KeyError):
    """The request names a model that its backend does not have.

    Shoal raises it for a name that is not among `shoal.Models` ``names``; ``load_model`` may raise
    it, too. Over HTTP it is a 404.
    """

    __str__ = Exception.__str__  # KeyError's shows the repr of the message


class SlowReader(ShoalError, TimeoutError):
    """The reader of a stream held up its batch for longer than ``slow_reader_timeout_s``."""


# Service errors: the service is overloaded, failed, or is shutting down.


class RetryLater(ShoalError, RuntimeError):
    """A handler asks for its batch again later, because a service behind it is busy.

    Raise it in a handler. The requests of the batch go back to the head of the queue, in their
    order, and their deadlines and queue timeouts still apply. No batch starts for that time, or for
    a hundredth of a second if it is shorter. A request is put back at most 100 times; then its call
    raises this error. A stream that has had an item raises it at once, as does a request of an open
    batch.

    Args:
        after_s: For how long no batch may start, in seconds: at least 0, and finite.

    Attributes:
        after_s: The same.

    Raises:
        TypeError: `after_s` is not a number.
        ValueError: It is out of its range.
    """

    after_s: float

    def __init__(self, after_s: float = 1.0) -> None:
        if isinstance(after_s, bool) or not isinstance(after_s, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"after_s must be a number of seconds, not {after_s!r}; for a response of httpx "
                "call shoal.raise_for_retry(response)"
            )
        if not 0 <= after_s < math.inf:
            raise ValueError(f"after_s must be at least 0 seconds, and finite, not {after_s!r}")
        super().__init__(f"a service behind the handler asked to be called {after_s:g} s later")
        self.after_s = float(after_s)


class Overloaded(ShoalError, RuntimeError):
    """The request was rejected: no capacity, shed, or unable to finish before its deadline."""


class BatcherClosed(ShoalError, ConnectionError):
    """The batcher stopped before it could answer; if it failed, ``__cause__`` says why."""


class BackendUnavailable(ShoalError, ConnectionError):
    """No replica of the backend is running, and none can be started; ``__cause__`` says why."""


class ReplicaDied(ShoalError, ConnectionError):
    """A replica ended with work under way: its process exited or was killed, or its node was lost.

    Attributes:
        replica: The replica's tag, such as ``"embed#3"``.
        exit_code: The exit code of its process; None if it was killed or the code is not known.
        signal: The name of the signal that killed it, such as ``"SIGKILL"``; None if none did.
        last_lines: The last lines that it wrote to its stderr.
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
    """A replica could not be started: its code can't be loaded, raised, or took too long.

    Attributes:
        needs_restart: Whether the program has lost Ray, and can't connect again. A server then
            fails its liveness check.
    """

    def __init__(self, message: str, *, needs_restart: bool = False) -> None:
        super().__init__(message)
        self.needs_restart = needs_restart


class HttpProblem(ShoalError, RuntimeError):
    """A server responded to a client's request with an error that has no class of its own.

    Attributes:
        status: The HTTP status.
        kind: The last part of the problem's type, such as ``"invalid-item"``; empty if it is not a
            Shoal server's problem.
        members: The JSON object of the problem; empty if the response is not a problem.
    """

    def __init__(
        self, message: str, *, status: int, kind: str = "", members: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.members = dict(members or {})


class ShutDown(ShoalError, RuntimeError):
    """The client or its controller was already shut down."""


# Operator errors: a command that can't be carried out.


class NoSuchName(ShoalError, KeyError):
    """No backend, endpoint or method has that name; the message lists the existing names."""

    def __str__(self) -> str:
        # KeyError.__str__ shows the repr of the message.
        return str(self.args[0])


class NameTaken(ShoalError, ValueError):
    """A backend, an endpoint or a route already has that name."""


class InUse(ShoalError, RuntimeError):
    """A backend can't be deleted while an endpoint sends requests to it."""


class NotEnoughGpus(ShoalError, RuntimeError):
    """A backend asks for more GPUs than are free; the message says which replica has which."""


class NotDurable(ShoalError, ValueError):
    """A value can't be stored in a state file, such as an object given without an import path."""


class NotAllowed(ShoalError, PermissionError):
    """An import path names a module that the operator did not allow, or the token is wrong."""


class StateRefused(ShoalError, RuntimeError):
    """A state file is damaged, not Shoal's, in use, or written by a newer version of Shoal."""


class LifespanFailed(ShoalError, RuntimeError):
    """The lifespan startup or shutdown of a served application failed.

    Attributes:
        details: The application's own report, usually a traceback.
    """

    def __init__(self, message: str, *, details: str) -> None:
        super().__init__(message)
        self.details = details


# Handler errors: user code broke the contract between a handler and its batch.


class WrongBatchSize(ShoalError, ValueError):
    """The handler returned a different number of results than it received items.

    Attributes:
        expected: The number of items in the batch.
        got: The number of results, or None when they could not be counted.
    """

    def __init__(self, message: str, *, expected: int, got: int | None) -> None:
        super().__init__(message)
        self.expected = expected
        self.got = got


class WrongResultType(ShoalError, TypeError):
    """The handler returned something other than one result for each item of its batch."""


class Unfinished(ShoalError, RuntimeError):
    """The handler of an open batch ended without finishing or failing this request."""


class HandlerTimeout(ShoalError, TimeoutError):
    """The handler ran for longer than ``handler_timeout_s``."""


class HandlerFailed(ShoalError, RuntimeError):
    """The handler raised an exception that can't be copied for each caller; it is ``__cause__``."""
