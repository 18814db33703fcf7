"""The lowest versions that continuous integration installs are those that pyproject.toml names."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

floors = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "floors.py"))["floors"]


def test_the_floors_are_of_the_library_and_of_the_extras_that_an_extra_is_made_of():
    project = {"dependencies": ["anyio>=4.10"]}
    extras = {
        "serve": ["h11>=0.16", "hypercorn>=0.18,<0.19"],
        "test": ["shoal[serve]", "pyright[nodejs]>=1.1.390"],
        "ray": ["ray>=2.40"],
    }
    assert floors(project, extras, "test") == [
        "anyio==4.10",
        "pyright==1.1.390",
        "h11==0.16",
        "hypercorn==0.18",
    ]


@pytest.mark.parametrize("requirement", ["h11", "h11==0.16", "h11<1", "h11>=0.16,!=0.17"])
def test_what_has_no_floor_is_refused(requirement):
    with pytest.raises(ValueError, match="wanted name>=floor, or name>=floor,<cap"):
        floors({"dependencies": [requirement]}, {"test": []}, "test")
