"""`.ci/floors.py` pins the lowest versions that pyproject.toml allows."""

import runpy
from pathlib import Path

import pytest

floors = runpy.run_path(str(Path(__file__).parents[1] / ".ci" / "floors.py"))["floors"]


def test_each_requirement_is_pinned_to_its_floor():
    requirements = [
        "pyright[nodejs]>=1.1.390",
        "anyio>=4.10",
        "hypercorn>=0.18,<0.19",
        "backports.zstd>=1.0; python_version < '3.14'",
        "anyio>=4.10",
    ]
    assert floors(requirements) == [
        "anyio==4.10",
        "backports.zstd==1.0",
        "hypercorn==0.18",
        "pyright==1.1.390",
    ]


@pytest.mark.parametrize("requirement", ["h11", "h11==0.16", "h11<1", "h11>=0.16,!=0.17"])
def test_a_requirement_without_a_floor_is_refused(requirement):
    with pytest.raises(ValueError, match="wanted name>=floor, or name>=floor,<cap"):
        floors([requirement])


def test_two_floors_of_a_package_are_refused():
    with pytest.raises(ValueError, match="two floors for h11"):
        floors(["h11>=0.16", "h11>=0.17"])
