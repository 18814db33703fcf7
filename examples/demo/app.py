"""Two models and a page, as one application: `shoal serve examples.demo.app:app`."""

import shoal
from examples.demo.page import Page
from examples.digits.model import Digits
from examples.language_model.generate import TextGenerator

app = shoal.App()

# A full batch of images takes hardly longer than one, so the wait is worth its two milliseconds.
app.endpoint("/digits", max_batch_size=64, batch_wait_timeout_s=0.002)(Digits)

# Prompts that arrive within a twinkling of each other are written on together. Two batches may be
# under way, so that who comes later need not wait for the longest text of the earlier ones.
app.endpoint("/generate", max_batch_size=16, batch_wait_timeout_s=0.02, max_concurrent_batches=2)(
    TextGenerator
)

app.mount("/", Page())
