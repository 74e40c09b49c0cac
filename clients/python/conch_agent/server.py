"""The HTTP side of a worker: one thread for each turn that runs. Behind a proxy, let the proxy speak TLS."""

import json
import logging
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .signature import InvalidSignature, verify
from .turn import Agent

BODY_MAX_BYTES = 32 * 1024 * 1024
"""Most bytes of a request: the journal of a turn has at most 16 MiB."""

_log = logging.getLogger("conch_agent")


def serve(agent: Agent, host: str = "127.0.0.1", port: int = 9000) -> ThreadingHTTPServer:
    """A server that is bound, for `serve_forever()`; `port` 0 takes a free one, which `server_port` names."""
    return _Server((host, port), type("Handler", (_Handler,), {"agent": agent}))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


# A number with more digits is none that is meant.
DIGITS_MAX = 15


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Seconds that one read may take: whoever sends nothing holds no thread for ever.
    timeout = 60
    agent: Agent

    def do_POST(self) -> None:
        body = self._body()
        if body is None:
            return
        try:
            verify(self.agent.secret, self.headers, body)
        except InvalidSignature as error:
            self._refuse(401, str(error))
            return
        try:
            request = json.loads(body)
            known = isinstance(request, dict) and request.keys() >= {"conversation", "turn", "epoch", "attempt", "messages"}
        except ValueError:
            known = False
        if not known:
            self._refuse(400, "body: is not a turn")
            return
        self._run(request)

    def _body(self) -> bytes | None:
        length = self.headers.get("content-length", "")
        if not length.isascii() or not length.isdigit() or len(length) > DIGITS_MAX:
            self._refuse(411, "content-length: is needed")
        elif int(length) > BODY_MAX_BYTES:
            self._refuse(413, f"body: is {length} bytes long; at most {BODY_MAX_BYTES} are allowed")
        else:
            return self.rfile.read(int(length))
        return None

    def _run(self, request: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/x-ndjson")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            self.agent.run(request, self._line, time.sleep)
        except (BrokenPipeError, ConnectionResetError):
            # The owner hung up: the turn was cancelled, or another owner runs it.
            self.close_connection = True
            return
        except Exception:
            # Without `done` and without the stream's end, the owner does not take this for an answer.
            _log.exception("turn %s of %s failed", request["turn"], request["conversation"])
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")

    def _line(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _refuse(self, status: int, detail: str) -> None:
        # The body may not have been read.
        self.close_connection = True
        data = json.dumps({"detail": detail}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        _log.debug(format, *args)
