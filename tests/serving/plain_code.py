"""Code of backends, to be named by import paths."""

import shoal
from shoal.replicas.accepting import accept_batch


async def double(number):
    return number * 2


@accept_batch
async def steps(counts):
    for step in range(max(counts)):
        yield [step if step < count else shoal.END for count in counts]


class Scaled:
    def __init__(self, factor, *, offset=0):
        self.factor = factor
        self.offset = offset

    def reconfigure(self, user_config):
        self.factor = user_config["factor"]

    async def __call__(self, number):
        return number * self.factor + self.offset

    async def fail(self, word):
        raise LookupError(f"no such word: {word}")


class Broken:
    def __init__(self):
        raise OSError("no weights in the file")

    def __call__(self, item):
        return item
