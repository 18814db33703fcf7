"""A collector for tests: it takes OTLP over HTTP on a socket, and keeps what it was sent."""

import gzip
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from time_limits import HANG_S


def value_of(attribute):
    return getattr(attribute.value, attribute.value.WhichOneof("value"))


def attributes(of):
    return {one.key: value_of(one) for one in of.attributes}


class Receiver:
    """What was received, and the URL to send it to."""

    def __init__(self):
        self.spans = []
        self.resources = []
        self._changed = threading.Condition()

    def take(self, message):
        with self._changed:
            for of_resource in message.resource_spans:
                self.resources.append(attributes(of_resource.resource))
                for of_scope in of_resource.scope_spans:
                    self.spans += of_scope.spans
            self._changed.notify_all()

    def wait_for(self, there, timeout_s=HANG_S):
        with self._changed:
            assert self._changed.wait_for(there, timeout_s)

    def named(self, name):
        return [span for span in self.spans if span.name == name]


@contextmanager
def receiving():
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.headers["Content-Type"] == "application/x-protobuf"
            assert self.path == "/v1/traces"
            receiver.take(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
