"""Binding: from a caller's arguments to an item, and from a batch's items to the handler's lists.

Usually a handler has one parameter, and the item is the argument itself. A handler with several
parameters gets one list for each, so an item is a tuple in the order of the parameters, with the
handler's defaults filled in. A handler without parameters gets no list: its calls have no
arguments, and their number is the size of `current_batch`. A call is bound when it is made: wrong
arguments raise a `TypeError` in the caller and never reach a batch.

Arguments that a `functools.partial` has filled in are not batched; the handler gets them as is.

If there is no function of lists, the signature of a call with one item has the same information.

`takes_lists` determines whether served code gets lists or one item at a time:

1. A mark (`shoal.accept_batch`), or a declaration to take open batches, decides.
2. Code gets lists if all of its parameters are annotated as lists.
3. Code with parameters that are annotated as another type gets one item at a time. A mixture is
   refused: it may be a handler of lists with a flag, or code of one item that contains a list.
4. Code without annotations gets one item at a time, as in Ray Serve. If it has batch options, it is
   refused, since the intention is unclear.

Functions passed to `shoal.batch` and `shoal.Batcher` need no rule: they always get lists.
"""

from __future__ import annotations

import functools
import inspect
import math
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, Final, Literal

from shoal.batching.handlers.annotations import (
    Annotations,
    Holds,
    bare,
    held_by,
    holds_no_batch,
    holds_no_results,
    read_signature,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_STEPS: Final[tuple[Any, ...]] = (AsyncIterator, AsyncGenerator, Iterator, Generator)
_ONE_LIST = Parameter("items", Parameter.POSITIONAL_ONLY)


class Binding:
    def __init__(
        self,
        signature: Signature,
        parameters: Iterable[Parameter],
        gives: Literal["lists", "items", "arguments"],
    ) -> None:
        kinds = {parameter.name: parameter.kind for parameter in parameters}
        self.signature = signature
        # What the handler gets: a list for each parameter, the items in one list, or the arguments
        # of its only call.
        self.gives = gives
        # The handler's parameters that are batched.
        self.names = list(kinds)
        self._keyword_only = [kind is Parameter.KEYWORD_ONLY for kind in kinds.values()]
        # Whether an item is one bare argument.
        self.single = len(kinds) == 1
        # Whether a call may pass it as a positional argument.
        self.takes_bare = self.single and not self._keyword_only[0]
        # Whether the handler gets the items as they are, as its only argument.
        self.gives_one_list = gives == "items" or (gives == "lists" and self.takes_bare)

    @classmethod
    def of_handler(
        cls,
        handler: Callable[..., Any],
        prototype: Callable[..., Any] | None,
        *,
        of_batch: bool = False,
    ) -> Binding:
        """Returns the binding for a function of lists, or of an open batch."""
        # A call with one item has the same parameter names and defaults, and each annotation
        # `list[T]` becomes `T`. `prototype` replaces the signature.
        if of_batch:
            signature = signature_of_batch(handler, prototype)
            return cls(signature, signature.parameters.values(), "lists")
        parameters = _parameters(handler)
        _check_lists(handler, parameters)
        _check_results(handler)
        signature = (
            _per_item(handler, parameters)
            if prototype is None
            else signature_of(prototype, [parameter.name for parameter in parameters])
        )
        return cls(signature, parameters, "lists")

    @classmethod
    def of_items(cls, signature: Signature, gives: Literal["items", "arguments"]) -> Binding:
        refuse_unnamed("a backend", signature)
        return cls(signature, signature.parameters.values(), gives)

    def item(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Raises a `TypeError` if the arguments don't fit the signature."""
        if self.takes_bare and len(args) == 1 and not kwargs:
            return args[0]
        bound = self.signature.bind_partial(*args, **kwargs)
        bound.apply_defaults()
        missing = [name for name in self.names if name not in bound.arguments]
        if missing:
            raise TypeError(f"missing required arguments: {', '.join(map(repr, missing))}")
        if self.single:
            return bound.arguments[self.names[0]]
        return tuple(bound.arguments[name] for name in self.names)

    def columns(self, items: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        if self.gives_one_list:
            return [items], {}
        values: list[Any]
        if self.gives == "arguments":
            [item] = items
            values = [item] if self.single else list(item)
        elif self.single:
            values = [items]
        else:
            values = [list(column) for column in zip(*items, strict=True)]
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for name, keyword_only, value in zip(self.names, self._keyword_only, values, strict=True):
            if keyword_only:
                keywords[name] = value
            else:
                positional.append(value)
        return positional, keywords


def _parameters(handler: Callable[..., Any]) -> list[Parameter]:
    try:
        signature = read_signature(handler)
    except ValueError:  # a builtin without a signature
        return [_ONE_LIST]
    refuse_unnamed(repr(handler), signature)
    return _open_parameters(handler, signature)


def refuse_unnamed(what: str, signature: Signature) -> None:
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in signature.parameters.values()):
        raise TypeError(
            f"the parameters of {what} must be named, but it takes {signature}: each of them is "
            "batched into a list of its own; a decorator keeps the names of the wrapped function "
            "with functools.wraps"
        )


def _check_lists(handler: Callable[..., Any], parameters: list[Parameter]) -> None:
    """Raises a `TypeError` for a parameter with an annotation that can't hold a list."""
    annotations = Annotations(handler)
    for number, parameter in enumerate(parameters):
        if number == 0 and parameter.name in ("self", "cls"):
            continue  # of a method that is not bound yet
        annotation = annotations.written(parameter.name, parameter.annotation)
        if held_by(annotation) is not Holds.ITEM:
            continue
        name, kind = parameter.name, inspect.formatannotation(annotation)
        if "shoal.batching.open_batch.OpenBatch" in kind:
            raise TypeError(
                f"{handler!r} takes an open batch: say so with fill='open' or fill='continuous'"
            )
        constant = f"functools.partial(handler, {name}=...)"
        raise TypeError(
            f"a handler gets a list for each of its parameters, but {name!r} of {handler!r} is "
            f"annotated as {kind}. If it is batched, with a value for each call, write "
            f"{name}: list[{kind}]; if it is the same for all calls, set it in advance: "
            f"{constant}"
        )


def _check_results(handler: Callable[..., Any]) -> None:
    """Raises a `TypeError` for a return annotation that can't hold a result for each item."""
    annotation = Annotations(handler).hints.get("return", Parameter.empty)
    if typing.get_origin(annotation) in _STEPS:
        annotation = typing.get_args(annotation)[0]
    if not holds_no_results(annotation):
        return
    kind = "None" if annotation is type(None) else inspect.formatannotation(bare(annotation))
    raise TypeError(
        f"a handler returns a list with a result for each item, but {handler!r} is annotated to "
        f"return {kind}; write list[{kind}]. If one list is the item of one request, mark the "
        "code of the server with @shoal.accept_batch(False)"
    )


def _open_parameters(function: Callable[..., Any], signature: Signature) -> list[Parameter]:
    filled_in = function.keywords if isinstance(function, functools.partial) else {}
    return [p for p in signature.parameters.values() if p.name not in filled_in]


def _per_item(handler: Callable[..., Any], parameters: list[Parameter]) -> Signature:
    lists = _evaluated(handler, parameters, Signature.empty)
    return Signature(
        [p.replace(annotation=element_of(p.annotation)) for p in lists.parameters.values()],
        return_annotation=_answer_of(lists.return_annotation),
    )


def signature_of(prototype: Callable[..., Any], *allowed: list[str]) -> Signature:
    """Returns the signature of a function of one item that replaces a handler's own."""
    signature = _without_self(prototype)
    names = list(signature.parameters)
    if names not in allowed:
        raise TypeError(
            f"signature={prototype!r} must have the handler's parameters "
            f"({', '.join(allowed[-1])}), but has ({', '.join(names)})"
        )
    return signature


def signature_of_call(function: Callable[..., Any]) -> Signature:
    """Returns a function's signature with only the annotations that can be evaluated."""
    signature = read_signature(function)
    parameters = _open_parameters(function, signature)
    return _evaluated(function, parameters, signature.return_annotation)


def _without_self(prototype: Callable[..., Any]) -> Signature:
    if not callable(prototype):
        raise TypeError(f"signature must be a function of one item, not {prototype!r}")
    signature = read_signature(prototype)
    refuse_unnamed(f"signature={prototype!r}", signature)
    found = [p for p in signature.parameters.values() if p.name != "self"]
    return _evaluated(prototype, found, Signature.empty)


def _evaluated(function: Callable[..., Any], parameters: list[Parameter], result: Any) -> Signature:
    annotations = Annotations(function)
    return Signature(
        [p.replace(annotation=annotations.type_of(p.name, p.annotation)) for p in parameters],
        return_annotation=annotations.type_of("return", result),
    )


def signature_of_batch(
    handler: Callable[..., Any], prototype: Callable[..., Any] | None
) -> Signature:
    """Returns the signature of a call with one item for a handler of open batches."""
    # Without a prototype it has the item type of the annotation `OpenBatch[T, R]`.
    hints = Annotations(handler).hints
    annotations = annotations_of(handler) or [Parameter.empty]
    count = 1 if prototype is not None else len(_parameters(handler))
    if not 1 <= count <= 2 or holds_no_batch(annotations[-1]) or _gives_results(hints):
        raise not_of_a_batch(handler)
    if prototype is not None:
        return _without_self(prototype)
    receiver = _parameters(handler)[:-1]
    hint = annotations[-1]
    item, result = (*typing.get_args(hint), Parameter.empty, Parameter.empty)[:2]
    return Signature(
        [*receiver, Parameter("item", Parameter.POSITIONAL_OR_KEYWORD, annotation=item)],
        return_annotation=result,
    )


def not_of_a_batch(handler: Callable[..., Any]) -> TypeError:
    return TypeError(
        "the handler of an open batch takes the batch alone, and answers each of its requests, "
        f"but {handler!r} is {read_signature(handler)}; "
        "write async def handler(batch: shoal.OpenBatch[T, R]) -> None"
    )


def _gives_results(hints: dict[str, Any]) -> bool:
    result = bare(hints.get("return"))
    return hasattr(typing.get_origin(result) or result, "__len__")


def annotations_of(function: Callable[..., Any]) -> list[Any]:
    """Returns the annotations of a function's parameters: text if they can't be evaluated."""
    # Leaves out parameters that a `functools.partial` has filled in. Empty for a builtin without a
    # signature.
    try:
        signature = read_signature(function)
    except ValueError:
        return []
    annotations = Annotations(function)
    return [
        annotations.written(p.name, p.annotation) for p in _open_parameters(function, signature)
    ]


def unreadable_annotations(function: Callable[..., Any]) -> dict[str, Exception]:
    """Returns a handler's annotations that can't be evaluated, with the errors."""
    # Usually they name something that is imported for type checkers only. Batching works without
    # them; checking items against the annotations does not.
    unreadable = Annotations(function).unreadable
    return {name: error for name, error in unreadable.items() if name != "return"}


def _answer_of(annotation: Any) -> Any:
    """Returns the type of one result: the element of a list, or an iterator of steps."""
    # The steps of a generator handler, `AsyncIterator[list[R]]`, are `AsyncIterator[R]` for one
    # call.
    kind: Any = typing.get_origin(annotation)
    if kind in _STEPS:
        step, *rest = typing.get_args(annotation)
        element = element_of(step)
        if element is Parameter.empty:
            return element
        return kind[(element, *rest)] if rest else kind[element]
    return element_of(annotation)


def element_of(annotation: Any) -> Any:
    """Returns ``T`` for ``list[T]``, and no annotation if the element type is not known."""
    arguments = typing.get_args(bare(annotation))
    return arguments[0] if arguments and held_by(annotation) is Holds.LIST else Parameter.empty


MARK: Final = "__shoal_accept_batch__"
"""The attribute that marks whether code takes lists."""


def takes_lists(function: Callable[..., Any]) -> bool:
    marked: Any = function
    while isinstance(marked, functools.partial):
        marked = marked.func
    mark = getattr(marked, MARK, getattr(type(marked).__call__, MARK, None))
    if mark is not None:
        return bool(mark)
    held = [held_by(annotation) for annotation in annotations_of(function)]
    if Holds.LIST not in held:
        return False
    if {*held} == {Holds.LIST}:
        return True
    raise TypeError(
        f"it is unclear whether {function!r} takes lists or one item at a time: some of its "
        f"parameters are annotated as lists and others are not, in {read_signature(function)}. "
        "Annotate all of them as lists, or set what is the same for all calls with "
        "functools.partial; if it takes one item at a time, mark it with "
        "@shoal.accept_batch(False)"
    )


def described(
    signature: Signature,
    size: int,
    *,
    batched: bool,
    fill: str = "closed",
    at_once: float = 1,  # the most batches of a replica, or calls of code that takes one item
) -> str:
    parameters = list(signature.parameters.values())
    if len(parameters) == 1:
        annotation = parameters[0].annotation
        item = "item" if annotation is inspect.Parameter.empty else _named(annotation)
    else:
        item = f"({', '.join(str(parameter) for parameter in parameters)})"
    if fill != "closed":
        return f"open batches of up to {size} {_plural(item)}"
    if batched:
        return f"lists of up to {size} {_plural(item)}"
    if at_once == 1:
        return f"one {item} at a time"
    most = "any number" if math.isinf(at_once) else f"up to {at_once:g} calls"
    return f"one {item} a call, {most} at once"


def _named(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _plural(item: str) -> str:
    return "items" if item == "item" else item
