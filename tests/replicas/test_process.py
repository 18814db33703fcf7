"""Process replicas keep the contract of all replicas."""

from __future__ import annotations

import os
from functools import partial

import pytest

from shoal.replicas.process import ProcessReplica
from shoal.testing.replica_check import check_replica

pytestmark = [pytest.mark.anyio, pytest.mark.real_time]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_process_replicas_keep_the_promises_of_all_replicas(kind):
    await check_replica(ProcessReplica, kinds=[kind], crash=partial(os._exit, 3))
