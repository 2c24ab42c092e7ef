"""A server that answers as llama-server or the Python example server have been seen to.

Run as a program of its own: `recorded_servers.py llama --host PATH ...`, with their options, or
`recorded_servers.py -C SETTINGS`. What it is asked is appended to the file that ASKED names; the
first token of a prompt (after the begin token) says how it answers.
"""

import json
import os
import socketserver
import sys
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar, cast

BEGIN = 1
FINE, FAULTY, DYING, ENDLESS, REFUSED, CUT_SHORT, SENSELESS = range(10, 17)

Body = dict[str, object]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    is_embedder = False
    n_looks = 0
    n_evaluated: ClassVar[int] = 0

    def address_string(self) -> str:
        return "peer"  # a socket file has no address

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._answer(200, f"# TYPE\nllamacpp:prompt_tokens_total {Handler.n_evaluated}\n")
        else:
            Handler.n_looks += 1
            self._answer(200 if Handler.n_looks > 2 else 503, "{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with Path(os.environ["ASKED"]).open("a") as asked:
            asked.write(json.dumps([self.path, body]) + "\n")
        match self.path:
            case "/tokenize":
                begin = [BEGIN] if body["add_special"] else []
                self._answer(200, json.dumps({"tokens": [*begin, *body["content"].encode()]}))
            case "/detokenize":
                self._answer(200, json.dumps({"content": bytes(body["tokens"]).decode()}))
            case "/completion":
                prompt = body["prompt"]
                self._complete(prompt[1] if isinstance(prompt, list) else FINE)
            case "/v1/completions":
                Handler.n_evaluated += 7
                self._complete_as_openai(body)
            case _:
                self._answer(200 if self.is_embedder else 501, "[]")

    def _complete(self, kind: int) -> None:
        if kind == REFUSED:
            self._answer(400, '{"error": {"message": "too long"}}')
            return
        self._begin()
        self._event({"content": "a", "tokens": [97], "tokens_predicted": 1})
        self._chunk(b":\n\n")  # a ping
        match kind:
            case _ if kind == FAULTY:
                self._event({"error": {"message": "Context size has been exceeded."}})
            case _ if kind == DYING:
                os.write(2, b"out of tokens\n")
                os._exit(3)
            case _ if kind == ENDLESS:
                self._until_they_leave()
            case _ if kind == SENSELESS:
                self._chunk(b"data: {{\n\n")
            case _ if kind == FINE:
                self._event({"content": "é", "tokens": [169], "tokens_predicted": 3})
                timings = {"prompt_n": 2, "cache_n": 5}
                end: Body = {"stop": True, "stop_type": "limit", "timings": timings}
                self._event({"content": "", "tokens": [], "tokens_predicted": 3, **end})
            case _:
                assert kind == CUT_SHORT
        self._chunk(b"")

    def _complete_as_openai(self, body: Body) -> None:
        self._begin()
        kind = cast("list[int]", body["prompt"])[1]
        self._event({"choices": [{"text": "a", "finish_reason": None}]})
        if kind == ENDLESS:
            self._until_they_leave()
        self._event({"choices": [{"text": "é", "finish_reason": None}]})
        self._event({"choices": [{"text": "", "finish_reason": "length"}]})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _until_they_leave(self) -> None:
        n_tokens = 1
        try:
            while True:
                n_tokens += 1
                choice = {"text": "b", "finish_reason": None}
                self._event({"content": "b", "tokens_predicted": n_tokens, "choices": [choice]})
        except OSError:
            Path(os.environ["LEFT"]).write_text("they have left")

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, event: Body) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, content: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))

    def _answer(self, status: int, content: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content.encode())))
        self.end_headers()
        self.wfile.write(content.encode())


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


class TCPServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    request_queue_size = 64


def main() -> None:
    arguments = sys.argv[1:]
    if "-C" in arguments:
        settings = json.loads(Path(arguments[1]).read_text())
        Handler.is_embedder = settings["model"].get("embedding", False)
        server = settings["server"]
        with Path(os.environ["ASKED"]).open("a") as asked:
            asked.write(json.dumps(["settings", settings]) + "\n")
        with TCPServer((server["host"], server["port"]), Handler) as tcp:
            tcp.serve_forever()
    Handler.is_embedder = "--embeddings" in arguments
    with UnixServer(arguments[arguments.index("--host") + 1], Handler) as unix:
        unix.serve_forever()


if __name__ == "__main__":
    main()
