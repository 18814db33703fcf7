"""Two models and a page, as one application: `shoal serve examples.demo.app:app`."""

import shoal
from examples.demo.page import Page
from examples.digits.model import Digits
from examples.language_model.continuous import TEXTS_AT_ONCE, ContinuousTextGenerator

app = shoal.App()

# A full batch of images takes hardly longer than one, so the wait is worth its two milliseconds.
app.endpoint("/digits", max_batch_size=64, batch_wait_timeout_s=0.002)(Digits)

# A prompt joins those that are being written on between two of their characters, so nobody waits
# for the end of another's text while there is room.
app.endpoint("/generate", fill="continuous", streams=True, max_batch_size=TEXTS_AT_ONCE)(
    ContinuousTextGenerator
)

app.mount("/", Page())
