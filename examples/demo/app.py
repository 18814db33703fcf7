"""The application of the demo: two models, simulated clients, and a page.

python -m examples.demo
shoal serve examples.demo.app:app
"""

import shoal
from examples.demo.page import Page
from examples.demo.show import BATCHED, SINGLE, VIEWERS, Settings, Show
from examples.demo.worker import SlowDigits
from examples.language_model.served import add_language_model, protocol

show = Show()

# OpenAI's clients may call the language model as well.
app = shoal.App(protocols=[protocol])

# A killed process is replaced, and the new one repeats the batch of the killed one.
app.endpoint("/digits", name=BATCHED, placement="process", retries=1, **Settings().batching())(
    SlowDigits
)

# The same model with one image at a time, the baseline of the comparison.
app.backend(SINGLE, SlowDigits, placement="process", retries=1, max_batch_size=1)
app.route(SINGLE, backend=SINGLE)

# A prompt joins the running batch between two characters, so that no caller waits for the end of
# another text while the batch has room.
add_language_model(app)

# Viewers join and leave between two frames. A viewer that does not read is soon cut off, because
# the others wait for it. Viewers beyond the limit are refused immediately.
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
