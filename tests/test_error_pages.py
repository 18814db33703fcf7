"""The page of errors by name has each exception, and each kind of problem."""

import re
from pathlib import Path

import pytest

from shoal import errors
from shoal.http.requests.problem import KINDS

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "errors-by-name.md"


@pytest.fixture
def rows():
    """The cells of each row, by the name in its first cell."""
    lines = re.findall(r"^\| `([\w-]+)` \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    found = {name: cells.split(" | ") for name, cells in lines}
    assert len(found) == len(lines)
    return found


def test_each_exception_has_its_cause_and_cure(rows):
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.ShoalError)
    }
    named = {name: cells for name, cells in rows.items() if name not in KINDS}
    assert set(named) == classes - {"ShoalError"}
    assert {len(cells) for cells in named.values()} == {2}


def test_each_kind_of_problem_has_its_status_cause_and_cure(rows):
    for kind, (status, _) in KINDS.items():
        found, cause, cure = rows[kind]
        assert found == str(status)
        assert cause
        assert cure
