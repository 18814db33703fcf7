"""The show: a crowd and a batch of texts that run while somebody watches, and how they look.

It is itself the handler of a continuous batch. Each viewer is a request that stays: it joins
between two frames, is sent every frame, and leaves when its page is closed. When none is left the
crowd goes home, and the next viewer calls it back.
"""

import os
import signal
from contextlib import suppress
from typing import Annotated, Any, cast

import anyio
from anyio import to_thread
from anyio.abc import TaskGroup
from pydantic import BaseModel, ConfigDict, Field
from sklearn.datasets import load_digits
from starlette.exceptions import HTTPException

import shoal
from examples.demo.crowd import Crowd, Question
from examples.demo.lanes import Lanes
from examples.demo.worker import SLOW_MOTION
from examples.language_model.model import CharTransformer

BATCHED, SINGLE = "digits", "one-by-one"
"""The endpoint that is asked in batches, and the one that is given one image at a time."""

VIEWERS = 8
"""The most viewers at once; more are refused."""

FRAME_S = 0.125

Frame = dict[str, Any]
Cursors = dict[str, int]
Viewer = shoal.OpenRequest["Watch", Frame]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Watch(_Message):
    """Somebody wants to see the show."""


class Settings(_Message):
    """What viewers may set, one for all of them."""

    clients: Annotated[int, Field(ge=1, le=128)] = 48
    max_batch_size: Annotated[int, Field(ge=1, le=64)] = 24
    wait_ms: Annotated[int, Field(ge=0, le=300)] = 40

    def batching(self) -> dict[str, Any]:
        """Return those of them that a backend knows, by its names."""
        return {
            "max_batch_size": self.max_batch_size,
            "batch_wait_timeout_s": self.wait_ms / 1000,
        }


class Kill(_Message):
    """The worker that is given batches is to be killed."""


class Leave(_Message):
    """A reader is to leave its text."""

    reader: int


class Beginning(_Message):
    """A visitor's text is to be written on, in a place of the batch."""

    text: Annotated[str, Field(max_length=80)]


class Show:
    """The handler that viewers are sent frames by, and what they may do to the show.

    Attributes:
        settings: The settings in force.
        answered: How many calls of simulated clients were answered in all.
    """

    def __init__(self) -> None:
        self.settings = Settings()
        self.answered = 0
        self._stage: _Stage | None = None

    async def __call__(self, batch: shoal.OpenBatch[Watch, Frame]) -> None:
        """Send frames to whoever watches."""
        model = await to_thread.run_sync(CharTransformer.load)
        questions = await to_thread.run_sync(_questions)
        while joined := await batch.join():
            if batch.draining.is_set():
                _send_home(batch)
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
        """Change the settings; of several changes at once the last one holds."""
        await _client().update_backend_config(BATCHED, changes[-1].batching())
        self.settings = changes[-1]
        return [self.settings] * len(changes)

    async def kill(self, asked: list[Kill]) -> list[int]:
        """Kill the worker that is given batches, once however many ask; gives its process id."""
        worker = self._playing().crowds[BATCHED].take_worker()
        if worker is not None:
            with suppress(ProcessLookupError):  # it has died a moment ago
                os.kill(worker, signal.SIGKILL)
                return [worker] * len(asked)
        raise HTTPException(409, "The worker is not up.")

    async def leave(self, leaving: list[Leave]) -> list[bool]:
        """Let readers leave their texts; says for each whether it was there."""
        lanes = self._playing().lanes
        return [lanes.leave(each.reader) for each in leaving]

    async def write(self, beginnings: list[Beginning]) -> list[int | HTTPException]:
        """Have visitors' texts written on in the batch; gives the number of each reader."""
        lanes = self._playing().lanes
        numbers = [lanes.visit(each.text) for each in beginnings]
        return [
            HTTPException(409, "Enough visitors' texts are under way.")
            if number is None
            else number
            for number in numbers
        ]

    def _playing(self) -> "_Stage":
        if self._stage is None:
            raise HTTPException(409, "Nobody watches the show, so it does not run.")
        return self._stage

    async def _play(
        self, batch: shoal.OpenBatch[Watch, Frame], joined: list[Viewer], stage: "_Stage"
    ) -> None:
        """Send frames until nobody watches."""
        cursors: Cursors = {}
        while joined or batch.active:
            if batch.draining.is_set():  # the server ends, and the show with it
                _send_home(batch)
                return
            stage.crowd(self.settings.clients)
            about = {"settings": self.settings.model_dump(), **await stage.now()}
            for viewers, since in (
                ([each for each in batch.active if each not in joined], cursors),
                (joined, {}),  # those who have just come are shown what is remembered
            ):
                if viewers:
                    frame = {**about, **stage.news(since)}
                    for viewer in viewers:
                        await viewer.send(frame)
            cursors = stage.cursors()
            await anyio.sleep(FRAME_S)
            joined = batch.join_nowait()


class _Stage:
    """What runs while somebody watches."""

    def __init__(self, client: shoal.Client, tasks: TaskGroup, crowds: dict[str, Crowd]) -> None:
        self.crowds = crowds
        self._began_at = anyio.current_time()
        self.lanes = Lanes(tasks)
        self._client = client
        self._tasks = tasks

    def crowd(self, clients: int) -> None:
        """Give each endpoint so many clients."""
        for crowd in self.crowds.values():
            crowd.resize(self._tasks, clients)

    async def now(self) -> Frame:
        """Return how things are."""
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
        """Return what has happened since a moment; all that is remembered without one."""
        return {
            "batches": {
                name: crowd.batches.since(since.get(name, 0)) for name, crowd in self.crowds.items()
            },
            "readers": self.lanes.events.since(since.get("readers", 0)),
            "steps": self.lanes.steps.since(since.get("steps", 0)),
            "step": self.lanes.steps.end,
        }

    def cursors(self) -> Cursors:
        """Return the present moment, for `news`."""
        return {
            **{name: crowd.batches.end for name, crowd in self.crowds.items()},
            "readers": self.lanes.events.end,
            "steps": self.lanes.steps.end,
        }


def _send_home(batch: shoal.OpenBatch[Watch, Frame]) -> None:
    for viewer in batch.active:
        viewer.finish()


def _client() -> shoal.Client:
    """Return a client of the controller that the show is served by, with all its verbs."""
    return cast("shoal.Client", shoal.connect())


def _questions() -> list[Question]:
    images, digits = load_digits(return_X_y=True)
    return [
        Question(image.reshape(8, 8).tolist(), int(digit))
        for image, digit in zip(images, digits, strict=True)
    ]
