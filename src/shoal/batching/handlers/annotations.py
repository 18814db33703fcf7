"""Reading the annotations of user code, some of which name types that do not exist at run time.

Typically such types are imported under ``if TYPE_CHECKING``. Up to CPython 3.13 these annotations
are text. From CPython 3.14 on reading them raises `NameError`, unless the reader asks for forward
references; so all code of Shoal reads annotations and signatures with these functions. An
annotation that can't be evaluated says nothing about a type: it means "any".
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import typing
from inspect import Parameter, Signature
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import Format, get_annotations, is_typeddict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FORWARD: Final[dict[str, Any]] = (
    {"annotation_format": Format.FORWARDREF} if sys.version_info >= (3, 14) else {}
)


def read_signature(function: Callable[..., Any]) -> Signature:
    """Like `inspect.signature`, without evaluating annotations; see `Annotations`."""
    return inspect.signature(function, **_FORWARD)


class Annotations:
    def __init__(self, function: Any) -> None:
        while isinstance(function, functools.partial):
            function = function.func
        if not (inspect.isroutine(function) or inspect.isclass(function)):
            cls = typing.cast("Any", type)(function)
            function = getattr(cls, "__call__", function)  # noqa: B004 - its annotations are read
        namespace = getattr(inspect.unwrap(function), "__globals__", {})
        self.hints, self.unreadable = _evaluated(function, namespace)
        self._texts: Mapping[str, Any] = (
            get_annotations(function, format=Format.STRING) if self.unreadable else {}
        )

    def type_of(self, name: str, otherwise: Any) -> Any:
        """Returns the type of a parameter or ``return``; none if it can't be evaluated."""
        # `otherwise` is the annotation in the signature, which may be another function's.
        return Parameter.empty if name in self.unreadable else self.hints.get(name, otherwise)

    def written(self, name: str, otherwise: Any) -> Any:
        """Like `type_of`, but returns the text of an annotation that can't be evaluated."""
        return self._texts[name] if name in self.unreadable else self.hints.get(name, otherwise)


def field_types(kind: Any) -> dict[str, Any]:
    """Returns the types of a class's fields: `Any` for annotations that can't be evaluated."""
    types: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        module = vars(sys.modules.get(base.__module__, SimpleNamespace()))
        hints, unreadable = _evaluated(base, {**module, **vars(base)})
        types |= {**hints, **dict.fromkeys(unreadable, Any)}
    return types


def record_fields(annotation: Any) -> dict[str, Any]:
    """Returns the types of the fields that a record is made of; empty for other types."""
    models: Any = getattr(annotation, "model_fields", None)
    if models is not None:
        return {name: one.annotation for name, one in models.items()}
    kind: Any = typing.get_origin(annotation) or annotation
    if is_typeddict(kind):
        return field_types(kind)
    if not dataclasses.is_dataclass(kind):
        return {}
    types = field_types(kind)
    return {one.name: types.get(one.name, Any) for one in dataclasses.fields(kind) if one.init}


def _evaluated(
    annotated: Any, namespace: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Exception]]:
    """Evaluates annotations one by one, so that an error in one does not affect the others."""
    if parameters := getattr(annotated, "__type_params__", ()):
        namespace = {**namespace, **{one.__name__: one for one in parameters}}
    hints: dict[str, Any] = {}
    unreadable: dict[str, Exception] = {}
    for name, annotation in get_annotations(annotated, format=Format.FORWARDREF).items():
        alone = SimpleNamespace(__annotations__={name: annotation})
        try:
            hints |= typing.get_type_hints(alone, globalns=namespace, include_extras=True)
        except (NameError, TypeError, AttributeError, SyntaxError) as error:
            # Its traceback would keep this frame and its callers in a reference cycle.
            unreadable[name] = error.with_traceback(None)
    return hints, unreadable
