"""The function behind a batched function of one argument, which is the usual case.

A call that collects its arguments, and finds its batcher by its thread, costs a tenth more on
asyncio. So while a batched function is open in one thread only, Python calls the function that
makes the request, and binds the argument to it, or refuses it: a copy of it whose name and
parameter are those of the batched function.
"""

from __future__ import annotations

from functools import lru_cache
from inspect import Parameter
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from inspect import Signature
    from types import CodeType

_BY_POSITION: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def only_parameter(signature: Signature) -> Parameter | None:
    """Returns the one parameter of a call that may be passed by position; None for any other."""
    parameters = list(signature.parameters.values())
    if len(parameters) != 1 or parameters[0].kind not in _BY_POSITION:
        return None
    return parameters[0]


def renamed(
    call: Callable[[Any], Coroutine[Any, Any, Any]], parameter: Parameter, name: str
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Returns a copy of a function of one argument that has another parameter and name.

    Args:
        call: The function.
        parameter: The parameter of the copy.
        name: The name of the copy, for messages.
    """
    assert isinstance(call, FunctionType)
    is_positional = parameter.kind is Parameter.POSITIONAL_ONLY
    code = _code_of(call.__code__, parameter.name, is_positional=is_positional)
    default = parameter.default
    defaults = None if default is Parameter.empty else (default,)
    copy = FunctionType(code, call.__globals__, name, defaults, call.__closure__)
    copy.__qualname__ = name
    return copy


@lru_cache(maxsize=1000)
def _code_of(code: CodeType, parameter: str, *, is_positional: bool) -> CodeType:
    """Returns the code of a function whose first parameter has another name."""
    return code.replace(
        co_varnames=(parameter, *code.co_varnames[1:]), co_posonlyargcount=int(is_positional)
    )
