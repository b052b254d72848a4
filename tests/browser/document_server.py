"""A double of the dashboard's server: the files of the page as the server sends them, and documents that a test makes."""

import http.server
import json
import pathlib
import threading
import urllib.parse

PAGE = pathlib.Path(__file__).resolve().parents[2] / "cli/dashboard/page"
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)


class DocumentServer:
    """Serves `views`, by name a function of the parameters. A context manager."""

    def __init__(self, views):
        self.views = views
        self.bytes_sent = 0  # of documents and patches
        self.asked = []  # the views of the streams that began
        self.away = False  # then streams end and no other begins
        self._changed = threading.Condition()
        self._closing = False
        self._events = []
        double = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                address = urllib.parse.urlsplit(self.path)
                query = dict(urllib.parse.parse_qsl(address.query, keep_blank_values=True))
                if address.path == "/api/events":
                    double._stream(self, query)
                    return
                file = PAGE / address.path.lstrip("/")
                self._send(200, TYPES[file.suffix], file.read_bytes()) if file.is_file() else self._send(
                    200, TYPES[".html"], (PAGE / "index.html").read_bytes()
                )

            def _send(self, status, kind, body):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Content-Security-Policy", POLICY)
                self.end_headers()
                self.wfile.write(body)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        return self

    def __exit__(self, *_):
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def go_away(self, away=True):
        with self._changed:
            self.away = away
            self._changed.notify_all()

    def send(self, operations):
        """Sends this patch to every stream."""
        with self._changed:
            self._events.append(f"event: patch\ndata: {json.dumps(operations)}\n\n")
            self._changed.notify_all()

    def _stream(self, handler, query):
        handler.close_connection = True
        self.asked.append(query["view"])
        if self.away:
            handler._send(502, "application/json", b'{"error": {"code": "UNAVAILABLE", "message": "the double is away"}}')
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        try:
            self._write(handler, f"event: document\ndata: {json.dumps(self.views[query['view']](query))}\n\n")
            sent = len(self._events)
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closing or self.away or len(self._events) > sent)
                    if self._closing or self.away:
                        return
                    event = self._events[sent]
                sent += 1
                self._write(handler, event)
        except OSError:
            pass  # the page went

    def _write(self, handler, text):
        handler.wfile.write(text.encode())
        handler.wfile.flush()
        self.bytes_sent += len(text.encode())
