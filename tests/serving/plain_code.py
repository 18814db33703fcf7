"""Code of backends, to be named by import paths."""

from dataclasses import asdict, dataclass, replace

from starlette.exceptions import HTTPException
from starlette.requests import Request

import shoal
from shoal.replicas.code.definition import accept_batch
from shoal.replicas.local.task import TaskReplica


async def double(number):
    return number * 2


@accept_batch
async def steps(counts):
    for step in range(max(counts)):
        yield [step if step < count else shoal.END for count in counts]


def refuse(item):
    raise HTTPException(status_code=418, detail="tea", headers={"X-Tea": "green"})


def greet(request):
    return "hello " + request.query_params.get("name", "nobody")


async def asked(request: Request):
    body = (await request.body()).decode()
    return [request.method, dict(request.query_params), request.headers.get("x-mine"), body]


async def told(item):
    return dict(shoal.current_batch().requests[0].metadata)


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


@dataclass(frozen=True)
class FactorOptions:
    factor: int


class FactorReplica(TaskReplica):
    """A placement of its own, which tells the code its options."""

    Options = FactorOptions

    def __init__(self, blueprint):
        options = FactorOptions(**blueprint.placement_options)
        super().__init__(replace(blueprint, user_config=asdict(options)))


class Broken:
    def __init__(self):
        raise OSError("no weights in the file")

    def __call__(self, item):
        return item
