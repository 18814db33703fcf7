"""The Flask and Django examples, with the sizes of their batches at ``/sizes``."""

import json
import time
from types import SimpleNamespace

import shoal
from examples.wsgi import django_site, flask_site, model

SIZES = []


def sleep(_):
    SIZES.append(shoal.current_batch().size)
    if len(SIZES) == 1:
        time.sleep(0.3)  # so that others queue


model.time = SimpleNamespace(sleep=sleep)


def counted(app):
    def call(environ, start_response):
        if environ["PATH_INFO"] != "/sizes":
            return app(environ, start_response)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(SIZES).encode()]

    return call


of_flask, of_django = counted(flask_site.app), counted(django_site.app)
