"""The streaming model of http_handlers.py behind LitServe's OpenAI endpoint; run as a module."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any, Final

import litserve as ls  # type: ignore[import-not-found, unused-ignore]

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BATCH_SIZE: Final = 64
BATCH_TIMEOUT_S: Final = 0.002
TOKENS: Final = 32


class Generate(ls.LitAPI):  # type: ignore[misc, unused-ignore]
    """2 ms per step, with a token for each prompt."""

    def setup(self, device: str) -> None:
        """Loads nothing."""

    def predict(self, prompts: list[Any]) -> Iterator[list[str]]:
        """Yields the tokens of a step."""
        for nth in range(TOKENS):
            time.sleep(0.002)
            yield [f"token {nth}"] * len(prompts)

    def encode_response(self, steps: Iterator[list[str]]) -> Iterator[list[dict[str, str]]]:
        """Yields the messages of a step."""
        for tokens in steps:
            yield [{"role": "assistant", "content": token} for token in tokens]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    api = Generate(
        max_batch_size=MAX_BATCH_SIZE, batch_timeout=BATCH_TIMEOUT_S, spec=ls.OpenAISpec()
    )
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(port=parser.parse_args().port, host="127.0.0.1", generate_client_file=False)
