"""OpenAI's HTTP API: the endpoints of an application as its models.

`OpenAI` is the protocol. `text_request` and `embeddings` read the bodies, `models` finds the
endpoint and makes its items, `text` finds where a text ends, `messages` has the forms of the
responses, and `completions` makes the calls.
"""

from shoal.http.openai.protocol import OpenAI

__all__ = ["OpenAI"]
