"""What the controller owns, how long, and under which locks; the verbs are `Controller`'s.

To drain is the controller's work and not its callers': a backend that was deleted, and all of them
at the end, are drained by tasks of the controller, which callers only wait for. So who asked for it
may leave, and aborts nothing.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

import anyio
from anyio.from_thread import BlockingPortal

from shoal.core.traffic import Traffic
from shoal.errors import BatcherClosed, NameTaken, NoSuchName, ShutDown
from shoal.serving.backends.backend import Backend
from shoal.serving.clients.child_handle import IS_THERE, running_controller
from shoal.serving.clients.sync import PortalBridge
from shoal.serving.controller.endpoint_table import Entries
from shoal.serving.controller.handle import EndpointHandle
from shoal.serving.controller.journal import Declarations
from shoal.serving.endpoints.endpoint import Endpoint
from shoal.serving.endpoints.shadow import ShadowFlow

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from anyio.abc import TaskGroup, TaskStatus

    from shoal.replicas.code.definition import Definition
    from shoal.replicas.code.endpoint_call import CallOut
    from shoal.replicas.contract import Replica
    from shoal.serving.clients.handle_options import Asked
    from shoal.serving.clients.protocol import Client
    from shoal.serving.config.config import BackendConfig
    from shoal.serving.controller.journal import Imports, Program
    from shoal.serving.state.file import StateFile
    from shoal.serving.state.records import DeclaredShadow

logger: Final = logging.getLogger("shoal.serving")


class Leaving:
    """A backend that was deleted, and is drained.

    Args:
        backend: The backend.

    Attributes:
        has_gone: Set when its tag is free again.
    """

    def __init__(self, backend: Backend) -> None:
        self.has_gone = anyio.Event()
        self._backend = backend
        self._draining = anyio.CancelScope()

    async def run(self, *, at_once: bool) -> None:
        """Ends the backend.

        Args:
            at_once: Whether to fail what is in its line, and not to wait for it.
        """
        with self._draining:
            await self._backend.close(at_once=at_once)
        await self._backend.wait_ended()

    def end_at_once(self) -> None:
        """Waits no more for what is in its line."""
        self._draining.cancel()


class Owner(Entries, ABC):
    """Owns backends and endpoints while it is open."""

    def __init__(
        self,
        state: StateFile | None = None,
        imports: Imports | None = None,
        program: Program | None = None,
    ) -> None:
        super().__init__()
        self.backends: dict[str, Backend] = {}
        self.url: str | None = None
        self._declarations = Declarations(state, imports, program)
        self._reserved: set[str] = set()
        self._leaving: dict[str, Leaving] = {}
        self._declaring = anyio.Lock()
        self._tasks: TaskGroup | None = None
        self._scope = anyio.CancelScope()
        self._exit = AsyncExitStack()
        self._is_shut_down = False
        self._was_opened = False
        self._ending = anyio.Event()
        self._ended = anyio.Event()

    async def __aenter__(self) -> Self:
        if self._was_opened:
            raise RuntimeError("a controller is opened once, and this one was already")
        self._was_opened = True
        self._exit = AsyncExitStack()
        try:
            tasks = await self._exit.enter_async_context(anyio.create_task_group())
            await tasks.start(self._run)
        except BaseException:  # closed without it, so that no group is made of it
            await self._exit.aclose()
            raise
        else:
            # The tasks go on while the block is cancelled, so that who cleans up gets answers.
            self._scope.shield = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._scope.shield = False
        async with self._exit:
            await self.shutdown()

    @abstractmethod
    def _as_client(self) -> Client:
        """Returns what code in its backends gets for a client."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a client can't be pickled; give code in other processes a handle of an endpoint, or "
            "have it connect by shoal.connect()"
        )

    async def wait_ended(self) -> None:
        """Waits until it was shut down, by whomever."""
        await self._ended.wait()

    async def shutdown(self) -> None:
        """See `Client.shutdown`."""
        self._is_shut_down = True
        self._ending.set()
        if self._tasks is None:  # it was not opened
            self._ended.set()
        await self._ended.wait()

    async def _drained(self) -> None:
        """Waits until all that is under way has been answered, or has run out of time."""
        self.drain()
        for leaving in [*self._leaving.values()]:
            await leaving.has_gone.wait()
        # The last one first: code may call endpoints that were there before it.
        closed: list[Backend] = []
        while left := [one for one in self.backends.values() if one not in closed]:
            closed.append(left[-1])
            await left[-1].close()

    def _let_go(self, tag: str, *, at_once: bool) -> Leaving:
        """Begins to drain a backend, whose tag is free when that has ended.

        Args:
            tag: Which.
            at_once: Whether to fail what is in its line instead.
        """
        leaving = self._leaving[tag] = Leaving(self.backends.pop(tag))
        self._start_task(self._see_off, tag, leaving, at_once)
        return leaving

    async def _see_off(self, tag: str, leaving: Leaving, at_once: bool) -> None:
        try:
            await leaving.run(at_once=at_once)
        finally:
            del self._leaving[tag]
            leaving.has_gone.set()

    def drain(self) -> None:
        """Has batches wait for company no more, and no request for traffic; calls are taken."""
        for endpoint in self.endpoints.values():
            if endpoint.traffic is None:
                endpoint.close(ShutDown("the controller is being shut down"))
        for backend in self.backends.values():
            backend.drain()

    async def _run(self, *, task_status: TaskStatus[None]) -> None:
        try:
            with self._scope:
                async with BlockingPortal() as portal, anyio.create_task_group() as tasks:
                    self.threads = PortalBridge(portal)
                    self._tasks = tasks
                    await self._restore()
                    task_status.started()
                    await self._ending.wait()
                    await self._drained()
                    self._ended.set()  # before the portal ends, by which threads wait for it
                    tasks.cancel_scope.cancel()
                    await portal.stop(cancel_remaining=True)
        finally:
            self._is_shut_down = True
            self._ended.set()
            self._declarations.close()

    @asynccontextmanager
    async def _starting(
        self, tag: str, code: Definition, config: BackendConfig
    ) -> AsyncGenerator[Backend]:
        """Starts a backend, and ends it again if the block fails."""
        backend = await self._started(tag, code, config)
        try:
            yield backend
        except BaseException:
            with anyio.CancelScope(shield=True):
                await backend.close(at_once=True)
            raise

    async def _started(self, tag: str, code: Definition, config: BackendConfig) -> Backend:
        assert self._tasks is not None
        backend = Backend(tag, code, config, self._prepare, self._enter)
        await self._tasks.start(self._keep, backend)
        return backend

    async def _ready(self, backend: Backend) -> None:
        """Waits until a backend is ready.

        Raises:
            ShutDown: The controller was shut down meanwhile.
            Exception: See `Backend.ready`.
        """
        try:
            await backend.ready()
        except BatcherClosed:
            self.check_open()
            raise

    async def _keep(self, backend: Backend, *, task_status: TaskStatus[None]) -> None:
        try:
            await backend.run(task_status=task_status)
        except Exception as error:  # a mistake of ours must not end its neighbours
            logger.exception("the backend %s broke", backend.tag)
            backend.pool.fail(error)

    async def _restore(self) -> None:
        """Starts what the state file declares; backends that can't start are tried on and on."""
        declared = await self._declarations.restored()
        for tag, code, config in declared.backends:
            self.backends[tag] = await self._started(tag, code, config)
        for one in declared.endpoints:
            endpoint = Endpoint(one.name, one.route, one.methods, self._start_task)
            if one.traffic:
                traffic = Traffic.checked(one.traffic, self.backends)
                endpoint.set_traffic(traffic, {tag: self.backends[tag] for tag in one.traffic})
            for tag, shadow in one.shadows.items():
                endpoint.shadows[tag] = _restored_shadow(self.backends[tag], shadow)
            self._add_endpoint(endpoint)

    def _backend(self, tag: str) -> Backend:
        try:
            found = self.backends.get(tag)
        except TypeError:  # what can't be hashed is no tag either
            found = None
        if found is None:
            there = ", ".join(sorted(self.backends)) or "none"
            raise NoSuchName(f"there is no backend {tag!r}; there are: {there}")
        return found

    def _reserve(self, tag: str) -> None:
        if tag in self.backends or tag in self._reserved or tag in self._leaving:
            raise NameTaken(
                f"there is a backend {tag!r} already; change its config, or choose "
                "another tag and set the traffic of its endpoints to that"
            )
        self._reserved.add(tag)

    @asynccontextmanager
    async def _changing_backend(self, tag: str) -> AsyncGenerator[Backend]:
        """Keeps others from changing a backend meanwhile.

        Raises:
            NoSuchName: There is none of that tag.
        """
        self.check_open()
        backend = self._backend(tag)
        try:
            async with backend.changing:
                self.check_open()
                if self._backend(tag) is not backend:
                    raise NoSuchName(f"the backend {tag!r} was deleted, and made again, meanwhile")
                yield backend
        except BatcherClosed:
            self.check_open()  # which says more, if that is why
            raise

    def _start_task(self, function: Callable[..., Any], *args: Any) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(function, *args)

    def handle(self, endpoint: str, asked: Asked) -> EndpointHandle:
        """Makes a handle for code in a replica of this controller's."""
        return EndpointHandle(self, endpoint, asked, is_inside=True)

    def _enter(self) -> None:
        """Says in a task's context whose code it runs."""
        running_controller.set(self._as_client())

    def _prepare(self, replica: Replica) -> None:
        """Lets a replica in another process call endpoints of this one."""
        replica.on_call_out = self.answer_call_out

    async def answer_call_out(self, call: CallOut) -> Any:
        """Makes a call for code in a replica's process: gives back its result, or its stream.

        Raises:
            Exception: As for a call by a handle.
        """
        if call.method_name == IS_THERE:
            return call.endpoint in self.endpoints
        handle = EndpointHandle(self, call.endpoint, is_inside=True).options(
            method_name=call.method_name,
            shard_key=call.shard_key,
            http_method=call.http_method,
            http_headers=call.http_headers,
            timeout_s=call.timeout_s,
            priority=call.priority,
        )
        if call.stream:
            return handle.stream(*call.args, **call.kwargs)
        return await handle.call(*call.args, **call.kwargs)

    def check_open(self) -> None:
        """Checks that it is open.

        Raises:
            ShutDown: It was shut down, or has not been opened.
        """
        if self._is_shut_down or self._tasks is None:
            raise ShutDown("this client was shut down already, or has not been opened")


def _restored_shadow(backend: Backend, declared: DeclaredShadow) -> ShadowFlow:
    """Makes a shadow again; one whose answers can't be compared any more is no reason to fail."""
    try:
        return ShadowFlow(backend, declared.proportion, declared.compare)
    except Exception:
        logger.exception("%s: shadow answers are not compared", backend.tag)
        flow = ShadowFlow(backend, declared.proportion, None)
        flow.compare = declared.compare  # it is still what is declared
        return flow
