#!/usr/bin/env python3
"""Runs the attacks of attack.py beside a neighbour (neighbour.py), checks what must hold, and prints a Markdown table.

    attack_run.py [--full] [--edge] [--server BIN] [--kill-above MIB] [--json FILE] [NAME...]
    attack_run.py --compare BEFORE.json AFTER.json

Each attack has a server of its own. What must hold:
  - the resident memory of the server never exceeds start + --request-memory + 64 MiB;
  - the neighbour gets the tokens of a run without attack, at most a second passes between two of them, and a new call of the
    neighbour waits at most a second for its first token (where the attack does not fill all slots);
  - a probe (health, /healthz, /v1/models, /metrics) over a new connection is answered within two seconds;
  - the server lives, is SERVING to a newcomer, and its connections and calls are at their numbers of before.
--edge sends attack and neighbour through HAProxy with deploy/haproxy. --kill-above ends a server that holds more memory, for
comparisons with other builds. The exit status is 0 only if everything held."""

import argparse
import dataclasses
import json
import pathlib
import sys
import threading
import time

import edge
import serving
from beside import ATTACKER, REFERENCE, Beside, Child, Reference

REQUEST_MEMORY = 128  # MiB
GRAMMAR_MEMORY = 96  # MiB
GRAMMAR_SPARE = 32  # MiB that the processes of grammars take in the time between two looks at them, on a few cores
SPARE = 64  # MiB, for buffers of sockets, stacks and what the allocator keeps
SLOTS = 16  # the default of --max-sequences
LONGEST_GAP = 1.0
LONGEST_PROBE = 2.0
STALL_SECONDS = 1
EDGE_MEMORY = 256  # MiB of HAProxy
# Seconds until the calls of an attack are gone. HAProxy reads nothing of a client whose upload waits for one who reads nothing,
# and does not see that it has left before `timeout client` (2 min).
PATIENCE, EDGE_PATIENCE = 60, 150
FLOOD, STALL = 1.0, 3.0  # seconds of an attack; five times as long with --full
# The pools of the model are small, so that the memory of requests shows.
FLAGS = {"request-memory": f"{REQUEST_MEMORY}MiB", "grammar-memory": f"{GRAMMAR_MEMORY}MiB",
         "stall-deadline": f"{STALL_SECONDS}s", "handshake-timeout": "1s", "session-memory": "16MiB", "preempted-memory": "4MiB",
         "prefix-cache-min-tokens": 0, "log-level": "warning"}


@dataclasses.dataclass(frozen=True)
class Attack:
    name: str  # the function of attack.py
    title: str
    seconds: float = FLOOD
    closed: bool = False  # the server must close each of its connections
    reset: bool = False  # the server must have ended all of its streams
    grammars: bool = False  # its requests have grammars, whose processes are measured
    slots: bool = False  # its requests may fill all slots: a new call may wait
    tls: bool = False  # needs a server with TLS
    edge: bool = True  # also through HAProxy
    session: bool = False  # another client must get the session
    ci: bool = True  # also without --full


ATTACKS = (
    Attack("continuation_literals", "CONTINUATION without end, literal fields", closed=True),
    Attack("continuation_indexed", "CONTINUATION without end, indexed fields", closed=True, ci=False),
    Attack("continuation_table", "CONTINUATION without end, additions to the table", closed=True, ci=False),
    Attack("continuation_varints", "CONTINUATION without end, an unfinished integer", closed=True),
    Attack("continuation_empty", "empty CONTINUATION without end", closed=True),
    Attack("tls_continuation", "CONTINUATION without end, in TLS", closed=True, tls=True, edge=False),
    Attack("hpack_bomb", "12,000 references to a field of 4,000 bytes in each request", ci=False),
    Attack("large_metadata", "2,048 streams with 10 KiB of metadata", STALL, ci=False),
    Attack("slow_headers", "64 header blocks, a byte every quarter of a second", STALL, closed=True),
    Attack("unknown_frames", "frames of an unknown type", closed=True),
    Attack("empty_data", "empty DATA", closed=True),
    Attack("one_byte_data", "messages of 4 MiB in DATA of one byte"),
    Attack("priority_frames", "PRIORITY", closed=True, ci=False),
    Attack("window_updates", "WINDOW_UPDATE", closed=True),
    Attack("pings", "PING", closed=True),
    Attack("settings_frames", "SETTINGS", closed=True),
    Attack("window_settings", "SETTINGS that open and close all windows", closed=True, ci=False),
    Attack("rapid_reset", "rapid reset", closed=True, ci=False),
    Attack("rapid_reset_8", "rapid reset on 8 connections", closed=True),
    Attack("half_messages", "1,200 half-sent messages of 4 MiB on 10 connections", STALL),
    Attack("huge_messages", "messages that declare 4 GiB", ci=False),
    Attack("slow_messages", "256 messages, a byte every quarter of a second", STALL, reset=True),
    Attack("silent_appends", "silent Append streams", STALL + 5, session=True, slots=True),
    Attack("silent_states", "400 silent CompleteWithState streams of 6 MiB", STALL),
    Attack("stalled_readers", "256 completions that are not read", STALL, slots=True),
    Attack("many_streams", "20 streams of 4,000 tokens of one address (256 with --full)", STALL),
    Attack("all_streams", "4,096 completions of 4,000 tokens", STALL, ci=False),
    Attack("fan_outs", "4 prompts x n 64 x 400 tokens, again and again", STALL),
    Attack("many_scores", "20 scores without an end", STALL),
    Attack("unread_replies", "60 replies of Tokenize that are not read", STALL),
    Attack("open_streams", "4,096 open streams", STALL),
    Attack("tokenize_cancelled", "Tokenize of 4 MiB, cancelled", STALL),
    Attack("echoed_logprobs", "CompleteUnary with echo and logprobs 20, texts of 280 kB (40 kB in CI)", 8, slots=True),
    Attack("grammars", "64 completions by grammars that take time and memory", 6, slots=True, grammars=True),
    Attack("idle_sockets", "256 idle sockets of one peer", STALL, ci=False),
    Attack("idle_connections", "256 idle HTTP/2 connections of one peer", STALL),
    Attack("slow_http", "120 slow HTTP connections", STALL, edge=False),
    Attack("http_half_bodies", "40 half-sent HTTP bodies of 60 MiB", STALL, edge=False),
    Attack("http_completions", "400 streams of one client over HTTP", STALL, slots=True, edge=False),
    Attack("disconnects", "10,000 disconnects (1,500 in CI)", STALL),
    Attack("slow_tls", "100 TLS handshakes that do not end", STALL, closed=True, tls=True),
)


@dataclasses.dataclass
class Row:
    attack: Attack
    start: float = 0.0  # MiB
    peak: float = 0.0  # MiB
    gap: float = 0.0  # seconds between two tokens of the neighbour
    first: float = 0.0  # seconds to the first token of a new call
    probe: float = 0.0  # seconds
    seen: dict = dataclasses.field(default_factory=dict)  # by the attacker
    broken: list = dataclasses.field(default_factory=list)  # what did not hold
    loaded: int = 0  # of them, what a machine may cause whose processors other programs have
    grammars: float = 0.0  # MiB of their processes
    killed: float = 0.0  # MiB at which the server was killed

    def outcome(self):
        if self.killed:
            return f"killed at {self.killed:.0f} MiB"
        text = f"{self.seen.get('closed', 0)} of {self.seen.get('connections', 0)} connections closed"
        codes = ", ".join(f"{count} {code}" for code, count in sorted(self.seen.get("codes", {}).items()))
        text += f"; {codes}" if codes else ""
        return text + (f"; grammars of {self.grammars:.0f} MiB" if self.grammars else "")

    def markdown(self):
        held = "; ".join(self.broken).replace("|", "/").replace("\n", " ") or "held"
        return (f"| {self.attack.title} | {self.start:.0f} | {self.peak:.0f} | {self.gap:.2f} | {self.first:.2f} | "
                f"{self.probe:.2f} | {self.outcome()} | {held} |")

    def fields(self):
        return {"name": self.attack.name, **{name: getattr(self, name) for name in (
            "start", "peak", "gap", "first", "probe", "seen", "broken", "killed")}, "outcome": self.outcome()}


HEADER = ("| attack | start, MiB | peak, MiB | gap, s | new call, s | probe, s | outcome | bounds |\n"
          "|---|---|---|---|---|---|---|---|")


def warm_up(server, tls=None):
    """Fills every slot at once, so that its memory counts as memory of the start. Completions that follow one another, as those
    of a busy machine may, take one slot again and again."""
    filled = threading.Event()
    threads = [threading.Thread(target=serving.completion_until, args=(filled, server.grpc, f"Warm {number}"), kwargs={"tls": tls})
               for number in range(SLOTS)]
    for thread in threads:
        thread.start()
    try:
        serving.wait_until(lambda: server.metrics()["polysketch_num_requests_running"] == SLOTS, f"{SLOTS} filled slots")
    finally:
        filled.set()
    for thread in threads:
        thread.join()
    serving.wait_until(lambda: idle(server) is not None, "an idle server", 10)


def idle(server):
    """The numbers of connections and of calls, or None while there are any of the test itself."""
    metrics = server.metrics()
    numbers = {name: metrics[f"polysketch_{name}"] for name in ("connections", "calls_in_flight")}
    return None if any(numbers.values()) else numbers


class AttackRun:
    def __init__(self, binary=None, full=False, through_edge=False, kill_above=None):
        self._binary, self._full, self._edge, self._kill_above = binary, full, through_edge, kill_above
        self._reference = Reference(lambda: serving.Server(FLAGS, binary)) if binary else REFERENCE
        self._folder = serving.temporary_folder("hostile")
        self._certificate = edge.make_certificate(self._folder)

    def attacks(self, names=()):
        unknown = set(names) - {attack.name for attack in ATTACKS}
        if unknown:
            raise SystemExit(f"expected names of attacks, found {', '.join(sorted(unknown))}")
        usual = [one for one in ATTACKS if (one.edge or not self._edge) and (one.ci or self._full)]
        return [one for one in ATTACKS if one.name in names] if names else usual

    def runs(self, attack):
        """The row of an attack, and that of a second run where the first took too long, took too much memory, which gRPC holds
        until its threads run, or attacked too little, and nothing else: other programs may have had the processors for a second.
        A server that is at fault is so again."""
        yield (row := self.run(attack))
        if row.loaded and row.loaded == len(row.broken):
            yield self.run(attack)

    def run(self, attack):
        """The row of an attack."""
        if attack.tls and not self._edge and not serving.knows(self._binary or serving.BIN / "polysketch-server", "tls-cert"):
            return Row(attack, broken=["this build has no TLS"])
        flags, log = dict(FLAGS), self._folder / f"{attack.name}.log"
        own_tls = attack.tls and not self._edge
        if own_tls:
            flags |= {"tls-cert": self._certificate.chain, "tls-key": self._certificate.key}
        proxy = None
        with serving.Server(flags | (edge.server_flags(self._folder) if self._edge else {}), self._binary, log=log,
                            kill_above=self._kill_above) as server:
            try:
                if self._edge:
                    proxy = edge.HAProxy(self._folder, server, self._certificate)
                warm_up(server, self._certificate.client() if own_tls else None)
                target = {"grpc": proxy.address if proxy else server.ready["listen"], "http": server.ready.get("http"),
                          "metrics": server.ready["metrics"], "ca": str(self._certificate.chain) if proxy or own_tls else None,
                          "http_tls": own_tls}
                return self._beside_neighbour(attack, server, target, proxy)
            finally:
                if proxy:
                    proxy.stop()

    def _beside_neighbour(self, attack, server, target, proxy):
        row = Row(attack)
        beside = Beside(target, endless=attack.slots)
        server.reset_peak()
        row.start = server.resident_mib()
        beside.start()
        seconds = attack.seconds * (5 if self._full else 1)
        attacker = Child("attack.py", attack.name, json.dumps(
            {**target, "source": ATTACKER, "seconds": seconds, "full": self._full}))
        end = time.monotonic() + seconds * 10 + 60
        while attacker.running() and server.alive() and time.monotonic() < end:
            row.peak = max(row.peak, server.peak_mib())
            if attack.grammars:
                row.grammars = max(row.grammars, server.grammars_mib())
            time.sleep(0.05)
        row.seen = attacker.result(1 if not server.alive() else 30)
        time.sleep(0.3)
        self._judge_neighbour(row, beside.stop())
        self._judge_server(row, server, proxy)
        return row

    def _judge_neighbour(self, row, told):
        if not told:
            row.broken.append("the neighbour did not end")
            return
        row.gap, row.first, row.probe = (told["gaps"][name] for name in ("token", "first", "probe"))
        late = []
        if row.gap > LONGEST_GAP:
            late.append(f"{row.gap:.2f} s between two tokens, at most {LONGEST_GAP:.0f}")
        if row.first > LONGEST_GAP and not row.attack.slots:
            late.append(f"{row.first:.2f} s to a first token, at most {LONGEST_GAP:.0f}")
        if row.probe > LONGEST_PROBE:
            late.append(f"{row.probe:.2f} s to the answer of a probe, at most {LONGEST_PROBE:.0f}")
        row.loaded += len(late)
        row.broken += told["errors"] + self._reference.differences(told["streams"]) + late

    def _judge_server(self, row, server, proxy):
        self._wait_for_the_end(row, server, proxy)
        row.killed = server.killed_at or 0.0
        row.peak = max(row.peak, server.peak_mib())
        most = row.start + REQUEST_MEMORY + SPARE
        if row.peak > most:
            row.broken.append(f"{row.peak:.0f} MiB, at most {most:.0f}")
            row.loaded += 1
        if row.grammars > GRAMMAR_MEMORY + GRAMMAR_SPARE:
            row.broken.append(f"{row.grammars:.0f} MiB of grammars, at most {GRAMMAR_MEMORY + GRAMMAR_SPARE}")
        if row.attack.grammars and row.grammars == 0:
            row.broken.append("found no process of a grammar")
        if not server.alive():
            row.broken.append(f"the server ended with status {server.process.wait()}")
            return
        if not row.seen:
            row.broken.append("the attack did not end")
        answer = server.serving(tls=self._certificate.client() if row.attack.tls and not proxy else None)
        if answer != "SERVING":
            row.broken.append(f"health: {answer}")
        if not proxy:
            self._judge_attacker(row)

    @staticmethod
    def _wait_for_the_end(row, server, proxy):
        """Until the connections and calls of the attack are gone."""
        if proxy and not (proxy.alive() and proxy.resident_mib() <= EDGE_MEMORY):
            row.broken.append(f"HAProxy: {proxy.resident_mib():.0f} MiB" if proxy.alive() else "HAProxy ended")
        # The health checks of an edge come and go.
        keeps = ("calls_in_flight",) if proxy else ("calls_in_flight", "connections")

        def back():
            metrics = server.metrics()
            return not any(metrics[f"polysketch_{name}"] for name in keeps)

        try:
            serving.wait_until(back, "the connections and calls of before", EDGE_PATIENCE if proxy else PATIENCE)
        except (AssertionError, OSError) as error:
            if server.alive():
                row.broken.append(str(error))

    @staticmethod
    def _judge_attacker(row):
        seen, attack = row.seen, row.attack
        # The last of them may be open when the attack ends.
        if attack.closed and seen and not (seen.get("closed") and seen.get("longest", 0) <= STALL_SECONDS + 1):
            row.broken.append(f"expected closed connections, found {row.outcome()}")
            row.loaded += 1  # an attacker of the lowest priority may send too little, or notice late
        if attack.reset and seen.get("left"):
            row.broken.append(f"{seen['left']} of {seen.get('streams')} streams still open")
        if attack.session and seen and seen.get("session") != "OK":
            row.broken.append(f"the session of a silent Append: {seen.get('session')}")


# Of what did not hold, what a table has in columns of its own.
IN_COLUMNS = ("MiB, at most", "between two tokens", "expected closed", "the server ended with status -9")


def compare(before, after=None):
    """A table of two runs. Figures of an attack that a file lacks are left empty."""
    files = [{row["name"]: row for row in json.loads(pathlib.Path(path).read_text())} if path else {} for path in (before, after)]

    def outcome(row):
        return "; ".join([row["outcome"], *(text for text in row["broken"] if not any(part in text for part in IN_COLUMNS))])

    print("| attack | peak before, MiB | peak after, MiB | gap before, s | gap after, s | outcome before | outcome after |")
    print("|---|---|---|---|---|---|---|")
    for attack in ATTACKS:
        cells = [attack.title]
        for value in (lambda row: f"{row['peak']:.0f}", lambda row: f"{row['gap']:.2f}", outcome):
            for rows in files:
                row = rows.get(attack.name)
                cells.append("" if row is None else value(row) if row["peak"] else "no TLS")
        print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--edge", action="store_true")
    parser.add_argument("--server", metavar="BIN")
    parser.add_argument("--kill-above", metavar="MIB", type=float, default=4096)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--compare", nargs="*", metavar="FILE")
    parser.add_argument("names", nargs="*", metavar="NAME")
    chosen = parser.parse_args()
    if chosen.compare:
        return compare(*chosen.compare)
    run = AttackRun(chosen.server, chosen.full, chosen.edge, chosen.kill_above)
    print(HEADER, flush=True)
    rows = []
    for attack in run.attacks(chosen.names):
        rows.append(run.run(attack))
        print(rows[-1].markdown(), flush=True)
        if chosen.json:
            pathlib.Path(chosen.json).write_text(json.dumps([row.fields() for row in rows], indent=1))
    return 1 if any(row.broken for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
