"""Under load, 200 random updates lose nothing: each request ends with its own right answer."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from typing import Any

import anyio
import pytest

from serving.load import Load, Versioned
from serving.scenes import ScriptedReplica, Stage
from shoal.errors import InUse, NoSuchName, ReplicaNotStarted
from shoal.serving.controller.controller import Controller

SEEDS = range(1)
SOAK_SEEDS = range(int(os.environ.get("SHOAL_SOAK_UPDATES", "100")))
UPDATES = 200


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
async def test_updates_lose_nothing(seed: int) -> None:
    await Updates(seed).run()


@pytest.mark.anyio
@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
async def test_updates_lose_nothing_for_long(seed: int) -> None:
    await Updates(1000 + seed).run()


class Updates:
    """A random program of updates to a controller under load.

    Args:
        seed: Which program.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._stage = Stage()
        self._stage.start = self._start
        self._next = 0
        self._kinds = [
            self._set_batching,
            self._set_bounds,
            self._set_user_config,
            self._set_what_needs_new_replicas,
            self._set_traffic,
            self._scale,
            self._restart,
            self._fail_starts,
            self._create,
            self._delete,
            self._shadow,
        ]
        self.made: list[str] = []
        self._failing_starts = 0

    async def run(self) -> None:
        async with Controller() as self._controller:
            for _ in range(2):
                await self._create()
            first, second = self._controller.backends
            await self._controller.create_endpoint("e", backend=first)
            self._load = Load(self._controller, "e", self._random)
            self._load.used |= {first, second}
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._load.run, 8)
                async with anyio.create_task_group() as updating:
                    for _ in range(2):  # two at once, so that updates meet
                        updating.start_soon(self._update, UPDATES // 2)
                self._load.stop()
            status = self._controller.status_now()
        assert self._load.failed == []
        assert self._load.answered == self._load.asked > 300
        assert status.endpoints["e"].requests == self._load.asked
        assert all(backend.deaths == 0 for backend in status.backends.values())
        assert len(self._stage.ended) == len(self._stage.starting)

    async def _start(self, _: ScriptedReplica) -> str | None:
        await anyio.sleep(self._random.uniform(0, 0.5))
        if self._failing_starts:
            self._failing_starts -= 1
            return "no luck"
        return None

    async def _update(self, times: int) -> None:
        for _ in range(times):
            await anyio.sleep(self._random.uniform(0, 0.2))
            kind = self._random.choice(self._kinds)
            self.made.append(kind.__name__)
            # The other one may have taken away what this one is about.
            with suppress(NoSuchName, InUse, ReplicaNotStarted):
                await kind()

    def _tag(self) -> str:
        return self._random.choice(sorted(self._controller.backends))

    async def _set(self, **config: Any) -> None:
        await self._controller.update_backend_config(self._tag(), config)

    async def _set_batching(self) -> None:
        await self._set(
            max_batch_size=self._random.randint(1, 8),
            batch_wait_timeout_s=self._random.choice([0, 0.05]),
            max_concurrent_batches=self._random.randint(1, 3),
        )

    async def _set_bounds(self) -> None:
        await self._set(
            max_ongoing_requests=self._random.choice([None, 3, 8]),
            retries=self._random.randint(0, 2),
            health_check_period_s=self._random.choice([0.1, 10]),
        )

    async def _set_user_config(self) -> None:
        await self._set(user_config=self._random.randint(1, 5))

    async def _set_what_needs_new_replicas(self) -> None:
        await self._set(shared_memory_bytes=self._random.randint(1, 1000))

    async def _scale(self) -> None:
        await self._controller.scale_backend(self._tag(), self._random.randint(1, 4))

    async def _restart(self) -> None:
        await self._controller.restart_backend(self._tag())

    async def _fail_starts(self) -> None:
        self._failing_starts = self._random.randint(1, 2)

    async def _create(self) -> None:
        if len(self._controller.backends) > 4:
            return
        tag = f"v{self._next}"
        self._next += 1
        await self._controller.create_backend(
            tag, Versioned(self._random), config={"placement": self._stage, "num_replicas": 2}
        )

    async def _delete(self) -> None:
        if len(self._controller.backends) > 2:
            await self._controller.delete_backend(self._tag())

    async def _set_traffic(self) -> None:
        tags = sorted(self._controller.backends)
        chosen = self._random.sample(tags, self._random.randint(1, len(tags)))
        parts = [self._random.randint(0, 4) for _ in chosen]
        parts[0] += 1
        weights = {tag: part / sum(parts) for tag, part in zip(chosen, parts, strict=True)}
        self._load.used |= {*chosen}
        await self._controller.set_traffic("e", weights)

    async def _shadow(self) -> None:
        share = self._random.choice([0, 0.3, 1])
        await self._controller.shadow_traffic(
            "e", self._tag(), share, compare=lambda first, second: first[0] == second[0]
        )
