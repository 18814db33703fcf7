"""From an application's file to the application that it declares."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from shoal.http.app.app import App
from shoal.http.app.declarations import DeclaredEndpoint, DeclaredShadow
from shoal.http.requests.settings import HttpSettings
from shoal.replicas.code.definition import Definition
from shoal.serving.config.config import BackendConfig

if TYPE_CHECKING:
    from shoal.serving.app_file.file import AppFile


class FileApp(App):
    """An application that is declared by a file.

    Its code is imported when it is opened, where its replicas run.

    Args:
        file: What the file declares.

    Attributes:
        file: The same.
    """

    def __init__(self, file: AppFile) -> None:
        settings = {one.name for one in fields(HttpSettings)} & file.server.keys()
        super().__init__(**{name: file.server[name] for name in settings})
        self.file = file
        for tag, one in file.backends.items():
            code = Definition(one.import_path, one.init_args, tuple(one.init_kwargs.items()))
            self._declared.add_backend(tag, code, BackendConfig.of(one.config))
        for name, endpoint in file.endpoints.items():
            self._declared.add_endpoint(
                DeclaredEndpoint(
                    name=name,
                    path=endpoint.route,
                    methods=endpoint.methods,
                    traffic=endpoint.traffic,
                    shadows=[
                        DeclaredShadow(
                            backend=tag, proportion=shadow.proportion, compare=shadow.compare
                        )
                        for tag, shadow in endpoint.shadows.items()
                    ],
                )
            )
