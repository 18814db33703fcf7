"""What a worker process is told at its start: whose replica it is, and where its code is found."""

from __future__ import annotations

import os
import pickle
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from shoal.replicas.code.definition import Definition

running_main_again: Final[ContextVar[bool]] = ContextVar("shoal.running_main_again", default=False)
"""Whether this is a worker that runs its parent's main script to find the code in it."""


class MainScript(NamedTuple):
    """The parent's main script.

    Attributes:
        is_module: Whether it was started by the name of a module, ``python -m``.
        found_at: That name, or its path.
    """

    is_module: bool
    found_at: str


class StartMessage(NamedTuple):
    """What a worker is told first. It can be read before anything of the user's was imported.

    Attributes:
        backend: The tag of the backend.
        replica: That of the replica.
        loop: Which kind of event loop to run, if any is needed.
        sys_path: Where to look for modules; None for the interpreter's own places.
        main: The script to run again before the code is unpickled; None for none.
        cpus: Which CPUs to run on; None for all.
        code: The pickled definition and user config.
    """

    backend: str
    replica: str
    loop: Literal["trio", "asyncio"]
    sys_path: list[str] | None
    main: MainScript | None
    cpus: list[int] | None
    code: bytes


def pickled_code(definition: Definition, user_config: Any) -> bytes:
    """Pickles what only the worker may unpickle.

    Raises:
        TypeError: It can't be pickled.
    """
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
    """Says how to find what the pickled code needs of the main script; None if it needs nothing.

    Raises:
        TypeError: There is no script that could be run again.
    """
    if b"__main__" not in code:
        return None
    main: Any = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return MainScript(is_module=True, found_at=spec.name)
    path = getattr(main, "__file__", None)
    if path is None or not os.path.isfile(path):
        raise TypeError(
            "the code is of an interactive session, which a process can't load; put it into a "
            "module, and give it as an import path, 'package.module:Name'"
        )
    return MainScript(is_module=False, found_at=os.path.abspath(path))


def why_unsendable(name: str, contents: list[Any], error: Exception) -> TypeError:
    """Makes the error of a batch, or of its results, that can't be sent between processes.

    Args:
        name: What to call one of them; ``{nth}`` stands for its number.
        contents: The items or results.
        error: What pickling them all raised.
    """
    for nth, content in enumerate(contents):
        try:
            pickle.dumps(content, 5)
        except Exception as own:
            # A Starlette response that streams; Starlette is not imported for that.
            hint = (
                "; write the handler as a generator to stream"
                if hasattr(content, "body_iterator")
                else ""
            )
            return TypeError(
                f"{name.format(nth=nth)} can't be sent between processes ({own}): "
                f"{type(content).__qualname__} {_shown(content)}{hint}"
            )
    return TypeError(f"{name.format(nth=0)} can't be sent between processes: {error}")


def _shown(item: Any) -> str:
    try:
        return f"{item!r:.80}"
    except Exception:
        return "object"
