"""What JSON would cost is found out before it is parsed.

A parser makes an object of each element, and a checker one more, which take a hundred bytes and
more where the text takes two. So the elements of a body are counted first, in a few passes that
make nothing, and what they will take is held against the body's size. Nesting is bounded by the
parser itself, at 200 levels.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from shoal.http.requests.problem import Problem, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

# A string that does not end is taken to the end of the text: to look for its end from each quote in
# it would take the square of its length.
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
# A piece of the text with so many strings in it, cut outside of them. To take the strings out of a
# whole body at once is to make a list of what is between them, which takes more than the value.
_PIECES: Final = re.compile(rb'(?:[^"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+"?){1,4096}+', re.DOTALL)
_NUMBERS: Final = re.compile(rb"[0-9][0-9.]*+(?:[eE][+-]?+[0-9]++)?+")
_NO_NUMBERS: Final = (b"NaN", b"Infinity")

_DIGITS_AS_0: Final = bytes.maketrans(b"123456789E", b"000000000e")
_MANY_DIGITS: Final = b"0" * 200

_TIMES_ITS_SIZE: Final = 12
# What is free, since a small body may be all brackets; and more for each element that it may have.
_FREE_BYTES: Final = 2**20
_FREE_BYTES_PER_ELEMENT: Final = 32
_BYTES_PER_SCALAR: Final = 48


@dataclass(frozen=True, slots=True)
class Costs:
    """What the parts of a text take in memory that makes up a value, in bytes, as measured.

    Attributes:
        per_list: An array.
        per_object: An object.
        per_key: Each of an object's keys.
    """

    per_list: int = 160
    per_object: int = 400
    per_key: int = 100


def check_json(body: bytes, max_elements: int, costs: Costs) -> int:
    """Checks that a body has no more elements than it may, and no numbers that can't be told.

    Args:
        body: The body.
        max_elements: How many values, keys and containers it may have. What they take may be 12
            times the body's size, 32 bytes more for each that it may have, and 1 MiB more.
        costs: What they take.

    Returns:
        How many it has at most.

    Raises:
        Refused: It has more, or a number that is none, or is too large for a float.
    """
    # Each string is a value or a key.
    if body.count(b'"') - body.count(b'\\"') > 2 * max_elements + 2:
        raise _too_complex(max_elements)
    free = _FREE_BYTES + _FREE_BYTES_PER_ELEMENT * max_elements
    allowance = _TIMES_ITS_SIZE * len(body) + free
    elements, cost = _counted(body, costs)
    names = [name for name in _NO_NUMBERS if name in body]
    may_be_too_large = _may_have_too_large(body)
    if elements > max_elements or cost > allowance or names or may_be_too_large:
        elements = cost = 0
        for bare in _without_strings(body):
            for name in names:
                if name in bare:
                    raise _not_json(f"JSON has no number {name.decode()}.")
            more, more_cost = _counted(bare, costs)
            elements, cost = elements + more, cost + more_cost
        if elements > max_elements or cost > allowance:
            raise _too_complex(max_elements)
        if may_be_too_large:
            for bare in _without_strings(body):
                _check_numbers(bare)
    return elements


def _without_strings(body: bytes) -> Iterator[bytes]:
    """Yields what is between the strings of a text, piece by piece."""
    for piece in _PIECES.finditer(body):
        yield _STRINGS.sub(b"", piece[0])


def _counted(text: bytes, costs: Costs) -> tuple[int, int]:
    """Returns how many elements there are, and what they take."""
    # Each but the first of a container comes after one of these.
    marks = [text.count(mark) for mark in (b",", b"[", b"{", b":")]
    scalars, lists, objects, keys = marks
    cost = (
        scalars * _BYTES_PER_SCALAR
        + lists * costs.per_list
        + objects * costs.per_object
        + keys * costs.per_key
    )
    return sum(marks), cost


def _may_have_too_large(body: bytes) -> bool:
    """Says whether a number may be too large for a float, by what such a number is written with."""
    digits = body.translate(_DIGITS_AS_0)
    if _MANY_DIGITS in digits:
        return True
    return b"e" in digits and (b"e000" in digits or b"e+000" in digits)


def _check_numbers(bare: bytes) -> None:
    # Integers of any size are numbers; with a fraction or an exponent a number is read as a float.
    for found in _NUMBERS.finditer(bare):
        number = found[0]
        if (b"." in number or b"e" in number.lower()) and _is_too_large(number):
            raise _not_json(f"{number[:40].decode()} is larger than any number that can be read.")


def _is_too_large(number: bytes) -> bool:
    try:
        return math.isinf(float(number))
    except ValueError:  # the parser says what is wrong with it
        return False


def _not_json(detail: str) -> Refused:
    return Refused(Problem(400, "invalid-json", "The body is not JSON", detail))


def _too_complex(max_elements: int) -> Refused:
    return Refused(
        Problem(
            413,
            "body-too-complex",
            "The body has too many elements",
            f"A body may have {max_elements} values, keys and containers, and fewer where most of "
            "them are small arrays and objects; larger ones are better sent as bytes, to a handler "
            "that is annotated list[bytes].",
        )
    )
