"""Asking which replica the code runs in."""

from __future__ import annotations

import pytest

from shoal.batching.current import (
    Identity,
    current_backend_tag,
    current_replica_tag,
    running_replica,
)


def test_code_of_a_backend_knows_its_tags():
    token = running_replica.set(Identity("embed", "embed#3"))
    try:
        assert current_backend_tag() == "embed"
        assert current_replica_tag() == "embed#3"
    finally:
        running_replica.reset(token)


@pytest.mark.parametrize("ask", [current_backend_tag, current_replica_tag])
def test_other_code_is_told_that_no_backend_runs(ask):
    with pytest.raises(RuntimeError, match=rf"^{ask.__name__}\(\) works only in a backend's code"):
        ask()
