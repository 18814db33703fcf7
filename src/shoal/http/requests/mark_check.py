"""Whether marks can be obeyed at all, checked where an endpoint is declared.

A mark that can't would refuse every request with 422.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.http.requests.payload import MarkedReader, MarkedRecordReader
from shoal.serving.names import parameter_names

if TYPE_CHECKING:
    from shoal.http.requests.payload import ItemSource


def check_marks(reader: ItemSource, path: str) -> None:
    """Checks the marks of a handler's parameters, and of the fields of its item.

    Args:
        reader: Reads the handler's items.
        path: The path of the endpoint.

    Raises:
        TypeError: A list is marked as what has one value.
        ValueError: A mark names no parameter of the path.
    """
    if isinstance(reader, MarkedReader):
        check_marks(reader.rest, path)
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
