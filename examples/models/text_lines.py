"""RapidOCR reads pages: its package ships a model that finds lines, and one that reads them.

pip install rapidocr onnxruntime
shoal serve examples.models.text_lines:app
curl localhost:8000/read -H 'content-type: application/octet-stream' --data-binary @page.png
"""

from typing import Any

import numpy as np
from anyio import CapacityLimiter, to_thread
from rapidocr import RapidOCR

import shoal

Line = np.ndarray[Any, Any]
SETTINGS = {"Global.log_level": "warning", "Rec.rec_batch_num": 64}


def width(line: Line) -> int:
    """Lines of a batch are padded to the widest, so only similar ones share a batch."""
    height, pixels = line.shape[:2]
    return int(-(-pixels * 48 // height // 160))  # in steps of 160 pixels, at 48 pixels of height


class Recognizer:
    """The second model: reads a batch of lines, whichever pages they are from."""

    def __init__(self) -> None:
        self.ocr = RapidOCR(params=SETTINGS)

    def __call__(self, lines: list[Line]) -> list[str]:
        return list(self.ocr.recognize_txt(lines).txts)


class Reader:
    """The first model: finds the lines of one page, and sends each to the second one."""

    def __init__(self, lines: shoal.Handle) -> None:
        self.lines = lines
        self.ocr = RapidOCR(params=SETTINGS)
        self.one_page = CapacityLimiter(1)  # it uses all cores for a page

    def crop(self, page: bytes) -> list[Line]:
        image, scale = self.ocr.preprocess_img(self.ocr.load_img(page))
        crops, _ = self.ocr.detect_and_crop(image, scale)
        return list(crops)

    async def __call__(self, page: bytes) -> list[str]:
        crops = await to_thread.run_sync(self.crop, page, limiter=self.one_page)
        return await self.lines.map(crops)


app = shoal.App()
app.backend("recognizer", Recognizer, max_batch_size=8, bucket_by=width)
app.route("lines", backend="recognizer")
app.endpoint("/read", name="read", max_ongoing_requests=16)(Reader)
