from typing import Any

import pytest

from shoal.serving.names import checked_methods, checked_route, checked_tag


@pytest.mark.parametrize("tag", ["a", "Embed-v2", "a.b:c_d", "0", "...a", "x" * 64])
def test_a_name_is_one_plain_word(tag: str) -> None:
    assert checked_tag("a backend's tag", tag) == tag


@pytest.mark.parametrize(
    "tag",
    [
        *("../etc", "a/../b", "/etc/passwd", "model/..", " ..", ".", ".."),
        *("", "x" * 65, "a b", "a\n", "ä", "a#1", "a\0", "a%2e", "٣"),
    ],
)
def test_what_is_no_plain_word_is_no_name(tag: str) -> None:
    with pytest.raises(ValueError, match="can't be a backend's tag: a name has 1 to 64 of"):
        checked_tag("a backend's tag", tag)


@pytest.mark.parametrize("tag", [None, 3, b"a", ["a"]])
def test_a_name_is_text(tag: Any) -> None:
    with pytest.raises(TypeError, match='an endpoint\'s name must be text such as "embed-v2", not'):
        checked_tag("an endpoint's name", tag)


@pytest.mark.parametrize(
    "route", [None, "/", "/a", "/a/b/", "/-a", "/a/-/b", "/v2/models", "/ä b", "/100%", "/.a"]
)
def test_a_route_is_a_path_or_none(route: str | None) -> None:
    assert checked_route(route) == route


@pytest.mark.parametrize(
    ("route", "error", "says"),
    [
        ("a", ValueError, 'must start with "/".*write route="/a"'),
        ("", ValueError, 'must start with "/"'),
        ("/a?b=1", ValueError, "braces"),
        ("/a#b", ValueError, "braces"),
        ("/{id", ValueError, "braces"),
        ("/-", ValueError, "application's own"),
        ("/-/x", ValueError, "application's own"),
        ("//a", ValueError, "no request can reach"),
        ("/./a", ValueError, "no request can reach"),
        ("/a/../b", ValueError, "no request can reach"),
        ("/a/..", ValueError, "no request can reach"),
        ("/a%20b", ValueError, "no request can reach"),
        ("/a%2Fb", ValueError, "no request can reach"),
        ("/\ud800", ValueError, "no request can reach"),
        (3, TypeError, 'must be text, not 3; write route="/3"'),
    ],
)
def test_what_is_no_path_or_reserved_is_no_route(route, error, says):
    with pytest.raises(error, match=says):
        checked_route(route)


def test_methods_are_written_in_capitals_and_once() -> None:
    assert checked_methods(["get", "POST", "Get"]) == ("GET", "POST")


@pytest.mark.parametrize(
    ("methods", "error", "says"),
    [
        ("GET", TypeError, r"must be a list, not 'GET'; write methods = \[\"GET\"\]"),
        (None, TypeError, "must be a list"),
        ((3,), TypeError, "a method is a name"),
        (("FETCH",), ValueError, "there are GET, HEAD"),
        ((), ValueError, "needs a method"),
    ],
)
def test_what_are_no_methods_is_refused(methods: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        checked_methods(methods)
