"""The contract of a replica: one running instance of a backend's code, wherever it runs.

A replica is a task. Its supervisor runs `Replica.serve` in a nursery of its own; that the replica
is ready, has died or has been stopped is what that call says, returns or raises, so there is
nothing to poll and nothing to forget. Work comes from other tasks by `run` and `run_stream`, only
between "ready" and the end.

What the implementations share: no work is lost in silence. When a replica dies, each `run` that is
under way raises `ReplicaDied`, and so does `serve`; in no order that a caller may rely on. It
carries the tag of the replica (``replica=self.tag``), since code may also meet that of another
replica, which it had called. Errors of the user's code keep their type wherever it can be had;
foreign errors (of pipes, of pickle, of Ray) become Shoal's at this border, with their cause.

`shoal.testing.check_replica` runs these promises against any implementation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from shoal.batching.handlers.binding import Binding
    from shoal.batching.open.batch import OpenBatch
    from shoal.replicas.code.current import Identity
    from shoal.replicas.code.definition import Definition
    from shoal.replicas.code.description import Description
    from shoal.replicas.code.endpoint_call import CallOut


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """How the replicas of a backend run.

    Attributes:
        start_timeout_s: How long a replica may take to start: to load its code, to run the
            constructor, `reconfigure` and ``warm_up``; and over each later `reconfigure`. None for
            no limit.
        cancel_grace_s: How long work that was cancelled may go on before its process is killed.
        python: The interpreter of process replicas, such as that of a virtual environment; this
            one by default. It needs Shoal installed, without extras.
        env: Environment variables for processes and Ray actors, over this process's own.
        cpu_affinity: The CPUs of each process replica: the first one gets the first entry, and
            after the last entry it starts over. None to leave it to the system.
        max_memory_bytes: A process that has more resident memory than this is replaced once its
            batch has ended, and killed if that batch takes it beyond twice as much.
        shared_memory_bytes: The shared memory that a process replica has for large arrays, in each
            direction; 0 for none. It takes up memory only as far as it is used.
        log_lines: How many of the last lines that a process wrote are kept.
        ray_options: What Ray is told about an actor: ``num_cpus``, ``num_gpus``, ``resources``,
            ``runtime_env``, ``scheduling_strategy`` and so on.
    """

    start_timeout_s: float | None = 60.0
    cancel_grace_s: float = 1.0
    python: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cpu_affinity: Sequence[Sequence[int]] | None = None
    max_memory_bytes: int | None = None
    shared_memory_bytes: int = 64 * 2**20
    log_lines: int = 200
    ray_options: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """All that a replica is made from.

    Attributes:
        identity: Its tag, and that of its backend.
        number: Its place among the replicas of its backend, from 0: the lowest that no other one
            has, so that with two replicas it is 0 or 1, and 2 only while one is being replaced.
        definition: The user's code.
        user_config: What `reconfigure` is told before the replica is ready; None for nothing.
        options: How it runs.
    """

    identity: Identity
    definition: Definition
    number: int = 0
    user_config: Any = None
    options: ReplicaOptions = field(default_factory=ReplicaOptions)


class Replica(ABC):
    """One running instance of a backend's code.

    Attributes:
        blueprint: What it is made from.
    """

    on_call_out: Callable[[CallOut], Awaitable[Any]] | None = None
    """Makes the calls that its code makes to endpoints, where the code is in another process.

    It gives back the result; for a call that streams, an async context manager of an async
    iterator. None refuses them.
    """

    def __init__(self, blueprint: Blueprint) -> None:
        self.blueprint = blueprint

    @property
    def tag(self) -> str:
        """Its own tag, such as ``"embed#3"``."""
        return self.blueprint.identity.replica

    @property
    def takes_work(self) -> bool:
        """Whether it may take work, once it was ready, as far as is known here.

        It is a hint: one that has died may not be known to have. But it is False from the moment
        when it was killed, by whomever in this process.
        """
        return True

    @abstractmethod
    async def serve(self, *, task_status: TaskStatus[Description]) -> None:
        """Lives: starts, is ready, and goes on until it is stopped or dies. Called once.

        Starting is, in this order: load the code, construct a class with its init args,
        ``reconfigure(user_config)`` if there is a user config, ``warm_up()`` if the code has one.
        ``start_timeout_s`` holds for all of it.

        Args:
            task_status: Told the description when the replica is ready for work.

        Returns:
            When it was stopped by `stop`; its code's ``close()`` has been called, if it has one.

        Raises:
            ReplicaNotStarted: It did not become ready. The cause is what the code raised, where
                that can be had.
            ReplicaDied: It died, or was killed, once it was ready.

        Cancellation: ends the replica at once; work that is under way raises `ReplicaDied`.
        """

    @abstractmethod
    def stop(self) -> None:
        """Asks the replica to end, once it has no more work. Idempotent.

        The supervisor takes care that no work is under way, or does not mind that it dies with it.
        """

    @abstractmethod
    def kill(self, reason: str) -> None:
        """Ends the replica at once: work that is under way raises `ReplicaDied` with the reason.

        Idempotent. Code in a thread of this process can't be killed: it is abandoned, its work
        raises at once, and `serve` ends when the thread does.
        """

    @abstractmethod
    async def run(self, method: str, items: list[Any]) -> Any:
        """Runs a unary method on a batch.

        The engine's batch is `shoal.current_batch()` here, and is so for the code as well: its id,
        reason, and requests with their metadata and deadlines.

        Args:
            method: Its name.
            items: The items, as `shoal.batching.handlers.binding.Binding` makes them: bare for a
                method of one parameter, tuples in the order of the parameters otherwise. One item
                where the method is not batched.

        Returns:
            What the code gave back, unchecked; for a method that is not batched, a list of its one
            result.

        Raises:
            ReplicaDied: The replica died first, or is not ready.
            Exception: What the code raised.

        Cancellation: goes on to async code. Plain code in a thread is waited for. A process is
        told; when its work has not ended after ``cancel_grace_s`` it is killed. Either way the call
        ends only when the work has.
        """

    @abstractmethod
    def run_stream(self, method: str, items: list[Any]) -> AsyncGenerator[Any, None]:
        """Runs a generator method on a batch, step by step.

        Args:
            method: Its name.
            items: As for `run`.

        Yields:
            The steps, unchecked; for a method that is not batched, lists of one.

        Raises:
            Exception: As `run`.

        Cancellation: as for `run`. Closing the generator closes the code's own.
        """

    async def run_open(self, method: str, batch: OpenBatch[Any, Any]) -> None:
        """Runs a method on a batch that takes requests while it runs.

        Only code in this event loop can be given one.

        Raises:
            TypeError: The code runs elsewhere.
            Exception: As `run`.

        Cancellation: goes on to the code.
        """
        raise self._takes_no_open_batches()

    def open_binding(self, method: str) -> Binding:
        """Returns how calls become requests of a method that takes an open batch.

        Raises:
            TypeError: The method takes none, or the code runs elsewhere.
        """
        raise self._takes_no_open_batches()

    def _takes_no_open_batches(self) -> TypeError:
        return TypeError(
            f"{self.tag} runs outside of this event loop, and an open batch can't leave it; "
            "use placement='task'"
        )

    @abstractmethod
    async def reconfigure(self, user_config: Any) -> None:
        """Gives a new user config to the code's ``reconfigure``; work may be under way.

        Raises:
            ReplicaDied: The replica died first, or is not ready.
            Exception: What the code raised.

        Cancellation: goes on to async code. Where the code goes on for longer than
        ``cancel_grace_s``, the replica is killed: what it is told next must be the last.
        """

    @abstractmethod
    async def check_health(self) -> None:
        """Checks that the replica answers, and asks the code's ``health()`` if it has one.

        It works while work is under way. A plain ``health()`` may run beside that work, in another
        thread. Giving back False is as good as raising.

        Raises:
            Exception: It is not healthy; of whatever type.

        Cancellation: the check is given up; the replica goes on.
        """

    def drain(self) -> None:  # noqa: B027 - most have nothing to do
        """Tells code elsewhere that its backend begins to end, by `current_batch().draining`.

        Code in this event loop is told by its batcher. Work goes on; idempotent.
        """

    def memory_bytes(self) -> int | None:
        """Returns its resident memory, in bytes; None where it shares this process's."""
        return None


Placement: TypeAlias = Callable[[Blueprint], Replica]
"""What makes replicas: ``"task"``, ``"thread"``, ``"process"`` and ``"ray"`` stand for ours."""
