"""Items with files and marks, in a module that server and replica both import."""

from typing import Annotated

from pydantic import BaseModel

from shoal.http import Header, Path, Upload


class Photo(BaseModel):
    image: Upload
    x: Annotated[int, Path()]
    tenant: Annotated[str, Header()]
