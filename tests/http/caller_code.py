"""Code that tells who calls it, as middleware has found out; processes import it."""

import shoal


def callers() -> list[str]:
    """The name and the scopes of the caller of each request of the batch."""
    found = [request.metadata for request in shoal.current_batch().requests]
    return [f"{one['user'].display_name}: {' '.join(one['auth'].scopes)}" for one in found]


def told(prompts: list[str]) -> list[str]:
    assert len(prompts) == 2
    return callers()


def pieces(prompts: list[str]):
    assert len(prompts) == 2
    told = callers()
    yield [one[:2] for one in told]
    yield [one[2:] for one in told]


def vector(texts: list[str]) -> list[list[float]]:
    """As vectors of the codes of the characters."""
    return [[float(ord(one)) for one in caller] for caller in told(texts)]
