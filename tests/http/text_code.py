"""Models of OpenAI's protocol, of batches and of one request, that processes import."""

from __future__ import annotations

import os
import threading

import shoal


def where() -> str:
    """The process and the thread that this runs in."""
    return f"{os.getpid()} {threading.get_ident()}"


def whole(prompts: list[str]) -> list[str]:
    return [prompt.upper() for prompt in prompts]


def pieces(prompts: list[str]):
    """Streams the words of each prompt, in steps that they share."""
    parts = [prompt.split(" ") for prompt in prompts]
    for nth in range(max(map(len, parts))):
        yield [part[nth] + " " if nth < len(part) else shoal.END for part in parts]


def place(prompts: list[str]) -> list[str]:
    return [where() for _ in prompts]


def vector(texts: list[str]) -> list[list[float]]:
    return [[float(len(text)), 0.5] for text in texts]


def fails(prompts: list[str]) -> list[str]:
    raise RuntimeError("sesame")


def breaks(prompts: list[str]):
    yield ["one "] * len(prompts)
    raise RuntimeError("sesame")


def whole_of_one(prompt: str) -> str:
    return prompt.upper()


def pieces_of_one(prompt: str):
    for word in prompt.split(" "):
        yield word + " "


def place_of_one(prompt: str) -> str:
    return where()


def vector_of_one(text: str) -> list[float]:
    return [float(len(text)), 0.5]


def fails_of_one(prompt: str) -> str:
    raise RuntimeError("sesame")


def breaks_of_one(prompt: str):
    yield "one "
    raise RuntimeError("sesame")


async def async_whole_of_one(prompt: str) -> str:
    return prompt.upper()


async def async_pieces_of_one(prompt: str):
    for word in prompt.split(" "):
        yield word + " "


async def async_place_of_one(prompt: str) -> str:
    return where()


async def async_vector_of_one(text: str) -> list[float]:
    return [float(len(text)), 0.5]


async def async_fails_of_one(prompt: str) -> str:
    raise RuntimeError("sesame")


async def async_breaks_of_one(prompt: str):
    yield "one "
    raise RuntimeError("sesame")
