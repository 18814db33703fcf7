"""The contract of a replica: one running instance of a backend's code, wherever it runs.

A replica is a task. Its supervisor runs `Replica.serve` in a nursery of its own. That call reports
when the replica is ready, and returns or raises when it was stopped or has died, so nothing is
polled. Other tasks send work with `run` and `run_stream`, only while the replica is ready.

All implementations guarantee that no work is lost silently. When a replica dies, `serve` and each
`run` that is under way raise `ReplicaDied`, in no particular order. The error has the tag of the
replica (``replica=self.tag``), because user code may also get a `ReplicaDied` of another replica
that it called. Errors of user code keep their type where possible. Foreign errors (of pipes, of
pickle, of Ray) are converted to Shoal's, with the original as the cause.

`shoal.testing.check_replica` tests any implementation against this contract.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from shoal.core.options.option import check_options, finite_seconds, more_than_0, option

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from shoal.batching.current import Identity
    from shoal.batching.handlers.binding import Binding
    from shoal.batching.open_batch import OpenBatch
    from shoal.replicas.code.definition import Definition
    from shoal.replicas.code.endpoint_call import CallOut
    from shoal.replicas.code.instance import Description


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """How the replicas of a backend run, wherever they run.

    Attributes:
        start_timeout_s: How long a replica may take to start: to load its code, and to run the
            constructor, `reconfigure` and ``warm_up``. It also limits each later `reconfigure`.
            None for no limit.
        cancel_grace_s: How long work may keep running after its ``handler_timeout_s`` or the
            backend's ``graceful_shutdown_timeout_s``, before its process is killed.
    """

    start_timeout_s: float | None = option(60.0, more_than_0, may_be_none=True)
    cancel_grace_s: float = option(1.0, finite_seconds)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """The specification of a replica.

    Attributes:
        identity: The tags of the replica and its backend.
        number: Its index among the replicas of its backend, from 0: the lowest free one. Two
            replicas have 0 and 1; 2 is used only while one of them is being replaced.
        definition: The user's code.
        user_config: The argument of `reconfigure` at the start; None to skip that call.
        options: How the replica runs.
        placement_options: The options that were set for its placement, by name.
        devices: The GPUs for it, as in ``CUDA_VISIBLE_DEVICES``; empty unless ``gpus`` is among the
            options. Ray assigns GPUs itself.
        address: The address of the model server, with ``placement="remote"``.
    """

    identity: Identity
    definition: Definition
    number: int = 0
    user_config: Any = None
    options: ReplicaOptions = field(default_factory=ReplicaOptions)
    placement_options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    devices: tuple[str, ...] = ()
    address: str = ""


class Replica(ABC):
    """One running instance of a backend's code.

    Attributes:
        blueprint: The specification that it was made from.
    """

    takes_open_batches: ClassVar[bool] = False
    """Whether it can run open batches; a placement that is a class has this as its attribute."""

    on_call_out: Callable[[CallOut], Awaitable[Any]] | None = None
    """Makes the calls of the replica's code to endpoints, where the code is in another process.

    It returns the result; for a streaming call, an async context manager of an async iterator. If
    it is None, such calls are refused.
    """

    on_leaving: Callable[[str], object] | None = None
    """Replaces the replica without a loss of work, for the given reason: its machine will stop.

    A placement calls it. The replica works until another one is ready in its place. Calls before it
    is ready, and further calls, have no effect.
    """

    is_leaving: bool = False
    """Set by a placement: its machine announced its end, which is logged at INFO, and no death."""

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint

    @property
    def tag(self) -> str:
        """The tag of the replica, such as ``"embed#3"``."""
        return self.blueprint.identity.replica

    @property
    def takes_work(self) -> bool:
        """Whether the replica accepts work after it was ready, as far as this process knows.

        This is a hint: this process may not know yet that a replica has died. It is False as soon
        as this process has killed the replica.
        """
        return True

    @abstractmethod
    async def serve(self, *, task_status: TaskStatus[Description]) -> None:
        """Runs the replica: starts it, and waits until it is stopped or dies. Called once.

        A start does, in this order: load the code, construct a class with its init args, call
        ``reconfigure(user_config)`` if there is a user config, ``warm_up()`` if the code has one.
        ``start_timeout_s`` limits all of it.

        Args:
            task_status: Receives the description when the replica is ready for work.

        Returns:
            When `stop` has stopped it, after its code's ``close()`` was called, if it has one.

        Raises:
            ReplicaNotStarted: It did not become ready. The cause is the error of the code, if
                available.
            ReplicaDied: It died or was killed after it was ready.

        Cancellation: ends the replica at once; work under way raises `ReplicaDied`.
        """

    @abstractmethod
    def stop(self) -> None:
        """Asks the replica to end when it has no more work. Idempotent.

        The supervisor waits until no work is under way, or accepts that such work is lost.
        """

    @abstractmethod
    def kill(self, reason: str) -> None:
        """Ends the replica at once: work under way raises `ReplicaDied` with the reason.

        Idempotent. Code in a thread of this process can't be killed: the thread is abandoned, its
        work raises at once, and `serve` ends when the thread does.
        """

    @abstractmethod
    async def run(self, method: str, items: list[Any]) -> Any:
        """Runs a unary method on a batch.

        `shoal.current_batch()` is the batcher's batch, here and in the code: its id, dispatch
        reason, and requests with their metadata and deadlines.

        Args:
            method: The name of the method.
            items: The items, as `shoal.batching.handlers.binding.Binding` makes them: bare for a
                method of one parameter, tuples in the order of the parameters otherwise. One item
                if the method is not batched.

        Returns:
            The code's return value, unchecked; for a method that is not batched, a list of its one
            result.

        Raises:
            ReplicaDied: The replica died first, or is not ready.
            Exception: What the code raised.

        Cancellation: cancels async code, and waits for plain code. Either way the call ends only
        when the work has ended. A process is killed only if its work still runs ``cancel_grace_s``
        after the batch became overdue (`Batch.is_overdue`), never because callers disconnected.
        """

    @abstractmethod
    def run_stream(self, method: str, items: list[Any]) -> AsyncGenerator[Any, None]:
        """Runs a generator method on a batch, step by step.

        Args:
            method: The name of the method.
            items: The items, in the form that `run` takes.

        Yields:
            The steps, unchecked; for a method that is not batched, lists of one.

        Raises:
            Exception: The errors that `run` raises.

        Cancellation: works as in `run`. Closing the generator closes the code's generator.
        """

    async def run_open(self, method: str, batch: OpenBatch[Any, Any]) -> None:
        """Runs a method on an open batch, which takes requests while it runs.

        Only replicas of a placement that takes open batches can do this. Code in another process
        gets an open batch of its own, with the same interface.

        Raises:
            TypeError: The replica or the method can't take open batches.
            Exception: The errors that `run` raises.

        Cancellation: works as in `run`.
        """
        raise self._takes_no_open_batches()

    def open_binding(self, method: str) -> Binding:
        """Returns the binding of calls to requests for a method that takes an open batch.

        Raises:
            TypeError: The replica or the method can't take open batches.
        """
        raise self._takes_no_open_batches()

    def _takes_no_open_batches(self) -> TypeError:
        return TypeError(
            f"{self.tag} can't take open batches; use placement='task', 'process' or 'ray'"
        )

    @abstractmethod
    async def reconfigure(self, user_config: Any) -> None:
        """Calls the code's ``reconfigure`` with a new user config; work may be under way.

        Raises:
            ReplicaDied: The replica died first, or is not ready.
            Exception: What the code raised.

        Cancellation: cancels async code. If the code keeps running for longer than
        ``cancel_grace_s``, the replica is killed, so that it can't overwrite a later user config.
        """

    @abstractmethod
    async def check_health(self) -> None:
        """Checks that the replica responds, and calls the code's ``health()`` if it has one.

        It also works while work is under way. A plain ``health()`` may run at the same time, in
        another thread. Returning False has the same effect as raising.

        Raises:
            Exception: It is not healthy; any type is possible.

        Cancellation: abandons the check; the replica keeps running.
        """

    def drain(self) -> None:  # noqa: B027 - optional for subclasses
        """Sets `current_batch().draining` for code elsewhere, because its backend is shutting down.

        For code in this event loop the batcher does that. Work continues. Idempotent.
        """

    def memory_bytes(self) -> int | None:
        """Returns its resident memory, in bytes; None if it runs in this process."""
        return None


Placement: TypeAlias = Callable[[Blueprint], Replica]
"""A factory of replicas; Shoal's own are ``"task"``, ``"thread"``, ``"process"``, ``"ray"`` and
``"remote"``.

It may have two attributes. ``Options`` is a dataclass of the options that it takes: a config whose
``placement_options`` don't make one is refused. ``takes_open_batches`` is True if its replicas do.
"""
