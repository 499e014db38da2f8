"""A small chat server for tests: answers what it is told, keeps what it was asked."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Stub:
    """What the server does.

    Attributes:
        answer: called with the request's body; a text, a body, or (HTTP status, headers, body).
        requests: bodies received.
        busiest: most requests at once.
        url: for clients.
    """

    answer: Callable[[dict[str, Any]], Any]
    requests: list[dict[str, Any]] = field(default_factory=list)
    busiest: int = 0
    url: str = ""


def completion(text: str | None, finish_reason: str = "stop", **message: Any) -> dict[str, Any]:
    """A chat completion of 100 + 10 tokens."""
    message = {"role": "assistant", "content": text, **message}
    choice = {"index": 0, "finish_reason": finish_reason, "message": message}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    head = {"id": "1", "object": "chat.completion", "created": 0, "model": "stub"}
    return {**head, "choices": [choice], "usage": usage}


def asked_text(body: dict[str, Any]) -> str:
    """The text of a request's last message."""
    content = body["messages"][-1]["content"]
    return content if isinstance(content, str) else content[-1]["text"]


@contextmanager
def serve(answer: Callable[[dict[str, Any]], Any]) -> Iterator[Stub]:
    """Run the server."""
    stub, lock, running = Stub(answer), threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                running[0] += 1
                stub.busiest = max(stub.busiest, running[0])
                stub.requests.append(body)
            reply = stub.answer(body)
            with lock:
                running[0] -= 1
            if isinstance(reply, str):
                reply = completion(reply)
            status, headers, content = (200, {}, reply) if isinstance(reply, dict) else reply
            raw = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    stub.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
