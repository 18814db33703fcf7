"""Two models, a crowd that asks them, and a page, as one application.

python -m examples.demo
shoal serve examples.demo.app:app
"""

import shoal
from examples.demo.page import Page
from examples.demo.show import BATCHED, SINGLE, VIEWERS, Settings, Show
from examples.demo.worker import SlowDigits
from examples.language_model.continuous import TEXTS_AT_ONCE, ContinuousTextGenerator

show = Show()

app = shoal.App()

# Processes can be killed and come back. A batch whose worker was killed is run again by the next.
app.endpoint("/digits", name=BATCHED, placement="process", retries=1, **Settings().batching())(
    SlowDigits
)

# The same model, one image at a time: what batching is measured against.
app.backend(SINGLE, SlowDigits, placement="process", retries=1, max_batch_size=1)
app.route(SINGLE, backend=SINGLE)

# A prompt joins those that are being written on between two of their characters, so nobody waits
# for the end of another's text while there is room.
app.endpoint("/generate", fill="continuous", streams=True, max_batch_size=TEXTS_AT_ONCE)(
    ContinuousTextGenerator
)

# Viewers join and leave between two frames. One that does not read is cut off soon: the others
# wait for it. Those beyond the most at once are refused at once.
app.endpoint(
    "/show",
    name="show",
    fill="continuous",
    streams=True,
    max_batch_size=VIEWERS,
    max_queued_requests=0,
    slow_reader_timeout_s=2,
)(show)
app.endpoint("/show/settings", name="settings")(show.change)
app.endpoint("/show/kill", name="kill")(show.kill)
app.endpoint("/show/leave", name="leave")(show.leave)
app.endpoint("/show/write", name="write")(show.write)

app.mount("/", Page())
