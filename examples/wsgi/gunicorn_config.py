"""Opens the batched functions in each worker of gunicorn, after the fork.

gunicorn -c examples/wsgi/gunicorn_config.py --preload examples.wsgi.flask_site:app
gunicorn -c examples/wsgi/gunicorn_config.py --preload examples.wsgi.django_site:app
"""

from contextlib import ExitStack

import shoal
from examples.wsgi.model import embed

worker_class = "gthread"  # one request at a time, as in a "sync" worker, makes no batch
workers = 2
threads = 64  # at least max_batch_size

_opened = ExitStack()


def post_worker_init(_worker: object) -> None:
    _opened.enter_context(shoal.blocking(embed))


def worker_exit(_server: object, _worker: object) -> None:
    _opened.close()
