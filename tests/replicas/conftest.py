from functools import partial

import pytest

from replicas.local_replicas import made
from shoal.replicas.local.task import TaskReplica
from shoal.replicas.local.thread import ThreadReplica
from shoal.testing.replicas.code import Folder


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(str(tmp_path))


@pytest.fixture(params=[TaskReplica, ThreadReplica])
def replica_of(request):
    """Makes a replica of this process, of either placement."""
    return partial(made, request.param)
