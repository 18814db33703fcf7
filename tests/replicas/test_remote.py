"""Remote replicas at work, with model servers in this process."""

import pytest

from replicas.remote_servers import served
from shoal.testing import check_replica

pytestmark = pytest.mark.real_time


@pytest.mark.parametrize("kind", ["plain", "async"])
async def test_remote_replicas_keep_the_promises(kind, tmp_path):
    await check_replica(served(tmp_path), kinds=[kind], own_batches=True)
