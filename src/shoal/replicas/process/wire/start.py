"""The start of a worker process: the start message, and the description that it sends back.

Signatures are sent as far as possible. An annotation that can't be sent or read is left out. An
annotation with a class of the code's own module is also left out, unless that module is already
imported here: a process replica exists so that the parent does not import the code. Put such
classes into a separate module.

A default is used in the parent and compared in the child, often with ``is``. A default that would
not be the same object in the child is therefore replaced with a placeholder.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from shoal.replicas.code.definition import Definition
    from shoal.replicas.code.instance import Description, Method
    from shoal.replicas.process.wire.messages import Dumps

_PLAIN = (str, int, float, complex, bool, bytes, type(None))

# Whether this worker is running its parent's main script, to find the code in it.
running_main_again: Final[ContextVar[bool]] = ContextVar("shoal.running_main_again", default=False)


class MainScript(NamedTuple):
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


def pickled_code(definition: Definition, user_config: Any, dumps: Dumps = pickle.dumps) -> bytes:
    """Pickles the code and its user config; only the worker may unpickle them."""
    for what, content in (
        (f"the code {definition.name}", definition.target),
        (f"the init args of {definition.name}", (definition.init_args, definition.init_kwargs)),
        (f"the user_config of {definition.name}", user_config),
    ):
        try:
            dumps(content, 5)
        except Exception as error:
            hint = ""
            if content is definition.target:
                hint = (
                    "; define it at the top of a module, and give it as an import path, "
                    "'package.module:Name'"
                )
            raise TypeError(f"{what} can't be sent to a process{hint} ({error})") from error
    return dumps((definition, user_config), 5)


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


@dataclass(frozen=True)
class Default:
    """The placeholder for a default of a parameter that is not sent."""

    parameter: str

    def __repr__(self) -> str:
        return f"<the default of {self.parameter}>"


def sendable(description: Description) -> Description:
    return _converted(description, _pickled, _default)


def received(description: Description, own_module: str | None) -> Description:
    """Restores the annotations of `sendable` without importing the code's `own_module`."""
    return _converted(description, partial(_annotation, own_module), lambda p: p.default)


def _converted(
    description: Description, annotation: Callable[[Any], Any], default: Callable[[Parameter], Any]
) -> Description:
    def converted(signature: Signature) -> Signature:
        parameters = [
            Parameter(p.name, p.kind, default=default(p), annotation=annotation(p.annotation))
            for p in signature.parameters.values()
        ]
        returned = annotation(signature.return_annotation)
        return Signature(parameters, return_annotation=returned)

    methods: dict[str, Method] = {}
    for name, method in description.methods.items():
        opened = method.open_signature
        methods[name] = replace(
            method,
            signature=converted(method.signature),
            open_signature=None if opened is None else converted(opened),
        )
    return replace(description, methods=methods)


class Defaults:
    """In the child: the defaults of one method that were not sent."""

    def __init__(self, signature: Signature) -> None:
        self._single = len(signature.parameters) == 1
        self._found = {
            p.name: p.default for p in signature.parameters.values() if type(_default(p)) is Default
        }

    def put_into(self, items: list[Any]) -> list[Any]:
        if not self._found:
            return items
        if self._single:
            return [self._real(item) for item in items]
        return [tuple(self._real(value) for value in item) for item in items]

    def _real(self, value: Any) -> Any:
        return self._found[value.parameter] if type(value) is Default else value


def _default(parameter: Parameter) -> Any:
    value = parameter.default
    if value is Parameter.empty or _is_plain(value):
        return value
    return Default(parameter.name)


def _is_plain(value: Any) -> bool:
    if issubclass(type(value), tuple):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN


def _pickled(annotation: Any) -> bytes | None:
    if annotation is Parameter.empty:
        return None
    try:
        return pickle.dumps(annotation, 5)
    except Exception:
        return None


def _annotation(own_module: str | None, data: bytes | None) -> Any:
    if data is None:
        return Parameter.empty
    try:
        return _Unpickler(io.BytesIO(data), own_module).load()
    except Exception:
        return Parameter.empty


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, own_module: str | None) -> None:
        super().__init__(file)
        self._own_module = own_module

    def find_class(self, module: str, name: str, /) -> Any:
        if module == self._own_module and module not in sys.modules:
            raise pickle.UnpicklingError(f"{module} is not imported here")
        return super().find_class(module, name)
