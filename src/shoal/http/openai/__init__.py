"""OpenAI's HTTP API: the endpoints of an application as its models.

`OpenAI` is the protocol. `text_request` and `embeddings` read the bodies, `items` makes the item
that a model takes, `text` finds where a text ends, `messages` has the forms of the answers, and
`completions` makes the calls.
"""

from shoal.http.openai.protocol import OpenAI

__all__ = ["OpenAI"]
