"""Whether marks can be obeyed at all, checked where an endpoint is declared.

A mark that can't would refuse every request with 422. So would a parameter without a mark that is
meant to come from the path, as in other frameworks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request

from shoal.batching.handlers.array_types import is_array
from shoal.http.requests.marks import mark_of, stripped
from shoal.http.requests.payload import MarkedReader, MarkedRecordReader, reader_for
from shoal.http.requests.queries import is_record
from shoal.serving.names import parameter_names

if TYPE_CHECKING:
    from inspect import Signature
    from typing import Any

    from shoal.http.requests.payload import ItemSource


def check_marks(signature: Signature, path: str) -> None:
    """Checks the marks of a handler's parameters, and of the fields of its item.

    Args:
        signature: The signature of a call with one item.
        path: The path of the endpoint.

    Raises:
        TypeError: A list is marked as what has one value, or there is no reader for an annotation.
        ValueError: A mark names no parameter of the path, or a parameter without a mark has the
            name of one.
    """
    _check(reader_for(signature), path)
    for name in parameter_names(path):
        same = signature.parameters.get(name)
        if same is not None and _may_be_of_path(same.annotation):
            raise ValueError(
                f"{name!r} has the name of a parameter of the path {path}, and would come from the "
                f"body or the query; mark it, as in {name}: Annotated[str, Path()], with Path of "
                "shoal.http, or give it another name"
            )


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
