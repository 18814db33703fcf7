"""Annotations that only FastAPI obeys. They are refused: a caller could set what code trusts.

A parameter with ``Depends()`` would be read from the body or the query, as one without a mark.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, Final

from starlette.datastructures import UploadFile

from shoal.http.requests.marks import Mark, element_of, fields_of, mark_of, metadata_of

if TYPE_CHECKING:
    from inspect import Signature

_DEPENDENCY: Final = (
    "callers could set the value: let middleware find it out, and read it from the request's "
    "metadata"
)
_INSTEAD: Final = {
    "Depends": _DEPENDENCY,
    "Security": _DEPENDENCY,
    "Body": "remove it: what has no mark comes from the body",
    "Form": "remove it: what has no mark may be a field of a form with a file, a shoal.http.Upload",
    "File": "remove it, and annotate the file as shoal.http.Upload",
}


def check_no_foreign_marks(signature: Signature) -> None:
    """Checks the annotations and defaults of a handler's parameters, and of its item's fields.

    Args:
        signature: The signature of a call with one item.

    Raises:
        TypeError: One of them would not be obeyed.
    """
    for name, parameter in signature.parameters.items():
        _check_known(name, parameter.annotation)
        _check_default(name, parameter.default)
        for field, annotation in fields_of(parameter.annotation).items():
            _check_known(field, annotation)


def _check_known(name: str, annotation: Any) -> None:
    """Refuses what FastAPI would obey; a caller could set the value of a dependency."""
    for one in metadata_of(annotation):
        kind = _of_fastapi(one)
        if kind is not None and mark_of(Annotated[Any, one]) is None:
            instead = _INSTEAD.get(kind, "remove it")
            raise TypeError(
                f"{name!r} is marked with {kind}() of FastAPI, which is not obeyed; {instead}"
            )
    kind = element_of(annotation)[1]
    if inspect.isclass(kind) and issubclass(kind, UploadFile):
        raise TypeError(
            f"{name!r} is an UploadFile, which is not supported; take shoal.http.Upload"
        )


def _check_default(name: str, default: Any) -> None:
    kind = type(default).__name__ if isinstance(default, Mark) else _of_fastapi(default)
    if kind is not None:
        raise TypeError(
            f"{name!r} has {kind}() as its default, which code would get as its value; write "
            f"{name}: Annotated[..., {kind}()]"
        )


def _of_fastapi(one: object) -> str | None:
    """Returns the name of the class of FastAPI's that something is an instance of, if any."""
    for kind in type(one).__mro__:
        if kind.__module__ == "fastapi.params":
            return kind.__name__
    return None
