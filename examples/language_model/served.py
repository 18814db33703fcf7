"""The language model over HTTP, for OpenAI's clients too.

shoal serve examples.language_model.served:app
"""

import shoal
from examples.language_model.continuous import TEXTS_AT_ONCE, ContinuousTextGenerator
from shoal.http.openai import OpenAI

# The model continues a text, so the prompt of a chat is its last message. A token is a character.
protocol = OpenAI(
    models={"language-model": "generate"},
    chat_template=lambda messages: str(messages[-1]["content"]),
    count_tokens=len,
)


def add_language_model(app: shoal.App) -> None:
    """Adds the model, whose prompts join the running batch between two characters."""
    app.endpoint(
        "/generate",
        name="generate",
        fill="continuous",
        streams=True,
        max_batch_size=TEXTS_AT_ONCE,
    )(ContinuousTextGenerator)


app = shoal.App(protocols=[protocol])
add_language_model(app)
