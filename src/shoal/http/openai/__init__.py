"""OpenAI's HTTP API: the endpoints of an application as its models.

`OpenAI` is the protocol. `models` finds the endpoint of a request, and `items` makes the items that
its handler takes. `texts` has the paths whose results are texts. `inputs` has those of which each
input is a call: embeddings, classes, and the scores of pairs.
"""

from shoal.http.openai.protocol import OpenAI

__all__ = ["OpenAI"]
