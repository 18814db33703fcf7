"""model.py under LitServe; run as a module."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

import litserve as ls  # type: ignore[import-not-found, unused-ignore]

from benchmarks.http_peers import model

if TYPE_CHECKING:
    from collections.abc import Iterator


class Predict(ls.LitAPI):  # type: ignore[misc, unused-ignore]
    """The model."""

    def setup(self, device: str) -> None:
        """Loads nothing."""

    def decode_request(self, request: dict[str, int]) -> int:
        """Returns the item of a request."""
        return request["value"]

    def batch(self, inputs: list[int]) -> list[int]:
        """Returns the items as they are, without numpy."""
        return inputs

    def predict(self, values: list[int]) -> list[int]:
        """Returns a result for each item."""
        return model.predict(values)

    def unbatch(self, output: list[int]) -> list[int]:
        """Returns the results as they are."""
        return output

    def encode_response(self, output: int) -> dict[str, int]:
        """Returns the response to a request."""
        return {"value": output}


class Generate(Predict):
    """The model, with streams."""

    def predict(self, values: list[int]) -> Iterator[list[str]]:  # type: ignore[override]
        """Yields the tokens of a step."""
        yield from model.generate(values)

    def unbatch(self, output: Iterator[list[str]]) -> Iterator[list[str]]:  # type: ignore[override]
        """Yields the tokens of a step."""
        yield from output

    def encode_response(self, output: Iterator[list[str]]) -> Iterator[list[str]]:  # type: ignore[override]
        """Yields the events of a step."""
        for tokens in output:
            yield [f"data: {token}\n\n" for token in tokens]


OPTIONS: Final[Any] = {"max_batch_size": model.SIZE, "batch_timeout": model.WAIT_S}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    apis = [
        Predict(api_path="/predict", **OPTIONS),
        Generate(api_path="/generate", stream=True, **OPTIONS),
    ]
    server = ls.LitServer(apis, accelerator="cpu", workers_per_device=1)
    server.run(port=parser.parse_args().port, host="127.0.0.1", generate_client_file=False)
