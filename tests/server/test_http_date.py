"""The time in the headers of answers."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from shoal.server.http1.call import http_date

DAY_S = 24 * 60 * 60


@pytest.mark.parametrize("at", [0, 784111777, 951782399, 951782400, 2**31, 4102444800])
def test_a_time_is_written_as_http_wants_it(at):
    assert http_date(at) == formatdate(at, usegmt=True).encode()


def test_each_day_of_four_years_is_written_so():
    for day in range(4 * 366):
        at = 1709164799 + day * (DAY_S + 61)
        assert http_date(at) == formatdate(at, usegmt=True).encode()
