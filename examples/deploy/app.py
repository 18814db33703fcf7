"""The application that the files of this folder deploy; yours takes its place."""

import shoal

app = shoal.App()


@app.endpoint(
    "/embed",
    max_batch_size=64,
    max_queued_requests=512,
    request_timeout_s=2.0,
    handler_timeout_s=10.0,
)
def embed(texts: list[str]) -> list[int]:
    """Stands for a model: takes a list, and returns one of the same length."""
    return [len(text) for text in texts]
