"""Exceptions as data: how the admin API sends them, and how a remote client recreates them.

Each exception has a kind, a word that both sides know. The client creates only classes from these
tables: it imports nothing, and looks up no class by a name that was sent. An exception of the
user's code is sent as its nearest builtin base class, so ``except ValueError`` works on either
side. The text names its own class.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from shoal.errors import (
    BackendUnavailable,
    BatcherClosed,
    DeadlineExceeded,
    HandlerFailed,
    HandlerTimeout,
    InUse,
    ItemTooLarge,
    NameTaken,
    NoSuchName,
    NotAllowed,
    NotDurable,
    NotEnoughGpus,
    NotOpen,
    Overloaded,
    ReplicaDied,
    ReplicaNotStarted,
    ShutDown,
    SlowReader,
    StateRefused,
    Unfinished,
    WouldDeadlock,
    WrongBatchSize,
    WrongResultType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

KINDS: Final[Mapping[str, type[Exception]]] = {
    "backend-unavailable": BackendUnavailable,
    "closed": BatcherClosed,
    "deadline-exceeded": DeadlineExceeded,
    "handler-failed": HandlerFailed,
    "handler-timeout": HandlerTimeout,
    "in-use": InUse,
    "item-too-large": ItemTooLarge,
    "name-taken": NameTaken,
    "no-such-name": NoSuchName,
    "not-allowed": NotAllowed,
    "not-durable": NotDurable,
    "not-enough-gpus": NotEnoughGpus,
    "not-open": NotOpen,
    "overloaded": Overloaded,
    "replica-died": ReplicaDied,
    "replica-not-started": ReplicaNotStarted,
    "shut-down": ShutDown,
    "slow-reader": SlowReader,
    "state-refused": StateRefused,
    "type-error": TypeError,
    "unfinished": Unfinished,
    "value-error": ValueError,
    "would-deadlock": WouldDeadlock,
    "wrong-batch-size": WrongBatchSize,
    "wrong-result-type": WrongResultType,
}

RAISED: Final = "raised"
"""The kind of an exception that is not in `KINDS`."""

_KIND_OF: Final = {made: kind for kind, made in KINDS.items()}
_BUILTINS: Final[Mapping[str, type[Exception]]] = {
    made.__name__: made
    for made in (
        ArithmeticError,
        AssertionError,
        AttributeError,
        BufferError,
        ConnectionError,
        EOFError,
        FileNotFoundError,
        ImportError,
        IndexError,
        KeyError,
        LookupError,
        MemoryError,
        NameError,
        NotImplementedError,
        OSError,
        OverflowError,
        PermissionError,
        RecursionError,
        RuntimeError,
        TimeoutError,
        TypeError,
        ValueError,
        ZeroDivisionError,
    )
}


@dataclass(frozen=True)
class WireError:
    kind: str  # one of `KINDS`, or `RAISED`
    text: str
    # further attributes of its class
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])


def sent(error: Exception) -> WireError:
    for made in type(error).__mro__:
        is_ours = made not in (TypeError, ValueError) or made is type(error)
        if is_ours and (kind := _KIND_OF.get(made)) is not None:
            return WireError(kind, _text(error), _more(error))
    like = next((made.__name__ for made in type(error).__mro__ if _is_builtin(made)), "")
    raised = type(error)
    name = raised.__qualname__
    if raised.__module__ != "builtins":
        name = f"{raised.__module__}.{name}"
    return WireError(RAISED, _text(error), {"class": name, "like": like})


def received(error: WireError) -> Exception | None:
    """Returns None if the kind is unknown."""
    text, more = error.text, error.more
    if error.kind == RAISED:
        name, like = str(more.get("class", "")), str(more.get("like", ""))
        made = _BUILTINS.get(like, HandlerFailed)
        return made(text if name == like else f"{name}: {text}")
    if error.kind == "wrong-batch-size":
        expected = more.get("expected")
        return WrongBatchSize(
            text, expected=expected if isinstance(expected, int) else 0, got=more.get("got")
        )
    if error.kind == "replica-died":
        return ReplicaDied(
            text,
            exit_code=more.get("exit_code"),
            signal=more.get("signal"),
            last_lines=str(more.get("last_lines", "")),
        )
    found = cast("Callable[[str], Exception] | None", KINDS.get(error.kind))
    return None if found is None else found(text)


def _is_builtin(made: type) -> bool:
    return _BUILTINS.get(made.__name__) is made


def _text(error: Exception) -> str:
    if isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str):
        return error.args[0]  # str() gives its repr, which would gain quotes at each sending
    return str(error)


def _more(error: Exception) -> Mapping[str, Any]:
    match error:
        case WrongBatchSize():
            return {"expected": error.expected, "got": error.got}
        case ReplicaDied():
            return {
                "exit_code": error.exit_code,
                "signal": error.signal,
                "last_lines": error.last_lines,
            }
        case _:
            return {}
