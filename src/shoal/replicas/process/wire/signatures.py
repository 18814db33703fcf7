"""Conversion of a description to data and back: signatures, as far as they can be sent.

An annotation that can't be sent or read is left out. An annotation with a class of the code's own
module is also left out, unless that module is already imported here: a process replica exists so
that the parent does not import the code. Put such classes into a separate module.

A default is used in the parent and compared in the child, often with ``is``. A default that would
not be the same object in the child is therefore replaced with a placeholder.
"""

from __future__ import annotations

import io
import pickle
import sys
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Any, Final, NamedTuple

from shoal.replicas.code.description import Description, Method

_PLAIN = (str, int, float, complex, bool, bytes, type(None))
_KINDS: Final = (
    Parameter.POSITIONAL_ONLY,
    Parameter.POSITIONAL_OR_KEYWORD,
    Parameter.VAR_POSITIONAL,
    Parameter.KEYWORD_ONLY,
    Parameter.VAR_KEYWORD,
)


@dataclass(frozen=True)
class Default:
    """The placeholder for a default of a parameter that is not sent."""

    parameter: str

    def __repr__(self) -> str:
        return f"<the default of {self.parameter}>"


class ParameterAsData(NamedTuple):
    """A parameter as data, for another process."""

    name: str
    kind: int
    default: Any
    annotation: bytes | None


class MethodAsData(NamedTuple):
    """A method as data, for another process."""

    name: str
    parameters: list[ParameterAsData]
    answer: bytes | None
    streams: bool
    batched: bool
    gathers: bool


class DescriptionAsData(NamedTuple):
    """A description as data, for another process."""

    methods: list[MethodAsData]
    reconfigures: bool
    checks_health: bool

    def as_description(self, own_module: str | None) -> Description:
        """Rebuilds the description without importing the code's `own_module`."""
        return Description(
            {method.name: _method(method, own_module) for method in self.methods},
            reconfigures=self.reconfigures,
            checks_health=self.checks_health,
        )


def description_as_data(description: Description) -> DescriptionAsData:
    return DescriptionAsData(
        [
            MethodAsData(
                method.name,
                [
                    ParameterAsData(p.name, int(p.kind), _default(p), _pickled(p.annotation))
                    for p in method.signature.parameters.values()
                ],
                _pickled(method.signature.return_annotation),
                method.streams,
                method.batched,
                method.gathers,
            )
            for method in description.methods.values()
        ],
        description.reconfigures,
        description.checks_health,
    )


class Defaults:
    """In the child: the defaults of one method that were not sent."""

    def __init__(self, signature: Signature) -> None:
        self._single = len(signature.parameters) == 1
        self._found = {
            p.name: p.default for p in signature.parameters.values() if type(_default(p)) is Default
        }

    def put_into(self, items: list[Any]) -> list[Any]:
        """Returns the items with placeholders replaced by the defaults."""
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


def _method(method: MethodAsData, own_module: str | None) -> Method:
    signature = Signature(
        [
            Parameter(
                p.name,
                _KINDS[p.kind],
                default=p.default,
                annotation=_annotation(p.annotation, own_module),
            )
            for p in method.parameters
        ],
        return_annotation=_annotation(method.answer, own_module),
    )
    return Method(method.name, signature, method.streams, method.batched, method.gathers)


def _annotation(data: bytes | None, own_module: str | None) -> Any:
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
