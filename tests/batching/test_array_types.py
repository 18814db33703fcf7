"""Shapes and dtypes that an array annotation declares."""

import contextlib
import gc
from dataclasses import dataclass
from inspect import Parameter, Signature
from typing import Annotated, Any, Literal, NewType

import pytest
from typing_extensions import TypedDict

from shoal.batching.handlers.array_types import ArrayType, array_check, has_arrays

np = pytest.importorskip("numpy")
NDArray = pytest.importorskip("numpy.typing").NDArray

Rows = NewType("Rows", int)
Four = np.ndarray[tuple[Literal[4]], np.dtype[np.float32]]


def shaped(shape):
    return np.ndarray[shape, np.dtype[Any]]


@pytest.mark.parametrize(
    ("shape", "fitting", "wrong", "told"),
    [
        (tuple[Literal[4]], [(4,)], [(3,), (), (4, 4), (1, 4)], "(4,)"),
        (tuple[int, int], [(0, 2), (3, 5)], [(), (4,), (1, 2, 3)], "(any, any)"),
        (tuple[Rows, Literal[3]], [(9, 3)], [(3, 9), (3,)], "(any, 3)"),
        (tuple[Literal[3, 4], int], [(3, 1), (4, 1)], [(5, 1)], "(3 or 4, any)"),
        (tuple[int, *tuple[int, ...]], [(), (1, 2, 3)], [], None),
        (tuple[()], [()], [(1,)], "()"),
        (tuple[int] | tuple[int, int], [(1,), (1, 1)], [()], "(any,) or (any, any)"),
        (tuple[Any, ...], [(), (1, 2, 3)], [], None),
        (Any, [(), (1, 2, 3)], [], None),
        (tuple[Annotated[int, "rows"], Literal[2]], [(7, 2)], [(7, 3)], "(any, 2)"),
    ],
)
def test_a_shape_is_checked(shape, fitting, wrong, told):
    made = ArrayType(shaped(shape))
    for one in fitting:
        assert made.of(np.zeros(one)).shape == one
    for one in wrong:
        with pytest.raises(ValueError, match="its shape is") as refused:
            made.of(np.zeros(one))
        assert str(one) in str(refused.value)
        assert told is None or str(refused.value).endswith(f"must be {told}")


@pytest.mark.parametrize(
    ("scalar", "given", "made"),
    [
        (np.float32, "f8", "f4"),
        (np.float32, ">f4", "f4"),
        (np.floating, "f2", "f2"),
        (np.floating, "i4", "f8"),
        (np.integer, "u1", "u1"),
        (np.integer, "f8", None),
        (np.unsignedinteger, "i4", "u8"),
        (np.number, "c8", "c8"),
        (np.number, "?", None),
        (np.bool_, "i4", None),
        (np.complexfloating, "f4", "c16"),
        (np.float32 | np.float64, "f8", "f8"),
        (np.float32 | np.int64, "i4", "f4"),
        (np.int8 | np.float32, "f8", "f4"),
        (np.float32, "U3", None),
        (np.str_, "i4", None),
        (np.str_, "U3", "U3"),
        (np.datetime64, "M8[s]", "M8[s]"),
        (np.datetime64, "i8", None),
        (np.object_, "O", "O"),
        (Any, "U3", "U3"),
    ],
)
def test_a_dtype_is_checked_and_converted(scalar, given, made):
    array_type = ArrayType(np.ndarray[Any, np.dtype[scalar]])
    array = np.ones(2, given)
    if made is None:
        with pytest.raises(ValueError, match=r"dtype|numbers"):
            array_type.of(array)
    else:
        assert array_type.of(array).dtype == np.dtype(made)


def test_a_fitting_array_is_not_copied():
    array = np.ones(4, np.float32)
    assert ArrayType(Four).of(array) is array


@dataclass(frozen=True)
class Frozen:
    a: Four
    b: int = 1


class Table(TypedDict):
    a: Four
    rest: "list[Table]"


def check_of(*annotations):
    kind = Parameter.POSITIONAL_OR_KEYWORD
    return array_check(
        Signature([Parameter(f"p{n}", kind, annotation=a) for n, a in enumerate(annotations)])
    )


GOOD, BAD = np.zeros(4), np.zeros(3)


@pytest.mark.parametrize(
    ("annotation", "item"),
    [
        (Four, lambda a: a),
        (Four, lambda a: a.tolist()),
        (Annotated[Four, "a mark"], lambda a: a),
        (Four | None, lambda a: a),
        (Four | None, lambda a: a.tolist()),
        (Four | str, lambda a: a),
        (list[Four], lambda a: [GOOD, a]),
        (tuple[str, Four], lambda a: ("x", a)),
        (tuple[Four, ...], lambda a: (GOOD, a)),
        (dict[str, Four], lambda a: {"x": a}),
        (list[Four | None] | None, lambda a: [None, a]),
        (Frozen, lambda a: Frozen(a)),
        (list[Frozen], lambda a: [Frozen(a)]),
        (Table, lambda a: {"a": GOOD, "rest": [{"a": a, "rest": []}]}),
    ],
)
def test_arrays_are_checked_wherever_an_annotation_has_them(annotation, item):
    check = check_of(int, annotation)
    assert check((1, item(GOOD)))[0] == 1
    with pytest.raises(ValueError, match=r"^p1: .*its shape is \(3,\), and it must be \(4,\)"):
        check((1, item(BAD)))


def test_items_are_converted_and_the_callers_own_stay_as_they_are():
    frozen = Frozen(GOOD)
    made = check_of(Frozen)(frozen)
    assert (made.a.dtype, frozen.a.dtype, made.b) == (np.float32, np.float64, 1)
    assert check_of(Four | None)(None) is None
    assert check_of(Four | str)("text") == "text"


@pytest.mark.parametrize("annotation", [int, list[str], Literal[1], Any])
def test_an_annotation_without_arrays_needs_no_check(annotation):
    assert not has_arrays(annotation)
    assert check_of(annotation) is None


@pytest.mark.parametrize(
    "annotation",
    [
        np.ndarray[Any, np.dtype[np.int8 | np.bool_]],
        np.ndarray[tuple[Literal[2]], Any] | np.ndarray[tuple[Literal[3]], Any],
    ],
)
def test_an_array_that_is_refused_leaves_nothing_to_the_garbage_collector(annotation):
    check = array_check(Signature([Parameter("x", Parameter.KEYWORD_ONLY, annotation=annotation)]))
    gc.collect()
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            check(np.array([1.5]))
        assert gc.collect() == 0
    finally:
        gc.enable()
