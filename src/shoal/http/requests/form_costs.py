"""What a form may cost to read, checked before a parser sees it.

The parser of forms looks at each parameter of a header several times, so a part whose header has
thousands of semicolons takes it milliseconds; a text of many short fields takes it as long. Here
both are bounded by searches that take no time.
"""

from __future__ import annotations

from typing import Final

from shoal.http.requests.problem import Problem, Refused

_MOST_PARAMETERS: Final = 32
_MOST_HEADER_BYTES: Final = 2**16
_MOST_FIELDS: Final = 1000
_URL_ENCODED: Final = b"application/x-www-form-urlencoded"


def check_form(content_type: bytes, body: bytes) -> None:
    """Checks what a form would cost to read; another body is not looked at.

    Args:
        content_type: The media type of the body.
        body: The whole body.

    Raises:
        Refused: A header of a part has too many parameters, the headers of all parts are too large,
            or the form has too many fields.
    """
    media_type = content_type.partition(b";")[0].strip().lower()
    if media_type == _URL_ENCODED and body.count(b"&") + body.count(b";") >= _MOST_FIELDS:
        raise _too_complex(f"it has more than {_MOST_FIELDS} fields")
    if not media_type.startswith(b"multipart/"):
        return
    _check_parameters(content_type)
    try:
        from python_multipart.multipart import parse_options_header
    except ModuleNotFoundError:  # then nobody can read it
        return
    line = b"--" + parse_options_header(content_type)[1].get(b"boundary", b"")
    size = 0
    at = 0 if body.startswith(line) else body.find(b"\r\n" + line)
    while at >= 0:
        end = body.find(b"\r\n\r\n", at, at + _MOST_HEADER_BYTES)
        header = body[at : end if end >= 0 else at + _MOST_HEADER_BYTES]
        _check_parameters(header)
        size += len(header)
        if size > _MOST_HEADER_BYTES:
            raise _too_complex(f"its parts have more than {_MOST_HEADER_BYTES} bytes of headers")
        at = body.find(b"\r\n" + line, at + 2)


def _check_parameters(header: bytes) -> None:
    if header.count(b";") > _MOST_PARAMETERS:
        raise _too_complex(f"a header has more than {_MOST_PARAMETERS} parameters")


def _too_complex(detail: str) -> Refused:
    title = "The form is not accepted"
    return Refused(Problem(413, "body-too-complex", title, f"The form: {detail}."))
