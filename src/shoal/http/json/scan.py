"""Bounds on the cost of JSON, checked before it is parsed.

Parsing creates an object for each element, and validation another one. They may take a hundred
bytes or more for two bytes of text. The elements of a body are therefore counted first, in a few
passes that create no objects, and their estimated memory is compared with the body's size. The
parsers themselves limit nesting: pydantic's to 200 levels, orjson to 1024.
"""

from __future__ import annotations

import json
import math
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from shoal.http.requests.problem import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

# An unterminated string extends to the end of the text: searching for an end from each quote in it
# would take quadratic time.
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
# A piece of the text with up to 4096 strings; it does not end inside a string. Removing the strings
# of a whole body at once would build a list that takes more memory than the parsed value.
_PIECES: Final = re.compile(rb'(?:[^"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"?){1,4096}+', re.DOTALL)
# Digits become 0, and exponents have a small e; NaN and Infinity begin with the same letter.
_MARKS: Final = bytes.maketrans(b"123456789EI", b"000000000eN")
_MANY_DIGITS: Final = b"0" * 200

# Searching for one byte is many times faster than for several, and fastest as a number.
_CAPITAL_N, _SMALL_E, _BACKSLASH = b"Ne\\"

_SMALL: Final = len(_MANY_DIGITS)
_TIMES_ITS_SIZE: Final = 12
# A free allowance, since a small body may be all brackets, and more for each permitted element.
_FREE_BYTES: Final = 2**20
_FREE_BYTES_PER_ELEMENT: Final = 64
# The measured memory, in bytes, of a value in its container, a set, a model, and a key that a model
# refuses. Lists and dicts take half, and the keys of a dict a third.
BYTES_PER_SCALAR: Final = 48
BYTES_PER_LIST: Final = 320
BYTES_PER_OBJECT: Final = 800
BYTES_PER_KEY: Final = 330


def check_json(body: bytes, max_elements: int) -> None:
    """Checks the number of elements, and that all numbers can be read."""
    # The memory of the elements may be 12 times the size of the body, plus 64 bytes for each
    # permitted element, plus 1 MiB.
    marks = body.translate(_MARKS)
    # In a text a digit is seldom before an e; `find` takes less time than `in`.
    must_be_read = (_CAPITAL_N in marks and (b"NaN" in body or b"Infinity" in body)) or (
        _SMALL_E in marks and marks.find(b"0e") >= 0 and (b"0e000" in marks or b"0e+000" in marks)
    )
    size = len(body)
    if size <= _SMALL and size <= max_elements and not must_be_read:
        return  # so few bytes can't cost too much
    check_cost(body, max_elements)
    if must_be_read or _MANY_DIGITS in marks:
        with suppress(ValueError, RecursionError):  # the parser reports what else is wrong
            # Integers may have any size, and converting many large ones takes long.
            json.loads(
                body, parse_constant=_refuse_constant, parse_float=_check_float, parse_int=len
            )


def check_cost(body: bytes, max_elements: int) -> None:
    """Checks the number of elements only, for a parser that checks the numbers itself."""
    size = len(body)
    if size <= _SMALL and size <= max_elements:
        return
    # Each string is a value or a key, and has two quotes.
    escaped = body.count(b'\\"') if _BACKSLASH in body else 0
    if body.count(b'"') - escaped > 2 * max_elements + 2:
        raise too_complex(max_elements)
    allowance = allowance_of(size, max_elements)
    elements, cost = _counted(body)
    if elements > max_elements or cost > allowance:
        elements = cost = 0
        for bare in _without_strings(body):
            more, more_cost = _counted(bare)
            elements, cost = elements + more, cost + more_cost
        if elements > max_elements or cost > allowance:
            raise too_complex(max_elements)


def too_complex(max_elements: int) -> Refused:
    detail = (
        f"A body may have {max_elements} values, keys and containers, and fewer where most of "
        "them are small arrays and objects. Send larger bodies as bytes, to a handler that is "
        "annotated list[bytes]."
    )
    return Refused.of("body-too-complex", detail)


def _without_strings(body: bytes) -> Iterator[bytes]:
    for piece in _PIECES.finditer(body):
        yield _STRINGS.sub(b"", piece[0])


def allowance_of(size: int, max_elements: int) -> int:
    """Returns the bytes of memory that the elements of a body of `size` bytes may take."""
    return _TIMES_ITS_SIZE * size + _FREE_BYTES + _FREE_BYTES_PER_ELEMENT * max_elements


def _counted(text: bytes) -> tuple[int, int]:
    """Returns the number of elements, and the memory that they take."""
    # Each element but the first of a container follows one of these.
    marks = [text.count(mark) for mark in (b",", b"[", b"{", b":")]
    scalars, lists, objects, keys = marks
    cost = (
        scalars * BYTES_PER_SCALAR
        + lists * BYTES_PER_LIST
        + objects * BYTES_PER_OBJECT
        + keys * BYTES_PER_KEY
    )
    return sum(marks), cost


def _refuse_constant(name: str) -> None:
    raise not_json(f"JSON has no number {name}.")


def _check_float(number: str) -> None:
    if math.isinf(float(number)):
        raise not_json(f"{number[:40]} is larger than any number that can be read.")


def not_json(detail: str) -> Refused:
    return Refused.of("invalid-json", detail)


def malformed_json(error: str, body: bytes) -> Refused:
    """Returns the error for a body that a parser refused, perhaps for its encoding."""
    hint = "" if is_utf8(body) else " Send UTF-8 without a byte order mark."
    return not_json(f"{error}.{hint}")


def is_utf8(body: bytes) -> bool:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return False
    return not text.startswith("\ufeff") and "\0" not in text[:4]  # as in UTF-16
