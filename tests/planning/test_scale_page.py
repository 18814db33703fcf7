"""The plan for one million requests a second: its code prints what the page says."""

import pytest

from test_docs import ROOT, run_page

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "discussion" / "scale.md"


def test_the_page_on_scale_does_what_it_says(monkeypatch):
    run_page(str(PAGE), PAGE.read_text(encoding="utf-8"), monkeypatch)
