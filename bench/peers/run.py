#!/usr/bin/env python3
"""Conch beside NATS and Centrifugo: the same load, in the same run, in alternating rounds.

Sessions of one channel, each on its own WebSocket; messages of the same size at the same rate. The sessions are `conch bench
load`, the same program for all three, and cost all three the same. Each server is started for each round on free loopback
ports and ended after it, by its process id. Python's own library is all that is needed.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
START_MAX_S = 30
JOIN_MAX_S = 120
ARRIVE_MAX_S = 30
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
SUB_BUCKETS = 64


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def cpu_s(pid):
    """User and system time of a process."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def resident_bytes(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no VmRSS")


def quantile_ms(histogram, share):
    """The upper edge of the bucket that holds this share; the buckets are those of crates/cli/src/bench/histogram.rs."""
    counts = sorted((int(bucket), count) for bucket, count in histogram["counts"].items())
    rank, below = share * sum(count for _, count in counts), 0
    for bucket, count in counts:
        below += count
        if below >= rank:
            doublings, sub = divmod(bucket, SUB_BUCKETS)
            return min(((sub + 1) << doublings) - 1, histogram["max_us"]) / 1000
    return 0.0


def until(what, limit_s, look):
    begun = time.monotonic()
    while time.monotonic() - begun < limit_s:
        found = look()
        if found:
            return found
        time.sleep(0.05)
    raise RuntimeError(f"waited {limit_s} s for {what}")


class Load:
    """The sessions: `conch bench load`, spoken to in JSON lines."""

    def __init__(self, conch, dialect, port, sessions, channel, token):
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CONCH_")}
        if token:
            environment["CONCH_TOKEN"] = token
        command = [conch, "bench", "load", "--dialect", dialect, "--address", f"127.0.0.1:{port}"]
        command += ["--sessions", str(sessions), "--conversation", channel, "--from", "127.0.0.2"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
        self.sessions = sessions

    def ask(self, question):
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the load has ended")
        return json.loads(line)

    def join(self):
        self.ask({"Connect": {"sessions": self.sessions, "over_ms": 0}})

        def all_there():
            seen = self.ask("Look")
            return seen["joined"] == self.sessions

        until(f"{self.sessions} sessions to join", JOIN_MAX_S, all_there)

    def end(self):
        # It ends when its standard input does.
        self.process.stdin.close()
        self.process.wait(timeout=START_MAX_S)


class Server:
    """A server under test: started by its process, ended by its id."""

    dialect = ""

    def __init__(self, scratch):
        self.scratch = scratch
        self.process = None
        self.port = free_port()

    def spawn(self, command, **more):
        log = open(self.scratch / "log", "w")
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **more)

    def until_ready(self, port):
        def reached():
            if self.process.poll() is not None:
                raise RuntimeError((self.scratch / "log").read_text())
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return True

        until(f"{self.dialect} to listen", START_MAX_S, reached)

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=START_MAX_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    token = None


class Conch(Server):
    dialect = "conch"

    def __init__(self, scratch, program):
        super().__init__(scratch)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CONCH_")}
        self.store = f"sqlite:{scratch / 'data'}"
        operations = free_port()
        command = [program, "serve", "--listen", f"127.0.0.1:{self.port}", "--ops-listen", f"127.0.0.1:{operations}"]
        command += ["--store", self.store, "--log-level", "warn"]
        for limit in ("connections", "sockets"):
            command += ["--set", f"limits.{limit}=19000"]
        self.spawn(command, env=environment)
        self.until_ready(operations)
        mint = [program, "token", "--sub", "bench", "--unlimited-rate", "--can", "read,send,run,create,admin"]
        mint += ["--store", self.store, "--json"]
        answer = subprocess.run(mint, env=environment, check=True, capture_output=True, text=True).stdout
        self.token = json.loads(answer)["token"]
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_MAX_S)
        self.number = 0
        self.call("PUT", "/v1/conversations/bench", {"kind": "channel"})
        self.publish("", 0)

    def call(self, method, path, body):
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        self.connection.request(method, path, json.dumps(body), headers)
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"{method} {path}: {answer.status} {text}")

    def publish(self, text, _seq):
        self.number += 1
        body = {"sent_ns": time.monotonic_ns(), "text": text}
        self.call("POST", "/v1/conversations/bench/messages", {"client_msg_id": f"m{self.number}", "body": body})


class Nats(Server):
    dialect = "nats"

    def __init__(self, scratch, program):
        super().__init__(scratch)
        clients = free_port()
        config = scratch / "nats.conf"
        config.write_text(
            f'listen: "127.0.0.1:{clients}"\nmax_connections: 100000\n'
            f'websocket {{ listen: "127.0.0.1:{self.port}", no_tls: true, compression: false }}\n'
        )
        self.spawn([program, "--config", str(config)])
        self.until_ready(self.port)
        self.socket = socket.create_connection(("127.0.0.1", clients), timeout=START_MAX_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.recv(65536)
        self.socket.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\n')

    def publish(self, text, seq):
        body = json.dumps({"seq": seq, "sent_ns": time.monotonic_ns(), "text": text}, separators=(",", ":")).encode()
        self.socket.sendall(b"PUB bench %d\r\n%s\r\n" % (len(body), body))

    def end(self):
        self.socket.close()
        super().end()


class Centrifugo(Server):
    dialect = "centrifugo"

    def __init__(self, scratch, program):
        super().__init__(scratch)
        config = scratch / "config.json"
        config.write_text(
            json.dumps(
                {
                    "http_server": {"address": "127.0.0.1", "port": self.port},
                    "client": {"insecure": True, "allowed_origins": ["*"]},
                    "channel": {
                        "without_namespace": {"allow_subscribe_for_client": True, "allow_subscribe_for_anonymous": True}
                    },
                    "http_api": {"key": "bench"},
                    "log": {"level": "error"},
                }
            )
        )
        self.spawn([program, "--config", str(config)])
        self.until_ready(self.port)
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_MAX_S)

    def publish(self, text, seq):
        data = {"seq": seq, "sent_ns": time.monotonic_ns(), "text": text}
        body = json.dumps({"channel": "bench", "data": data}, separators=(",", ":"))
        headers = {"X-API-Key": "bench", "Content-Type": "application/json"}
        self.connection.request("POST", "/api/publish", body, headers)
        answer = self.connection.getresponse()
        text = answer.read()
        if answer.status >= 300 or b'"error"' in text:
            raise RuntimeError(f"publish: {answer.status} {text}")


def one_round(args, server):
    """Joins, sends, waits for what was sent; what it cost."""
    pid = server.process.pid
    empty = resident_bytes(pid)
    load = Load(args.conch, server.dialect, server.port, args.sessions, "bench", server.token)
    try:
        load.join()
        time.sleep(args.settle)
        grown = resident_bytes(pid) - empty
        load.ask("Reset")
        before, load_before = cpu_s(pid), cpu_s(load.process.pid)
        begun, count = time.monotonic(), args.rate * args.seconds
        text = "x" * args.bytes
        for number in range(count):
            wait = begun + number / args.rate - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            server.publish(text, number + 1)
        expected, seen = count * args.sessions, {}

        def arrived():
            seen.update(load.ask("Look"))
            return seen["deliveries"] >= expected

        with contextlib.suppress(RuntimeError):
            until("all deliveries", ARRIVE_MAX_S, arrived)
        deliveries = max(seen["deliveries"], 1)
        return {
            "server": server.dialect,
            "sessions": args.sessions,
            "sent": count,
            "missing": max(expected - seen["deliveries"], (count - seen["least"]) if seen["least"] < count else 0),
            "out_of_order": seen["out_of_order"],
            "p50_ms": quantile_ms(seen["latency"], 0.50),
            "p99_ms": quantile_ms(seen["latency"], 0.99),
            "cpu_us_per_delivery": (cpu_s(pid) - before) * 1e6 / deliveries,
            "load_cpu_us_per_delivery": (cpu_s(load.process.pid) - load_before) * 1e6 / deliveries,
            "memory_bytes_per_connection": grown / args.sessions,
        }
    finally:
        load.end()


def find(name, given):
    found = given or shutil.which(name, path=f"{HERE / '.peers'}:{os.environ.get('PATH', '')}")
    return found and str(pathlib.Path(found).resolve())


def table(rounds):
    """A line a server: means, with the least and the most of the rounds."""
    columns = [
        ("CPU a delivery, µs", "cpu_us_per_delivery", 1, 1),
        ("p50, ms", "p50_ms", 1, 1),
        ("p99, ms", "p99_ms", 1, 1),
        ("KiB a connection", "memory_bytes_per_connection", 1024, 1),
        ("missing", "missing", 1, 0),
        ("out of order", "out_of_order", 1, 0),
    ]
    lines = ["| server | " + " | ".join(name for name, *_ in columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for server in dict.fromkeys(one["server"] for one in rounds):
        cells = [server]
        for _, key, unit, digits in columns:
            values = [one[key] / unit for one in rounds if one["server"] == server]
            mean = sum(values) / len(values)
            spread = f" ({min(values):.{digits}f}–{max(values):.{digits}f})" if len(values) > 1 else ""
            cells.append(f"{mean:.{digits}f}{spread}" if digits else str(int(sum(values))))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conch", help="the binary, a release build [default: target/release/conch]")
    parser.add_argument("--nats", help="nats-server [default: in .peers, or on the PATH]")
    parser.add_argument("--centrifugo", help="centrifugo [default: in .peers, or on the PATH]")
    parser.add_argument("--only", default="conch,nats,centrifugo", help="servers, separated by commas")
    parser.add_argument("--sessions", type=int, default=2000, help="1 to 19,000 [default: 2000]")
    parser.add_argument("--rate", type=int, default=20, help="messages a second [default: 20]")
    parser.add_argument("--bytes", type=int, default=200, help="of a message's text [default: 200]")
    parser.add_argument("--seconds", type=int, default=10, help="a round [default: 10]")
    parser.add_argument("--rounds", type=int, default=3, help="of each server, in turn [default: 3]")
    parser.add_argument("--settle", type=float, default=2.0, help="seconds before memory is read [default: 2]")
    parser.add_argument("--json", action="store_true", help="the rounds as JSON")
    args = parser.parse_args()
    if not 1 <= args.sessions <= 19000:
        parser.error("--sessions: must be 1 to 19,000, for a process may open 20,000 files")
    args.conch = args.conch or str(HERE.parent.parent / "target" / "release" / "conch")
    programs = {
        "conch": (Conch, args.conch),
        "nats": (Nats, find("nats-server", args.nats)),
        "centrifugo": (Centrifugo, find("centrifugo", args.centrifugo)),
    }
    chosen = args.only.split(",")
    for name in chosen:
        if name not in programs:
            parser.error(f"--only: {name!r} is none of {', '.join(programs)}")
        if not programs[name][1]:
            parser.error(f"{name} is not there: bench/peers/setup.sh installs it, or --{name} names it")
    rounds = []
    for number in range(args.rounds):
        for name in chosen:
            kind, program = programs[name]
            with tempfile.TemporaryDirectory(prefix="conch-peers-") as scratch:
                server = kind(pathlib.Path(scratch), program)
                try:
                    one = one_round(args, server)
                finally:
                    server.end()
            rounds.append({"round": number + 1, **one})
            print(f"round {number + 1}: {json.dumps(one)}", file=sys.stderr)
    print(json.dumps({"bench": "peers", "rounds": rounds}) if args.json else table(rounds))


if __name__ == "__main__":
    main()
