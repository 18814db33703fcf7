"""Forms with files: ``multipart/form-data`` (RFC 7578).

The fields of a form are text, and its files bytes, or an `Upload` with the file's name and type
where the code asks for that. A part whose type is ``application/json`` is read as JSON, so a form
can have a record beside its files.

Browsers send forms to other sites without asking these first. So a form is read only for code that
asks for a file: it has a parameter, or a field of its item, of `bytes` or `Upload`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json
from typing_extensions import override

from shoal.core.extras import is_installed
from shoal.http.requests.body_form import BodyForm
from shoal.http.requests.form_costs import check_form
from shoal.http.requests.json_scan import check_json
from shoal.http.requests.marks import element_of
from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from shoal.http.requests.exchange import Exchange
    from shoal.http.requests.json_scan import Costs

FORM: Final = b"multipart/form-data"
"""The media type of a form with files."""

_TITLE: Final = "The form is not accepted"
_MOST_PARTS: Final = 256
_MOST_HEADERS: Final = 8
_MOST_HEADER_BYTES: Final = 4096
_LONGEST_NAME: Final = 256
_LONGEST_BOUNDARY: Final = 70  # as in RFC 2046

# The parser warns of each form that is malformed: a client could fill the log.
_SILENT: Final = logging.Logger("silent", logging.CRITICAL + 1)


@dataclass(frozen=True, slots=True)
class Upload:
    """A file of a form.

    Attributes:
        data: Its bytes.
        filename: Its name, as the client has given it; it may be any text, such as ``../x``.
        content_type: Its media type, as the client has given it.
    """

    data: bytes
    filename: str = ""
    content_type: str = ""


@dataclass(slots=True)
class _Part:
    """A part of a form, as it is read.

    Attributes:
        headers: Its headers by their names in lower case.
        pieces: Its data.
    """

    headers: dict[bytes, bytes]
    pieces: list[bytes]


@dataclass(frozen=True, slots=True)
class _JsonText:
    """The data of a part that is JSON."""

    data: bytes

    def parsed(self, name: str) -> Any:
        """Returns the value, of the part with a name.

        Raises:
            Refused: It is malformed.
        """
        try:
            return from_json(self.data, allow_inf_nan=False)
        except ValueError as error:
            raise _malformed(f"the JSON of {name!r}: {error}") from None


@dataclass(frozen=True, slots=True)
class _Field:
    """What the code wants of a field.

    Attributes:
        is_list: Whether it may be given several times.
        as_upload: Whether it is an `Upload`.
        as_bytes: Whether it is bytes.
    """

    is_list: bool
    as_upload: bool
    as_bytes: bool


class FormType(BodyForm):
    """Reads forms whose fields have names and types.

    Args:
        annotations: The types of the fields.

    Attributes:
        has_files: Whether a field is a file.
        needs_form: Whether a field is an `Upload`, which no other form of a body has.
    """

    media_type = FORM
    names = frozenset({FORM})

    def __init__(self, annotations: Mapping[str, Any]) -> None:
        self._fields = {name: _field(one) for name, one in annotations.items()}
        self.needs_form = any(one.as_upload for one in self._fields.values())
        self.has_files = any(one.as_upload or one.as_bytes for one in self._fields.values())

    @override
    def value(self, exchange: Exchange, body: bytes, costs: Costs) -> dict[str, Any]:
        """Returns the fields of a form: text, bytes, an `Upload`, or what a part's JSON says.

        Raises:
            Refused: The body is not such a form, or has too many parts, or a field twice that is
                not a list.
        """
        content_type = exchange.headers[b"content-type"]
        check_form(content_type, body)
        parts = [self._read(one) for one in _parts(content_type, body)]
        # All at once, since each may have as much as a whole body. A text that is not closed hides
        # those after it, but they are not read: it is malformed.
        texts = [value.data for _, value in parts if isinstance(value, _JsonText)]
        if texts:
            check_json(b",".join(texts), exchange.settings.max_json_elements, costs)
        fields: dict[str, Any] = {}
        for name, value in parts:
            if isinstance(value, _JsonText):
                value = value.parsed(name)
            if name in self._fields and self._fields[name].is_list:
                fields.setdefault(name, []).append(value)
            elif name in fields:
                detail = f"The form: it has the field {name!r} twice."
                raise Refused(Problem(422, "invalid-item", _TITLE, detail))
            else:
                fields[name] = value
        return fields

    def _read(self, part: _Part) -> tuple[str, Any]:
        from python_multipart.multipart import parse_options_header

        kind, options = parse_options_header(part.headers.get(b"content-disposition", b""))
        if kind != b"form-data" or b"name" not in options:
            raise _malformed("a part has no Content-Disposition: form-data with a name")
        name = _text(options[b"name"])
        data = b"".join(part.pieces)
        media_type = part.headers.get(b"content-type", b"")
        wanted = self._fields.get(name)
        if wanted is not None and wanted.as_upload:
            filename = _text(options.get(b"filename", b""))
            return name, Upload(data, filename, media_type.decode("latin-1"))
        if wanted is not None and wanted.as_bytes:
            return name, data
        if media_type.partition(b";")[0].strip().lower() == b"application/json":
            return name, _JsonText(data)
        return name, _text(data, most=len(data))


def _parts(content_type: bytes, body: bytes) -> Iterable[_Part]:
    """Returns the parts of a form.

    Raises:
        Refused: It is malformed, or has too many parts or headers.
    """
    from python_multipart.exceptions import FormParserError
    from python_multipart.multipart import MultipartParser, parse_options_header

    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not 0 < len(boundary) <= _LONGEST_BOUNDARY:
        raise _malformed("its Content-Type has no boundary of 1 to 70 characters")
    parts: list[_Part] = []
    name, value = b"", b""
    is_whole = False

    def on_part_begin() -> None:
        if len(parts) == _MOST_PARTS:
            detail = f"The form: it has more than {_MOST_PARTS} parts."
            raise Refused(Problem(413, "body-too-complex", _TITLE, detail))
        parts.append(_Part({}, []))

    def on_header_field(data: bytes, start: int, end: int) -> None:
        nonlocal name
        name += data[start:end]

    def on_header_value(data: bytes, start: int, end: int) -> None:
        nonlocal value
        value += data[start:end]

    def on_header_end() -> None:
        nonlocal name, value
        if parts[-1].headers.setdefault(name.lower(), value) is not value:
            raise _malformed("a part has a header twice")
        name, value = b"", b""

    def on_part_data(data: bytes, start: int, end: int) -> None:
        parts[-1].pieces.append(data[start:end])

    def on_end() -> None:
        nonlocal is_whole
        is_whole = True

    try:
        parser = MultipartParser(
            boundary,
            {
                "on_part_begin": on_part_begin,
                "on_header_field": on_header_field,
                "on_header_value": on_header_value,
                "on_header_end": on_header_end,
                "on_part_data": on_part_data,
                "on_end": on_end,
            },
            max_header_count=_MOST_HEADERS,
            max_header_size=_MOST_HEADER_BYTES,
        )
        parser.logger = _SILENT
        parser.write(body)
        parser.finalize()
    except FormParserError:
        raise _malformed("it can't be read") from None
    if not is_whole:
        raise _malformed("it ends too early")
    return parts


@cache
def has_multipart() -> bool:
    """Returns whether the package is installed that reads forms."""
    return is_installed("python_multipart")


def _field(annotation: Any) -> _Field:
    is_list, element = element_of(annotation)
    return _Field(is_list, element is Upload, element is bytes)


def _text(data: bytes, most: int = _LONGEST_NAME) -> str:
    if len(data) > most:
        raise _malformed(f"a name in it has more than {most} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise _malformed("a name or a field in it is not text in UTF-8") from None


def _malformed(detail: str) -> Refused:
    return Refused(Problem(400, "invalid-form", _TITLE, f"The form: {detail}."))
