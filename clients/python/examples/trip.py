"""An agent that books a trip: a step with a side effect, an approval, and a streamed answer.

    CONCH_WORKER_SECRET=whsec_… python examples/trip.py

and in Conch's configuration:

    [agents.trip]
    kind = "http"
    url = "http://127.0.0.1:9000/"
    secret_env = "CONCH_WORKER_SECRET"
"""

import os
import time
import zlib

from conch_agent import Agent, Turn, serve


def run(turn: Turn) -> None:
    turn.delta("Looking for a train. ")
    train = turn.step("find", lambda: {"train": "R 12", "price": 48})
    answer = turn.wait(
        "approve",
        prompt=f"Book {train['train']} for {train['price']} EUR?",
        schema={"type": "object", "properties": {"approved": {"type": "boolean"}}, "required": ["approved"]},
        expires_in_s=float(os.environ.get("TRIP_EXPIRES_S", "3600")),
    )
    if answer.expired or not answer.payload.get("approved"):
        turn.message("Nothing was booked.")
        return
    key = turn.idempotency_key("book")
    booking = turn.step("book", lambda: book(train["train"], key))
    for word in f"Booked {train['train']} under {booking['number']}. Have a good trip!".split(" "):
        turn.delta(word + " ")
        time.sleep(0.1)
    turn.state = {"trips": (turn.state or {}).get("trips", 0) + 1}


def book(train: str, key: str) -> dict[str, str]:
    """Stands for a call of a booking service, which gets `key` so that a repetition books nothing twice."""
    return {"number": f"{train.replace(' ', '')}-{zlib.crc32(key.encode()) % 10_000:04}"}


if __name__ == "__main__":
    server = serve(Agent(os.environ["CONCH_WORKER_SECRET"], run), port=int(os.environ.get("CONCH_WORKER_PORT", "9000")))
    print(f"listening on port {server.server_port}", flush=True)
    server.serve_forever()
