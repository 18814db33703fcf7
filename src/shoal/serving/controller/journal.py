"""The journal: records declarations in the state file, if there is one, and restores them."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

import anyio.lowlevel
import anyio.to_thread

from shoal.errors import NotAllowed, ShutDown
from shoal.replicas.code.definition import Definition
from shoal.serving.backend_config import BackendConfig
from shoal.serving.state_records import (
    BackendRecord,
    Change,
    DeclaredState,
    Deleted,
    EndpointRecord,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from shoal.serving.imports import ImportRule
    from shoal.serving.state_file import StateFile


DeclaredName: TypeAlias = tuple[str, str]
"""The kind of a declaration, ``"backend"`` or ``"endpoint"``, and its name."""


class Program(NamedTuple):
    """A program's own declarations, which may be restored without a check."""

    backends: Mapping[str, tuple[Definition, BackendConfig]]  # by tag
    comparisons: Collection[str]  # import paths of the functions that compare shadow answers


class Journal:
    """Records each change before it takes effect."""

    def __init__(
        self,
        state: StateFile | None,
        imports: ImportRule | None = None,
        program: Program | None = None,
    ) -> None:
        # The program's own declarations, and the deleted ones, which it must not create again.
        self._of_program: set[DeclaredName] = set()
        self._gone: frozenset[DeclaredName] = frozenset()
        self._state = state
        self._imports = imports  # None allows all, if only this program writes to the file
        self._program = program or Program({}, ())
        self._writing = Lock()
        self._is_closed = False

    def not_deleted(self, of_program: set[DeclaredName]) -> set[DeclaredName]:
        """Records the program's own declarations; returns those that were not deleted."""
        self._of_program |= of_program
        return of_program - self._gone

    def backend_record(
        self, tag: str, code: Definition, config: BackendConfig
    ) -> BackendRecord | None:
        """Raises `NotDurable` if the state file can't store the backend; None without a file."""
        if self._state is None:
            return None
        return BackendRecord(
            tag=tag,
            import_path=code.target,
            init_args=code.init_args,
            init_kwargs=dict(code.init_kwargs),
            config=config.durable(),
        )

    async def delete(self, kind: Literal["backend", "endpoint"], name: str) -> None:
        await self.put(Deleted(kind, name, (kind, name) in self._of_program))

    async def restored(
        self,
    ) -> tuple[list[tuple[str, Definition, BackendConfig]], list[EndpointRecord]]:
        """Returns the backends and the endpoints, in the order in which they were created."""
        if self._state is None:
            await anyio.lowlevel.checkpoint()
            return [], []
        state: DeclaredState = await anyio.to_thread.run_sync(self._state.load)
        backends = [(one.tag, *self._allowed(one)) for one in state.backends.values()]
        self._gone = state.gone
        return backends, [*state.endpoints.values()]

    def _allowed(self, one: BackendRecord) -> tuple[Definition, BackendConfig]:
        """Returns a backend's code and config; loading code that is not allowed raises."""
        path, config, refusal = one.import_path, dict(one.config), None
        code, own_config = self._program.backends.get(one.tag, (None, BackendConfig()))
        if self._imports is not None:
            own = own_config.durable_part()
            try:
                if code is None or path != code.import_path:
                    path = self._imports.checked(path)
                changed = {name: value for name, value in config.items() if own.get(name) != value}
                config |= self._imports.checked_config(changed)
            except NotAllowed as error:
                refusal = f"the state file names it, but --allow-module does not: {error}"
        definition = Definition(
            path, tuple(one.init_args), tuple(one.init_kwargs.items()), refusal=refusal
        )
        return definition, BackendConfig.of(config)

    def comparison(self, path: str) -> str:
        """Returns the path by which to import what compares answers; raises `NotAllowed`."""
        if self._imports is None or path in self._program.comparisons:
            return path
        return self._imports.checked(path)

    def close(self) -> None:
        if self._state is not None:
            with self._writing:  # a thread may still be writing
                self._is_closed = True
                self._state.close()

    async def put(self, change: Change | None) -> None:
        if self._state is None or change is None:
            return
        # Shielded, so that a change that was recorded also takes effect, and the other way round.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._apply, self._state, change)

    def _apply(self, state: StateFile, change: Change) -> None:
        with self._writing:
            if self._is_closed:
                raise ShutDown("the controller was shut down before the change could be recorded")
            state.apply(change)


def declared_names(backends: Iterable[str], endpoints: Iterable[str]) -> set[DeclaredName]:
    return {*(("backend", tag) for tag in backends), *(("endpoint", name) for name in endpoints)}
