"""The plan for one million requests a second: its code prints what the page says."""

from __future__ import annotations

import pytest

from test_docs import ROOT, run_page

PAGE = ROOT / "docs" / "discussion" / "scale.md"


# From here on the page simulates most of its requests, for twice as long; `make soak` runs it all.
SLOWER_PART = "## Where it fails"


@pytest.mark.slow
def test_the_page_on_scale_does_what_it_says_until_it_fails(monkeypatch):
    page, _, rest = PAGE.read_text(encoding="utf-8").partition(SLOWER_PART)
    assert rest
    run_page(str(PAGE), page, monkeypatch)


@pytest.mark.soak
def test_the_page_on_scale_does_what_it_says(monkeypatch):
    run_page(str(PAGE), PAGE.read_text(encoding="utf-8"), monkeypatch)
