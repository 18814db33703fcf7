"""Dask tasks of one text each, which share batches with all tasks of their worker.

python -m examples.inside.dask_tasks
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from dask.distributed import Client, LocalCluster, WorkerPlugin, get_worker

import shoal
from examples.inside.model import Model

if TYPE_CHECKING:
    from dask.distributed import Worker


class BatchedModel(WorkerPlugin):  # type: ignore[misc]
    """A model in each worker, loaded once."""

    name = "model"

    def setup(self, worker: Worker) -> None:
        self.model = Model()
        self.block = ExitStack()
        self.call = self.block.enter_context(shoal.blocking(self.measure))

    def teardown(self, worker: Worker) -> None:
        self.block.close()

    @shoal.batch(max_batch_size=64)
    def measure(self, texts: list[str]) -> list[int]:
        return self.model(texts)


def length(text: str) -> int:
    plugin: BatchedModel = get_worker().plugins["model"]
    return plugin.call(text)


def sizes(dask_worker: Worker) -> list[int]:
    plugin: BatchedModel = dask_worker.plugins["model"]
    return plugin.model.sizes


def main() -> None:
    texts = ["a" * number for number in range(1, 513)]
    # A task waits for its batch in a thread of its worker, so start as many as a batch may have.
    with (
        LocalCluster(n_workers=1, threads_per_worker=64, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.register_plugin(BatchedModel())
        lengths = client.gather(client.map(length, texts))
        [found] = client.run(sizes).values()
    print(f"{len(lengths)} calls, the longest text has {max(lengths)} characters")
    print(f"{len(found)} batches, the largest of {max(found)}")


if __name__ == "__main__":
    main()
