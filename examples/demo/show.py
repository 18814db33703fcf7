"""The show: simulated clients and a batch of texts, which run only while there are viewers.

It is itself the handler of a continuous batch. Each viewer is a long-lived request: it joins
between two frames, receives every frame, and leaves when its page is closed. When the last viewer
leaves, the simulated clients stop; the next viewer starts them again.
"""

import os
import signal
from contextlib import suppress
from typing import Annotated, Any, cast

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

import shoal
from examples.demo.crowd import Crowd, Question
from examples.demo.lanes import Lanes
from examples.demo.worker import SLOW_MOTION
from examples.language_model.model import CharTransformer

BATCHED, SINGLE = "digits", "one-by-one"
"""The endpoint with batches, and the one with a single image at a time."""

VIEWERS = 8
"""The maximum number of viewers; more are refused."""

FRAME_S = 0.125

Frame = dict[str, Any]
Cursors = dict[str, int]
Viewer = shoal.OpenRequest["Watch", Frame]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Watch(_Message):
    """A request to watch the show."""


class Settings(_Message):
    """The settings that viewers may change; all viewers share them."""

    clients: Annotated[int, Field(ge=1, le=128)] = 48
    max_batch_size: Annotated[int, Field(ge=1, le=64)] = 24
    wait_ms: Annotated[int, Field(ge=0, le=300)] = 40

    def batching(self) -> dict[str, Any]:
        """Returns the settings that are options of a backend, under their names there."""
        return {
            "max_batch_size": self.max_batch_size,
            "batch_wait_timeout_s": self.wait_ms / 1000,
        }


class Kill(_Message):
    """A request to kill the worker of the batched endpoint."""


class Leave(_Message):
    """A request for a reader to leave its text."""

    reader: int


class Beginning(_Message):
    """The beginning of a visitor's text, to be continued in the batch."""

    text: Annotated[str, Field(max_length=80)]


class Show:
    """The handler that sends frames to viewers, and the handlers of their actions.

    Attributes:
        settings: The current settings.
        answered: The total number of answered calls of simulated clients.
    """

    def __init__(self) -> None:
        self.settings = Settings()
        self.answered = 0
        self._stage: _Stage | None = None

    async def __call__(self, batch: shoal.OpenBatch[Watch, Frame]) -> None:
        """Sends frames to all viewers."""
        model = await to_thread.run_sync(CharTransformer.load)
        questions = await to_thread.run_sync(_questions)
        while joined := await batch.join():
            if batch.draining.is_set():
                _finish_all(batch)
                continue
            async with anyio.create_task_group() as tasks:
                client = _client()
                crowds = {
                    name: Crowd(await client.get_handle(name), questions)
                    for name in (BATCHED, SINGLE)
                }
                self._stage = _Stage(client, tasks, crowds)
                tasks.start_soon(self._stage.lanes.run, model)
                try:
                    await self._play(batch, joined, self._stage)
                finally:
                    self.answered += sum(each.figures()["answered"] for each in crowds.values())
                    self._stage = None
                tasks.cancel_scope.cancel()

    async def change(self, changes: list[Settings]) -> list[Settings]:
        """Changes the settings; of several concurrent changes, the last one wins."""
        await _client().update_backend_config(BATCHED, changes[-1].batching())
        self.settings = changes[-1]
        return [self.settings] * len(changes)

    async def kill(self, asked: list[Kill]) -> list[int]:
        """Kills the worker of the batched endpoint, once per batch; returns its process id."""
        worker = self._playing().crowds[BATCHED].take_worker()
        if worker is not None:
            with suppress(ProcessLookupError):  # it has died already
                os.kill(worker, signal.SIGKILL)
                return [worker] * len(asked)
        raise HTTPException(409, "The worker is not up.")

    async def leave(self, leaving: list[Leave]) -> list[bool]:
        """Makes readers leave their texts; returns for each whether it was still reading."""
        lanes = self._playing().lanes
        return [lanes.leave(each.reader) for each in leaving]

    async def write(self, beginnings: list[Beginning]) -> list[int | HTTPException]:
        """Starts visitors' texts in the batch; returns the number of each reader."""
        lanes = self._playing().lanes
        numbers = [lanes.visit(each.text) for each in beginnings]
        return [
            HTTPException(409, "Too many texts of visitors are being written; try again later.")
            if number is None
            else number
            for number in numbers
        ]

    def _playing(self) -> "_Stage":
        if self._stage is None:
            raise HTTPException(409, "Nobody watches the show, so it is not running.")
        return self._stage

    async def _play(
        self, batch: shoal.OpenBatch[Watch, Frame], joined: list[Viewer], stage: "_Stage"
    ) -> None:
        """Sends frames until there are no viewers."""
        cursors: Cursors = {}
        while joined or batch.active:
            if batch.draining.is_set():  # the server is shutting down
                _finish_all(batch)
                return
            stage.crowd(self.settings.clients)
            about = {"settings": self.settings.model_dump(), **await stage.now()}
            for viewers, since in (
                ([each for each in batch.active if each not in joined], cursors),
                (joined, {}),  # new viewers get everything that is kept
            ):
                if viewers:
                    frame = {**about, **stage.news(since)}
                    for viewer in viewers:
                        await viewer.send(frame)
            cursors = stage.cursors()
            await anyio.sleep(FRAME_S)
            joined = batch.join_nowait()


class _Stage:
    """Everything that runs while there are viewers."""

    def __init__(self, client: shoal.Client, tasks: TaskGroup, crowds: dict[str, Crowd]) -> None:
        self.crowds = crowds
        self._began_at = anyio.current_time()
        self.lanes = Lanes(tasks)
        self._client = client
        self._tasks = tasks

    def crowd(self, clients: int) -> None:
        """Sets the number of clients of each endpoint."""
        for crowd in self.crowds.values():
            crowd.resize(self._tasks, clients)

    async def now(self) -> Frame:
        """Returns the current state."""
        backends = (await self._client.status()).backends
        return {
            "now": anyio.current_time(),
            "began_at": self._began_at,
            "slow_motion": SLOW_MOTION,
            "sides": {
                name: {
                    "figures": crowd.figures(),
                    "queued": backends[name].queued,
                    "running": backends[name].ongoing,
                    "state": backends[name].state,
                    "deaths": backends[name].deaths,
                    "worker": crowd.worker,
                }
                for name, crowd in self.crowds.items()
            },
        }

    def news(self, since: Cursors) -> Frame:
        """Returns the events since the given cursors, or all kept events without cursors."""
        return {
            "batches": {
                name: crowd.batches.since(since.get(name, 0)) for name, crowd in self.crowds.items()
            },
            "readers": self.lanes.events.since(since.get("readers", 0)),
            "steps": self.lanes.steps.since(since.get("steps", 0)),
            "step": self.lanes.steps.end,
        }

    def cursors(self) -> Cursors:
        """Returns the current cursors, for `news`."""
        return {
            **{name: crowd.batches.end for name, crowd in self.crowds.items()},
            "readers": self.lanes.events.end,
            "steps": self.lanes.steps.end,
        }


def _finish_all(batch: shoal.OpenBatch[Watch, Frame]) -> None:
    for viewer in batch.active:
        viewer.finish()


def _client() -> shoal.Client:
    """Returns a client of the controller that serves the show."""
    return cast("shoal.Client", shoal.connect())


def _questions() -> list[Question]:
    from sklearn.datasets import load_digits  # it takes a second to import

    images, digits = load_digits(return_X_y=True)
    return [
        Question(image.reshape(8, 8).tolist(), int(digit))
        for image, digit in zip(images, digits, strict=True)
    ]
