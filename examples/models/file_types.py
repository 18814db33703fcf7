"""Magika, Google's model for types of files: the package ships it as an ONNX file.

pip install magika
shoal serve examples.models.file_types:app
curl localhost:8000/identify -H 'content-type: application/octet-stream' --data-binary @README.md
"""

import json
from pathlib import Path

import magika
import numpy as np
import onnxruntime

import shoal

MODEL = Path(magika.__file__).parent / "models" / "standard_v3_3"
BLOCK, HALF, PADDING = 4096, 1024, 256


def tokens(content: bytes) -> list[int]:
    """The first and the last bytes of a file, without white space around them."""
    first, last = content[:BLOCK].lstrip()[:HALF], content[-BLOCK:].rstrip()[-HALF:]
    blank = [PADDING] * HALF
    return [*first, *blank[len(first) :], *blank[len(last) :], *last]


class FileTypes:
    def __init__(self) -> None:
        config = json.loads((MODEL / "config.min.json").read_text())
        self.labels: list[str] = config["target_labels_space"]
        self.session = onnxruntime.InferenceSession(MODEL / "model.onnx")

    def __call__(self, files: list[bytes]) -> list[str]:
        inputs = np.array([tokens(content) for content in files], np.int32)
        (scores,) = self.session.run(None, {"bytes": inputs})
        return [self.labels[best] for best in np.asarray(scores).argmax(axis=1)]


app = shoal.App()
app.endpoint("/identify", name="identify", max_batch_size=4)(FileTypes)
