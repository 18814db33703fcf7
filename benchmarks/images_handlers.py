"""The models of images.py: each takes a list of images, as bytes, and returns their classes.

`python -m benchmarks.images_handlers` runs one without a server.
"""

from __future__ import annotations

import json
import os
import time
from importlib import import_module
from typing import Final

SIZE: Final = 224
IMAGE_BYTES: Final = 3 * SIZE * SIZE
LARGEST: Final = 32
SECONDS: Final = 3.0

WHICH: Final = "SHOAL_BENCHMARK_IMAGES"
"""The environment variable that names the model, for servers that are started."""
FAKE: Final = "fake"
RESNET: Final = "resnet50"


class Fake:
    """A model on an accelerator: 2 ms for a batch, and 0.2 ms for each image."""

    def __call__(self, images: list[bytes]) -> list[int]:
        """Returns the last byte of each image."""
        time.sleep(0.002 + 0.0002 * len(images))
        return [image[-1] for image in images]


class ResNet:
    """ResNet-50 with random weights on a GPU, as `docs/how-to/serve-a-gpu-model.md` serves it."""

    def __init__(self) -> None:
        self._torch = import_module("torch")
        self._model = import_module("torchvision.models").resnet50().eval().cuda()
        for size in (1, LARGEST):
            self([bytes(IMAGE_BYTES)] * size)

    def __call__(self, images: list[bytes]) -> list[int]:
        """Returns the class of each image of 3 x 224 x 224 bytes."""
        torch = self._torch
        with torch.inference_mode():
            batch = torch.stack([torch.frombuffer(bytearray(i), dtype=torch.uint8) for i in images])
            found = self._model(batch.view(-1, 3, SIZE, SIZE).cuda() / 255).argmax(1).tolist()
            return list(found)


class Classifier:
    """The model that the environment names."""

    def __init__(self) -> None:
        self._model = ResNet() if os.environ.get(WHICH) == RESNET else Fake()

    def __call__(self, images: list[bytes]) -> list[int]:
        """Returns the class of each image."""
        return self._model(images)


def images_a_second(classifier: Classifier, size: int) -> float:
    """Returns how many images/s a model does by itself with this batch size."""
    images = [bytes(IMAGE_BYTES)] * size
    began_at, done = time.perf_counter(), 0
    while time.perf_counter() < began_at + SECONDS:
        classifier(images)
        done += size
    return done / (time.perf_counter() - began_at)


def main() -> None:
    """Prints how many images a second the model does alone, by the size of its batches."""
    classifier = Classifier()
    print(json.dumps({size: images_a_second(classifier, size) for size in (1, LARGEST)}))


if __name__ == "__main__":
    main()
