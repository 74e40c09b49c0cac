"""The helper against an owner that plays its part: real sockets, signatures, durable steps, another run after a crash."""

import base64
import json
import threading
import time
import unittest
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from conch_agent import Agent, InvalidSignature, serve, sign, verify
from conch_agent.signature import TOLERANCE_S
from conch_agent.turn import STEP_ATTEMPTS, JournalMismatch, StepRefused, Turn

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


class Owner:
    """Keeps steps as the owner does: the same key with the same content once, anything else refused."""

    def __init__(self):
        self.steps = {}
        self.answers = []  # (status, problem) to be given first, before any step is taken
        self.arrived = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                key = unquote(self.path.removeprefix("/cb/steps/"))
                owner.arrived.append(key)
                status, answer = owner.answers.pop(0) if owner.answers else (200, None)
                if answer is None:
                    owner.steps[key] = body
                    answer = {"seq": len(owner.steps)}
                data = json.dumps(answer).encode()
                self.send_response(status)
                if status == 307:
                    self.send_header("location", "http://127.0.0.1:1/")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def journal(self):
        return [{"key": key, **body} for key, body in self.steps.items()]

    def request(self, journal=None, state=None):
        return {
            "conversation": "room",
            "turn": 7,
            "epoch": 3,
            "attempt": 1,
            "deadline": None,
            "messages": [{"role": "user", "text": "one"}, {"role": "assistant", "text": "two"}, {"role": "user", "text": "hi"}],
            "state": state,
            "journal": self.journal() if journal is None else journal,
            "callback": f"http://127.0.0.1:{self.server.server_port}/cb",
        }

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class OwnerCase(unittest.TestCase):
    def setUp(self):
        self.owner = Owner()
        self.addCleanup(self.owner.close)
        self.slept = []

    def run_turn(self, run, request=None):
        lines = []
        Agent(SECRET, run).run(request or self.owner.request(), lines.append, self.slept.append)
        return lines


class Steps(OwnerCase):
    def test_a_completed_step_is_not_run_again(self):
        calls = []

        def run(turn: Turn):
            first = turn.step("pay", lambda: calls.append("first") or {"sum": (1, 2)}, (1, {2: 3}))
            second = turn.step("pay", lambda: calls.append("second") or 5)
            turn.message(f"{first['sum']} {second} {turn.text}")
            turn.state = {"n": (turn.state or 0) + 1}

        told = [{"type": "message", "body": {"text": "[1, 2] 5 hi"}}, {"type": "done", "state": {"n": 1}}]
        self.assertEqual(self.run_turn(run), told)
        self.assertEqual(self.owner.steps["pay#2"], {"input": None, "output": 5})
        self.assertEqual(self.run_turn(run), told, "the run after a crash says the same")
        self.assertEqual((calls, self.owner.arrived), (["first", "second"], ["pay", "pay#2"]))

    def test_another_input_is_told_apart(self):
        self.run_turn(lambda turn: turn.step("a", lambda: 1, input={"x": 1}))
        with self.assertRaises(JournalMismatch):
            self.run_turn(lambda turn: turn.step("a", lambda: 1, input={"x": 2}))

    def test_a_busy_owner_is_asked_again_and_a_stale_run_stops(self):
        busy = (503, {"code": "overloaded", "detail": "busy", "retry": {"after_ms": 250, "budget_ms": 1}})
        self.owner.answers = [busy, busy]
        self.assertEqual(self.run_turn(lambda turn: turn.step("a", lambda: 1))[-1]["type"], "done")
        self.assertEqual((self.slept, len(self.owner.arrived)), ([0.25, 0.25], 3))
        self.owner.answers = [(409, {"code": "stale_attempt", "detail": "epoch 4 runs it"})]
        after = []
        lines = self.run_turn(lambda turn: (turn.step("b", lambda: 1), after.append(1)))
        self.assertEqual((lines, after), ([], []), "no done, and nothing runs after it")

    def test_refusals_without_a_directive_and_silence_are_told(self):
        self.owner.answers = [(413, {"code": "too_large", "detail": "output: too large"})]
        with self.assertRaisesRegex(StepRefused, "output: too large"):
            self.run_turn(lambda turn: turn.step("a", lambda: 1))
        self.owner.answers = [(307, {"detail": "elsewhere"})]
        with self.assertRaisesRegex(StepRefused, "elsewhere"):
            self.run_turn(lambda turn: turn.step("a", lambda: 1))
        request = self.owner.request()
        self.owner.close()
        self.slept.clear()
        with self.assertRaises(StepRefused):
            self.run_turn(lambda turn: turn.step("a", lambda: 1), request)
        self.assertEqual(len(self.slept), STEP_ATTEMPTS)


class Waits(OwnerCase):
    def test_a_wait_ends_the_run_and_its_answer_resumes_it(self):
        def run(turn: Turn):
            answer = turn.wait("ok", prompt="Really?", expires_in_s=2, schema={"type": "boolean"})
            turn.message(f"{answer.payload} {answer.expired}")

        opened = {"type": "await", "id": "ok", "prompt": "Really?", "expires_in_ms": 2000, "schema": {"type": "boolean"}}
        self.assertEqual(self.run_turn(run), [opened])
        self.assertEqual(self.run_turn(run, self.owner.request([{"await": "ok", "state": "open"}])), [])
        for state, payload, said in [("resolved", True, "True False"), ("expired", None, "None True")]:
            journal = [{"await": "ok", "state": state, "payload": payload}]
            self.assertEqual(self.run_turn(run, self.owner.request(journal))[0]["body"]["text"], said)


class Signatures(unittest.TestCase):
    def headers(self, body=b"{}", timestamp=1_000, secret=SECRET):
        signature = sign(secret, "m1", timestamp, body)
        return {"webhook-id": "m1", "webhook-timestamp": str(timestamp), "webhook-signature": signature}

    def test_only_what_was_signed_with_the_secret_in_time_is_accepted(self):
        verify(SECRET, self.headers(), b"{}", now=1_000 + TOLERANCE_S)
        both = self.headers() | {"webhook-signature": "v1,AAAA " + self.headers()["webhook-signature"]}
        verify(SECRET, both, b"{}", now=1_000)
        other = "whsec_" + base64.b64encode(b"another").decode()
        cases = [
            (self.headers(), b"{} ", 1_000),
            (self.headers(secret=other), b"{}", 1_000),
            (self.headers(), b"{}", 1_001 + TOLERANCE_S),
            (self.headers(), b"{}", 999 - TOLERANCE_S),
            (self.headers() | {"webhook-id": "m2"}, b"{}", 1_000),
            (self.headers() | {"webhook-timestamp": "+1000"}, b"{}", 1_000),
            (self.headers() | {"webhook-signature": "v1,é"}, b"{}", 1_000),
            ({}, b"{}", 1_000),
        ]
        for headers, body, now in cases:
            with self.subTest(headers=headers, now=now), self.assertRaises(InvalidSignature):
                verify(SECRET, headers, body, now=now)

    def test_a_secret_that_is_none_is_refused(self):
        for secret in ["", "abc", "whsec_", "whsec_%%"]:
            with self.assertRaises(ValueError):
                sign(secret, "m", 1, b"")

    def test_a_known_signature_fits(self):
        """The example of the Standard Webhooks specification."""
        secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
        body = b'{"test": 2432232314}'
        expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        self.assertEqual(sign(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body), expected)


class Server(OwnerCase):
    def start(self, run):
        server = serve(Agent(SECRET, run), port=0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}/"

    def post(self, url, body, headers=None):
        if headers is None:
            stamp = int(time.time())
            headers = {"webhook-id": "m", "webhook-timestamp": str(stamp), "webhook-signature": sign(SECRET, "m", stamp, body)}
        return urllib.request.urlopen(urllib.request.Request(url, body, headers, method="POST"), timeout=10)

    def test_a_turn_is_streamed_line_by_line(self):
        gate = threading.Event()

        def run(turn: Turn):
            turn.delta("a")
            gate.wait(10)
            turn.delta("b")

        with self.post(self.start(run), json.dumps(self.owner.request()).encode()) as answer:
            self.assertEqual(json.loads(answer.readline()), {"type": "delta", "text": "a"})
            gate.set()
            self.assertEqual([json.loads(line)["type"] for line in answer], ["delta", "done"])

    def test_a_failure_is_no_end(self):
        def run(turn: Turn):
            turn.delta("a")
            raise RuntimeError("broken")

        import http.client

        with self.assertLogs("conch_agent", "ERROR"), self.assertRaises(http.client.IncompleteRead):
            self.post(self.start(run), json.dumps(self.owner.request()).encode()).read()

    def test_strangers_and_nonsense_are_refused(self):
        url = self.start(lambda turn: turn.delta("secret"))
        turn = json.dumps(self.owner.request()).encode()
        for body, headers, status in [(turn, {}, 401), (b"{", None, 400), (b"[]", None, 400), (b"{}", None, 400)]:
            with self.subTest(status=status), self.assertRaises(urllib.error.HTTPError) as refused:
                self.post(url, body, headers)
            self.assertEqual(refused.exception.code, status)
            refused.exception.close()


if __name__ == "__main__":
    unittest.main()
