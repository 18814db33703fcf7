"""Whether marks can be obeyed at all, checked where an endpoint is declared.

A mark that can't would refuse every request with 422. So would a parameter without a mark that is
meant to come from the path, as in other frameworks.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, Final

from starlette.datastructures import UploadFile
from starlette.requests import Request

from shoal.http.requests.arrays import is_array
from shoal.http.requests.marks import Mark, element_of, fields_of, mark_of, metadata_of, stripped
from shoal.http.requests.payload import MarkedReader, MarkedRecordReader, reader_for
from shoal.http.requests.queries import is_record
from shoal.serving.names import parameter_names

if TYPE_CHECKING:
    from inspect import Signature

    from shoal.http.requests.payload import ItemSource

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


def check_marks(signature: Signature, path: str) -> None:
    """Checks the marks of a handler's parameters, and of the fields of its item.

    Args:
        signature: The signature of a call with one item.
        path: The path of the endpoint.

    Raises:
        TypeError: A list is marked as what has one value, a mark is of a kind that is not known, or
            is a default, or JSON can't be checked against an annotation.
        ValueError: A mark names no parameter of the path, or a parameter without a mark has the
            name of one.
    """
    for name, parameter in signature.parameters.items():
        _check_known(name, parameter.annotation)
        _check_default(name, parameter.default)
        for field, annotation in fields_of(parameter.annotation).items():
            _check_known(field, annotation)
    _check(reader_for(signature), path)
    for name in parameter_names(path):
        same = signature.parameters.get(name)
        if same is not None and _may_be_of_path(same.annotation):
            raise ValueError(
                f"{name!r} has the name of a parameter of the path {path}, and would come from the "
                f"body or the query; mark it, as in {name}: Annotated[str, Path()], with Path of "
                "shoal.http, or give it another name"
            )


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


def _may_be_of_path(annotation: Any) -> bool:
    kind = stripped(annotation)
    is_whole = kind is bytes or kind is Request or is_array(kind) or is_record(kind)
    return mark_of(annotation) is None and not is_whole


def _check(reader: ItemSource, path: str) -> None:
    if isinstance(reader, MarkedReader):
        _check(reader.rest, path)
    if not isinstance(reader, MarkedReader | MarkedRecordReader):
        return
    in_path = parameter_names(path)
    for name, (source, there) in reader.marked.sources.items():
        if source == "path" and there not in in_path:
            others = f"only {', '.join(in_path)}" if in_path else "none at all"
            raise ValueError(
                f"{name!r} is marked as the parameter {there!r} of the path, and {path} has "
                f'{others}; write {{{there}}} in the path, or name another, as in Path("id")'
            )
        if source in ("path", "cookie") and name in reader.lists:
            what = "a parameter of the path" if source == "path" else "a cookie"
            raise TypeError(
                f"{name!r} is a list, and {what} has one value; annotate one value, such as str, "
                "mark it as Query() or Header(), which may be repeated, or add a BeforeValidator "
                "that makes a list of text"
            )
