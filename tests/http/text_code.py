"""Models of OpenAI's protocol, of batches and of one request, that processes import."""

import shoal


def whole(prompts: list[str]) -> list[str]:
    return [prompt.upper() for prompt in prompts]


def pieces(prompts: list[str]):
    """Streams the words of each prompt, in steps that they share."""
    parts = [prompt.split(" ") for prompt in prompts]
    for nth in range(max(map(len, parts))):
        yield [part[nth] + " " if nth < len(part) else shoal.END for part in parts]


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


async def async_fails_of_one(prompt: str) -> str:
    raise RuntimeError("sesame")


async def async_breaks_of_one(prompt: str):
    yield "one "
    raise RuntimeError("sesame")
