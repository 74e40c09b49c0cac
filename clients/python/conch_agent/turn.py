"""One turn, as an agent's function sees it.

Invariants: a step's action runs only if the journal has no output of it, and what it returned is durable before `step`
returns; the n-th step of a name is the same one in every run; after `Stale` nothing more is sent.
"""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

STEP_TIMEOUT_S = 30
"""How long one attempt to make a step durable may take, in seconds."""
STEP_ATTEMPTS = 8
"""How often a step is sent when no answer comes; the same step twice counts once."""


class Stale(Exception):
    """Another run of this turn has taken over, or the turn has ended. The worker stops."""


class JournalMismatch(Exception):
    """The journal has a step of this key with another input: the code took another way than the run before."""


class StepRefused(Exception):
    """The owner did not take a step, for instance because its output is over 1 MiB."""


class _Parked(Exception):
    """The turn waits for somebody. Ends the agent's function."""


@dataclass(frozen=True)
class Await:
    """What came of a wait."""

    payload: Any
    expired: bool = False


class Turn:
    """A turn that runs. Not for use by several threads at once."""

    def __init__(self, request: dict[str, Any], emit: Callable[[dict[str, Any]], None], sleep: Callable[[float], None]):
        self.conversation: str = request["conversation"]
        self.id: int = request["turn"]
        self.epoch: int = request["epoch"]
        self.attempt: int = request["attempt"]
        self.deadline: str | None = request.get("deadline")
        self.messages: list[dict[str, Any]] = request["messages"]
        """The conversation, oldest first: `{role, text, …}`."""
        self.state: Any = request.get("state")
        """What the conversation's last turn left; what is here at the end is kept for its next one."""
        self._callback: str = request["callback"]
        self._journal = {entry["key"]: entry for entry in request["journal"] if "key" in entry}
        self._awaits = {entry["await"]: entry for entry in request["journal"] if "await" in entry}
        self._occurrences: Counter[str] = Counter()
        self._emit = emit
        self._sleep = sleep

    @property
    def text(self) -> str:
        """What was said last."""
        return next((m.get("text", "") for m in reversed(self.messages) if m.get("role") == "user"), "")

    def delta(self, text: str) -> None:
        """Shows more text at once. It is not kept: the answer is."""
        if text:
            self._emit({"type": "delta", "text": text})

    def step(self, name: str, action: Callable[[], T], input: Any = None) -> T:
        """Runs `action` unless an earlier run of the turn completed this step, and returns its output.

        The output must be JSON. `input` is compared with the one in the journal.

        Raises JournalMismatch, StepRefused, Stale, and whatever `action` raises.
        """
        key = self._key(name)
        if (entry := self._journal.get(key)) is not None:
            # As it was kept: tuples are lists there, and keys are strings.
            if entry.get("input") != json.loads(json.dumps(input)):
                raise JournalMismatch(f"step {key}: was run with another input before")
            return entry["output"]
        output = action()
        self._complete(key, {"input": input, "output": output})
        # As a later run will see it: tuples are lists there.
        return json.loads(json.dumps(output))

    def idempotency_key(self, name: str) -> str:
        """The same in every run of this turn: for the side effect within the step of this name that comes next."""
        occurrence = self._occurrences[name] + 1
        return f"{self.conversation}/{self.id}/{_numbered(name, occurrence)}"

    def wait(self, name: str, *, prompt: str, schema: dict[str, Any] | None = None, expires_in_s: float = 86_400) -> Await:
        """What somebody answered, or that nobody did in time.

        If it is open, the agent's function ends here, and runs again once there is an answer.
        """
        known = self._awaits.get(name)
        if known is not None and known["state"] != "open":
            return Await(known.get("payload"), expired=known["state"] == "expired")
        if known is None:
            expires_ms = int(expires_in_s * 1000)
            opened = {"type": "await", "id": name, "prompt": prompt, "expires_in_ms": expires_ms}
            self._emit(opened if schema is None else opened | {"schema": schema})
        raise _Parked

    def message(self, text: str) -> None:
        """The answer. Without it, the answer is all text that was shown."""
        self._emit({"type": "message", "body": {"text": text}})

    def _key(self, name: str) -> str:
        self._occurrences[name] += 1
        return _numbered(name, self._occurrences[name])

    def _complete(self, key: str, body: dict[str, Any]) -> None:
        url = f"{self._callback}/steps/{urllib.parse.quote(key, safe='')}"
        data = json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
        problem: Exception | None = None
        for attempt in range(STEP_ATTEMPTS):
            request = urllib.request.Request(url, data, {"content-type": "application/json"}, method="POST")
            try:
                with _OPENER.open(request, timeout=STEP_TIMEOUT_S):
                    return
            except urllib.error.HTTPError as refusal:
                wait_s = self._refused(key, refusal)
            except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
                problem, wait_s = error, min(0.1 * 2**attempt, 5)
            self._sleep(wait_s)
        raise StepRefused(f"step {key}: {problem or 'the owner was busy all the time'}")

    @staticmethod
    def _refused(key: str, refusal: urllib.error.HTTPError) -> float:
        """How long to wait before the same again; raises where that cannot help."""
        with refusal:
            try:
                told = json.loads(refusal.read(65_536))
            except ValueError:
                told = {}
        code, detail = told.get("code"), told.get("detail", f"HTTP {refusal.code}")
        if code == "stale_attempt":
            raise Stale(detail)
        if code == "journal_mismatch":
            raise JournalMismatch(detail)
        if "retry" not in told:
            raise StepRefused(f"step {key}: {detail}")
        return told["retry"]["after_ms"] / 1000


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """The callback's URL carries a proof: it goes to the host that gave it, and to no other."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _numbered(name: str, occurrence: int) -> str:
    return name if occurrence == 1 else f"{name}#{occurrence}"


class Agent:
    """An agent: the function that runs a turn, and the secret that its callers share."""

    def __init__(self, secret: str, run: Callable[[Turn], None]):
        self.secret = secret
        self._run = run

    def run(self, request: dict[str, Any], emit: Callable[[dict[str, Any]], None], sleep: Callable[[float], None]) -> None:
        """Runs one turn; everything that is to be told goes to `emit`, in order."""
        turn = Turn(request, emit, sleep)
        try:
            self._run(turn)
        except (_Parked, Stale):
            return
        emit({"type": "done", "state": turn.state})
