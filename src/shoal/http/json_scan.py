"""What JSON would cost is found out before it is parsed.

A parser makes an object of each element, and a checker one more, which take a hundred bytes and
more where the text takes two. So the elements of a body are counted first, in a few passes that
make nothing. Nesting is bounded by the parser itself, at 200 levels.
"""

from __future__ import annotations

import re
from typing import Final

from shoal.http.problem import Problem, Refused

# A string that does not end is taken to the end of the text: to look for its end from each quote in
# it would take the square of its length.
_STRINGS: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_NUMBERS: Final = (b"NaN", b"Infinity")


def check_json(body: bytes, max_elements: int) -> int:
    """Checks that a body has no more elements than it may, and no numbers that JSON does not have.

    Args:
        body: The body.
        max_elements: How many values, keys and containers it may have.

    Returns:
        How many it has at most.

    Raises:
        Refused: It has more, or a number that is none.
    """
    # Each string is a value or a key. Of too many it is not looked at where they are, since that
    # makes a piece of the text for each of them.
    if body.count(b'"') - body.count(b'\\"') > 2 * max_elements + 2:
        raise _too_complex(max_elements)
    elements = _elements(body)
    suspects = [name for name in _NO_NUMBERS if name in body]
    if elements > max_elements or suspects:
        bare = _STRINGS.sub(b"", body)
        elements = _elements(bare)
        for name in suspects:
            if name in bare:
                detail = f"JSON has no number {name.decode()}."
                raise Refused(Problem(400, "invalid-json", "The body is not JSON", detail))
    if elements > max_elements:
        raise _too_complex(max_elements)
    return elements


def _elements(text: bytes) -> int:
    # Each but the first of a container comes after one of these.
    return sum([text.count(mark) for mark in (b",", b"[", b"{", b":")])


def _too_complex(max_elements: int) -> Refused:
    return Refused(
        Problem(
            413,
            "body-too-complex",
            "The body has too many elements",
            f"A body may have {max_elements} values, keys and containers; larger ones are better "
            "sent as bytes, to a handler that is annotated list[bytes].",
        )
    )
