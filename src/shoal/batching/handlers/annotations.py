"""Reading the annotations of user code, some of which name types that do not exist at run time.

Typically such types are imported under ``if TYPE_CHECKING``. Up to CPython 3.13 these annotations
are text. From CPython 3.14 on reading them raises `NameError`, unless the reader asks for forward
references; so all code of Shoal reads annotations and signatures with these functions. An
annotation that can't be evaluated says nothing about a type: it means "any".

`held_by` says whether an annotation allows a list. A handler's parameters get lists, whatever their
annotations. An annotation that does not allow a list is a mistake: ``normalize: bool = False``
would get ``[False]``, which is true. So it is refused, but only if that is certain. Arrays and
tables are accepted, since a type with a length and elements may be meant as a batch; so are
annotations that are missing or can't be evaluated.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
import typing
from collections.abc import (
    AsyncIterable,
    Awaitable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Reversible,
    Sequence,
)
from collections.abc import Set as AbstractSet
from enum import Enum
from inspect import Parameter, Signature
from types import NoneType, SimpleNamespace, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

from typing_extensions import Format, get_annotations, is_typeddict

if TYPE_CHECKING:
    from collections.abc import Callable

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


_TEXT_OF_LIST: Final = re.compile(
    r"(\w+\.)*([Ll]ist|(Mutable)?Sequence|Collection|Iterable)\s*(\[|$)"
)
_OF_LISTS: Final = (Collection, Container, Iterable, Reversible)
_MAY_HOLD_RESULTS: Final = (tuple, memoryview, Awaitable, AsyncIterable, Iterator)
_NO_LISTS: Final = (str, bytes, bytearray, memoryview, tuple, Mapping, AbstractSet)


class Holds(Enum):
    LIST = "a list"
    ITEM = "no list"
    EITHER = "either"


def held_by(annotation: Any) -> Holds:
    """Returns whether an annotation is a list type, certainly another type, or either."""
    if isinstance(annotation, str):  # it can't be evaluated
        return Holds.LIST if _TEXT_OF_LIST.match(annotation) else Holds.EITHER
    annotation = bare(annotation)
    if annotation is None or annotation is NoneType:
        return Holds.ITEM
    origin = typing.get_origin(annotation) or annotation
    if origin is Literal:
        return Holds.ITEM
    if len(parts := choices(annotation)) > 1:
        return Holds.ITEM if {*map(held_by, parts)} == {Holds.ITEM} else Holds.EITHER
    if not inspect.isclass(origin) or origin in (object, Any, Parameter.empty):
        return Holds.EITHER
    return _held_by_class(origin)


def holds_no_results(annotation: Any) -> bool:
    """Returns whether a return annotation certainly allows nothing with a result for each item."""
    if len(parts := choices(annotation)) > 1:
        return all(map(holds_no_results, parts))
    annotation = bare(annotation)
    origin = typing.get_origin(annotation) or annotation
    if inspect.isclass(origin) and issubclass(origin, _MAY_HOLD_RESULTS):
        return False
    return held_by(annotation) is Holds.ITEM


def holds_no_batch(annotation: Any) -> bool:
    if len(parts := choices(annotation)) > 1:
        return all(map(holds_no_batch, parts))
    annotation = bare(annotation)
    origin = typing.get_origin(annotation) or annotation
    if annotation is None or held_by(annotation) is Holds.LIST:
        return True
    if not inspect.isclass(origin) or origin is object:
        return False
    is_of_elements = hasattr(origin, "__len__") and hasattr(origin, "__getitem__")
    return is_of_elements or origin.__module__ == "builtins"


def is_unannotated(annotation: Any) -> bool:
    annotation = bare(annotation)
    is_open = annotation is Parameter.empty or annotation is Any or annotation is object
    return is_open or isinstance(annotation, (TypeVar, str))


def bare(annotation: Any) -> Any:
    """Returns the type inside of `Annotated`, `NewType` and type aliases."""
    while True:
        if typing.get_origin(annotation) is Annotated:
            annotation = typing.get_args(annotation)[0]
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":  # Python 3.12's type statement
            annotation = annotation.__value__
        elif type(typing.get_origin(annotation)).__name__ == "TypeAliasType":
            annotation = annotation.__origin__.__value__[typing.get_args(annotation)]
        else:
            return annotation


def choices(annotation: Any) -> tuple[Any, ...]:
    """Returns the types of a union; another type on its own."""
    annotation = bare(annotation)
    if typing.get_origin(annotation) not in (typing.Union, UnionType):
        return (annotation,)
    return tuple(bare(one) for one in typing.get_args(annotation))


def _held_by_class(cls: type) -> Holds:
    if issubclass(cls, _NO_LISTS):
        return Holds.ITEM
    if issubclass(cls, Sequence) or cls in _OF_LISTS:
        return Holds.LIST
    try:
        if issubclass(list, cls):
            return Holds.EITHER
    except TypeError:  # a protocol that does not support issubclass
        return Holds.EITHER
    # Not those of its metaclass: an enum class has a length, but its members have none.
    names = {name for base in cls.__mro__ for name in vars(base)}
    is_array_like = {"__len__", "__getitem__"} <= names or "__array__" in names
    return Holds.EITHER if is_array_like else Holds.ITEM
