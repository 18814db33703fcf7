"""The picture of the packages in the documentation is that of the code."""

from __future__ import annotations

import runpy
from pathlib import Path

DRAWING = Path(__file__).parents[1] / "docs" / "architecture.py"


def test_the_picture_is_that_of_the_code():
    drawing = runpy.run_path(str(DRAWING))
    assert drawing["PICTURE"].read_text(encoding="utf-8") == drawing["picture"](), (
        "the imports between folders have changed; run: python docs/architecture.py"
    )


def test_what_is_imported_by_way_of_another_is_left_out():
    reduced = runpy.run_path(str(DRAWING))["reduced"]
    assert reduced({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == {
        "a": {"b"},
        "b": {"c"},
        "c": set(),
    }
