"""`App` in Litestar, which takes a while to import."""

from litestar import Litestar, asgi, get
from litestar.types import Receive, Scope, Send


def site_with(models):
    @asgi("/ml", is_mount=True, copy_scope=True)
    async def ml(scope: Scope, receive: Receive, send: Send) -> None:
        # Litestar removes the prefix, and adds a slash.
        path = "/ml" + scope["path"].rstrip("/")
        await models({**scope, "root_path": "/ml", "path": path}, receive, send)

    @get("/hello")
    async def hello() -> str:
        return "hello"

    return Litestar([ml, hello], lifespan=[models.lifespan], logging_config=None)
