"""The start message of a worker process: its replica's tags, and the location of its code."""

from __future__ import annotations

import os
import pickle
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from shoal.replicas.code.definition import Definition

running_main_again: Final[ContextVar[bool]] = ContextVar("shoal.running_main_again", default=False)
"""Whether this worker is running its parent's main script, to find the code in it."""


class MainScript(NamedTuple):
    """The parent's main script, as the module of ``python -m`` or as a path."""

    is_module: bool
    found_at: str


class StartMessage(NamedTuple):
    """The first message to a worker; it can be unpickled before user code is imported."""

    backend: str
    replica: str
    most_requests: float
    loop: Literal["trio", "asyncio"]
    # The module search path; None for the interpreter's own.
    sys_path: list[str] | None
    # The script to run again before the code is unpickled.
    main: MainScript | None
    # The CPUs to run on; None for all.
    cpus: list[int] | None
    # The pickled definition and user config.
    code: bytes


def pickled_code(definition: Definition, user_config: Any) -> bytes:
    """Pickles the code and its user config; only the worker may unpickle them."""
    for what, content in (
        (f"the code {definition.name}", definition.target),
        (f"the init args of {definition.name}", (definition.init_args, definition.init_kwargs)),
        (f"the user_config of {definition.name}", user_config),
    ):
        try:
            pickle.dumps(content, 5)
        except Exception as error:
            hint = ""
            if content is definition.target:
                hint = (
                    "; define it at the top of a module, and give it as an import path, "
                    "'package.module:Name'"
                )
            raise TypeError(f"{what} can't be sent to a process{hint} ({error})") from error
    return pickle.dumps((definition, user_config), 5)


def main_script(code: bytes) -> MainScript | None:
    """Returns the main script if the pickled code refers to it; TypeError if it can't run again."""
    if b"__main__" not in code:
        return None
    main: Any = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return MainScript(is_module=True, found_at=spec.name)
    path = getattr(main, "__file__", None)
    if path is None or not os.path.isfile(path):
        raise TypeError(
            "the code was defined in an interactive session, and a process can't load it; put it "
            "into a module, and give it as an import path, 'package.module:Name'"
        )
    return MainScript(is_module=False, found_at=os.path.abspath(path))


def why_unsendable(name: str, contents: list[Any], error: Exception) -> TypeError:
    """Returns the error for the first item that can't be pickled; ``{nth}`` is its number."""
    for nth, content in enumerate(contents):
        try:
            pickle.dumps(content, 5)
        except Exception as own:
            return TypeError(
                f"{name.format(nth=nth)} can't be sent between processes ({own}): "
                f"{type(content).__qualname__}"
            )
    return TypeError(f"{name.format(nth=0)} can't be sent between processes: {error}")
