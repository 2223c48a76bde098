"""A local web server that can be told to misbehave."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Site:
    """Files by path, and how the server sends them."""

    files: dict[str, bytes]
    url: str = ""
    ranges: bool = True  # whether Range is understood
    drop_after: int | None = None  # bytes of a body, after which the connection breaks
    drops: int = 1_000_000  # how often it breaks
    extra: bytes = b""  # sent behind the file, without saying so
    say_length: bool = True
    pause: threading.Event | None = None  # a body stops in the middle until this is set
    fail_with: int | None = None
    redirect: str | None = None
    shift: int = 0  # ranges are sent from another place than asked for
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and Range of each request


@contextmanager
def serve(files: dict[str, bytes], **options: Any) -> Iterator[Site]:
    site = Site(files, **options)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.asked.append((self.path, wanted))
            body = site.files.get(self.path)
            if site.fail_with is not None or body is None:
                return self.send_error(site.fail_with or 404)
            if site.redirect:
                self.send_response(302)
                self.send_header("Location", site.redirect)
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.answer(body, wanted)

        def answer(self, body: bytes, wanted: str | None) -> None:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and site.ranges else 0
            if start and start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.send_header("Content-Length", "0")
                return self.end_headers()
            self.send_response(206 if start else 200)
            if start:
                start += site.shift
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            if site.say_length:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            self.send(body[start:] + site.extra)

        def send(self, body: bytes) -> None:
            if site.pause:
                half = len(body) // 2
                self.wfile.write(body[:half])
                self.wfile.flush()
                site.pause.wait(100)
                body = body[half:]
            if site.drop_after is not None and site.drops > 0:
                site.drops -= 1
                self.wfile.write(body[: site.drop_after])
                self.close_connection = True
                return
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients hang up here
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
