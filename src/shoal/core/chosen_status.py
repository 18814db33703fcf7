"""The HTTP status that code chooses for a request, by an ``HTTPException`` of Starlette.

jinja2's ``TemplateError`` chooses 400. A template raises that itself, and subclasses for mistakes:
so the chat templates of Hugging Face's models refuse messages.
"""

from __future__ import annotations

import sys
from typing import Any

from shoal.errors import ItemTooLarge


def chosen_status(error: BaseException) -> int | None:
    """Returns the status (300 to 599) that an error chooses; None if it chooses none."""
    if is_of_template(error):
        return 400
    starlette = sys.modules.get("starlette.exceptions")  # else nobody has raised one
    if starlette is None or not isinstance(error, starlette.HTTPException):
        return None
    chosen: Any = error
    try:
        status: object = chosen.status_code
    except Exception:  # of a subclass, which need not have it
        return None
    return int(status) if isinstance(status, int) and 300 <= status <= 599 else None


def is_of_template(error: BaseException) -> bool:
    """Returns whether a template has raised this error on purpose."""
    jinja2 = sys.modules.get("jinja2.exceptions")
    return jinja2 is not None and type(error) is jinja2.TemplateError


def is_declined(error: BaseException) -> bool:
    """Returns whether an error is a response below 500 that the code chose, and no failure."""
    status = chosen_status(error)
    return status < 500 if status is not None else isinstance(error, ItemTooLarge)
