"""A server of a folder over HTTP that drops, truncates, corrupts, delays and refuses what it is told to."""

import threading
import time
from collections import defaultdict, deque
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAULTS = ("drop", "truncate", "corrupt", "delay", "503", "404", "hang", "drip", "endless")


class Server:
    """What is served, the faults that wait for each file (one for each request), and what was asked for."""

    def __init__(self, folder):
        self.folder, self.asked = folder, list[str]()
        self.faults: defaultdict[str, deque[str]] = defaultdict(deque)
        self.ended = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *_):
                """Say nothing on the terminal."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, request):
        name = request.path.lstrip("/")
        self.asked.append(name)
        fault = self.faults[name].popleft() if self.faults[name] else None
        path = self.folder / name
        if fault == "hang":
            self.ended.wait()
        if fault in ("drop", "hang"):
            return
        if fault == "delay":
            time.sleep(0.02)
        if fault in ("503", "404") or not path.is_file():
            request.send_error(int(fault or 404))
            return
        content = bytearray(path.read_bytes())
        request.send_response(200)
        if fault == "endless":  # without a length
            request.end_headers()
            with suppress(ConnectionError):
                while not self.ended.is_set():
                    request.wfile.write(bytes(1 << 16))
            return
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        if fault == "corrupt":
            content[len(content) // 3] ^= 1
        while fault == "drip" and content and not self.ended.wait(0.01):
            request.wfile.write(bytes([content.pop(0)]))
        request.wfile.write(content[: len(content) // 2] if fault == "truncate" else content)


@contextmanager
def serving(folder):
    server = Server(folder)
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.http.shutdown()
        server.http.server_close()
        thread.join()
