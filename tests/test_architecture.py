"""The picture of the packages in the documentation is that of the code."""

import runpy
from pathlib import Path

DRAWING = Path(__file__).parents[1] / "docs" / "architecture.py"


def test_the_picture_is_that_of_the_code():
    drawing = runpy.run_path(str(DRAWING))
    assert drawing["PICTURE"].read_text(encoding="utf-8") == drawing["picture"](), (
        "the imports between folders have changed; run: python docs/architecture.py"
    )
