"""A small Jupyter server on loopback, in this process."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "0123456789abcdef"


def model(name: str, kernel: str, state: str = "idle", **changes: Any) -> dict[str, Any]:
    """A session as a Jupyter server describes it, of a kernel that has been idle for two hours."""
    long_ago = datetime.fromtimestamp(time.time() - 7200, timezone.utc)
    return {
        "id": f"session-{kernel}",
        "path": f"sub/{name}",
        "name": name,
        "kernel": {"id": kernel, "last_activity": long_ago.isoformat(), "execution_state": state},
        **changes,
    }


class FakeServer:
    """A Jupyter server of two requests, in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sessions: Any = []
        self.status, self.delete_status = 200, 204
        self.requests: list[tuple[str, str, str | None]] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(fake.status, json.dumps(fake.sessions).encode())

            def do_DELETE(self) -> None:
                self._answer(fake.delete_status, b"")

            def _answer(self, status: int, content: bytes) -> None:
                fake.requests.append((self.command, self.path, self.headers["Authorization"]))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()
        self.file = folder / f"jpserver-{os.getpid()}.json"
        self.describe()

    def describe(self, **changes: Any) -> None:
        """Write the file by which the server is found."""
        port = self.http.server_address[1]
        fields = {
            "pid": os.getpid(),
            "port": port,
            "token": TOKEN,
            "base_url": "/user/ann/",
            "url": f"http://localhost:{port}/user/ann/",
            "hostname": "localhost",
            "secure": False,
            "root_dir": "/srv/ann",
        }
        self.file.write_text(json.dumps(fields | changes))
        self.file.chmod(0o600)

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()
