"""A client of soak.py: calls of all kinds, one after the other, and sessions from their creation to their end. Every answer is
compared with that of the same server before."""

import collections
import threading
import time

import messages
from soak_calls import STALL_ENDS, Caller, HttpAsk, every_ask, every_ask_with, read_deltas, read_score, read_with_state, sub, texts

SESSIONS = 0.3  # share of turns that are a whole session
VARIANTS = 3  # of sessions
# What a call of a session may end with while its store fails.
STORE_ERRORS = {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "DATA_LOSS", "ABORTED", "DEADLINE_EXCEEDED"}
LEASE_SECONDS = 10  # in which a call that was cut may still hold its session
SESSION_PATIENCE = 60  # seconds in which a call of a session must succeed
FIRST, SECOND = ("It was a fine morning.", "The old man said:", "A letter came, and"), (" Then", " They went", " But she")


class Wrong(Exception):
    """What a client saw and should not have seen."""


class Tally:
    """Counts of all clients."""

    def __init__(self):
        self._lock = threading.Lock()
        self.calls = collections.Counter()  # (method, outcome)
        self._wrong = []

    def count(self, method, outcome):
        with self._lock:
            self.calls[method, outcome] += 1

    def add_wrong(self, text):
        with self._lock:
            self._wrong.append(text)

    def take_wrong(self):
        """What was added since the last call."""
        with self._lock:
            taken, self._wrong = self._wrong, []
            return taken

    def total(self, *outcomes):
        with self._lock:
            return sum(count for (_, outcome), count in self.calls.items() if not outcomes or outcome in outcomes)

    def share(self, outcome):
        """Of all calls; 0 before the first."""
        return self.total(outcome) / max(self.total(), 1)


class Expected:
    """Answers of the server, computed once, each by a call of its own."""

    def __init__(self, server):
        self.asks, self.answers, self.sessions = every_ask(), [], []
        caller = Caller(server, "reference", 0)
        try:
            for ask in self.asks:
                self._add_answer(caller, ask)
            (state,) = (answer[2] for ask, answer in zip(self.asks, self.answers, strict=True) if getattr(ask, "read", None) is read_with_state)
            more = every_ask_with(state)
            for ask in more:
                self._add_answer(caller, ask)
            self.asks += more
            for variant in range(VARIANTS):
                self.sessions.append({})
                SessionRun(caller, Tally(), lambda began: False, variant, self.sessions[-1], plain=True).run(durable=False)
            clean_up(caller)
        finally:
            caller.close()

    def _add_answer(self, caller, ask):
        answer = caller.post(ask) if isinstance(ask, HttpAsk) else caller.call(ask.method, ask.messages)
        if answer.status != "OK":
            raise Wrong(f"reference: {ask.method}: {answer.status} {answer.message}")
        self.answers.append(tuple(answer.responses) if isinstance(ask, HttpAsk) else ask.read(answer.responses))
        if not any(self.answers[-1]):
            raise Wrong(f"reference: an empty answer to {ask}")


def judge(name, got, expected, cut):
    """Raises Wrong unless the parts are those expected, or beginnings of them if the call was cut."""
    for part, whole in zip(got, expected, strict=True):
        if part != (whole[:len(part)] if cut else whole):
            raise Wrong(f"{name}: expected {whole!r:.300}, found {part!r:.300}")


class SessionRun:
    """One session: its creation, input, output, score, snapshot, a restored copy, a fork, and its end. `known` holds what was
    found at first: name of a step -> (tokens of the session, parts)."""

    def __init__(self, caller, tally, excuse, variant, known, plain=False):
        self._caller, self._tally, self._excuse = caller, tally, excuse
        self._first, self._second, self._seed = FIRST[variant], SECOND[variant], variant
        self._known, self._plain = known, plain

    def run(self, durable):
        create = messages.field(1, int(durable))
        session = messages.session_id(self._step("CreateSession", create))
        tokens = self._append("first", session, 0, self._first)
        tokens = self._complete("output", session, tokens)
        self._score(session, tokens)
        key = sub(self._step("SnapshotSession", messages.field(1, session)), 1)[0].decode()
        restored = messages.session_id(self._step("RestoreSession", messages.field(1, key) + messages.field(2, int(durable))))
        fork = messages.session_id(sub(self._step("ForkSession", messages.field(1, session)), 1)[0])
        self._complete("restored", restored, tokens)
        for one in (session, fork):
            self._complete("second output", one, self._append("second", one, tokens, self._second))
        for one in (session, fork, restored, key):
            self._step("DeleteSession", messages.field(1, one), gone="NOT_FOUND")

    def _append(self, name, session, tokens, text):
        request = messages.append_request(session, text) + messages.field(2, tokens)
        answer = self._try("Append", request, gone="FAILED_PRECONDITION")
        return self._compare(name, answer, lambda: messages.session_tokens(self._last(answer, 2)), lambda: ())

    def _complete(self, name, session, tokens):
        request = messages.complete_request("", 12, self._seed, session=session) + messages.field(21, tokens)
        answer = self._try("Complete", request, gone="FAILED_PRECONDITION")
        return self._compare(name, answer, lambda: messages.session_tokens(self._last(answer, 3, 8)),
                             lambda: read_deltas(answer.responses))

    def _score(self, session, tokens):
        request = messages.field(1, self._second) + messages.field(3, session) + messages.field(4, tokens)
        answer = self._try("Score", request)
        self._compare("score", answer, lambda: 0, lambda: read_score(answer.responses))

    @staticmethod
    def _last(answer, *path):
        """A message inside the last response."""
        message = answer.responses[-1]
        for number in path:
            message = sub(message, number)[0]
        return message

    def _compare(self, name, answer, tokens, parts):
        """The tokens of the session after a step."""
        if answer.status != "OK":  # done by a call whose answer was not read
            return self._known[name][0]
        found = (tokens(), parts())
        if self._plain:
            self._known.setdefault(name, found)
        judge(f"session, {name}", found[1], self._known[name][1], cut=False)
        if found[0] != self._known[name][0]:
            raise Wrong(f"session, {name}: expected {self._known[name][0]} tokens, found {found[0]}")
        return found[0]

    def _step(self, method, request, gone=None):
        """The response of a call."""
        answer = self._try(method, request, gone)
        return answer.responses[0] if answer.responses else b""

    def _try(self, method, request, gone=None):
        """The answer OK; or, with the status `gone`, of a call that an earlier one made needless: one that was cut."""
        end, cut_at, fate = time.monotonic() + SESSION_PATIENCE, None, "finish" if self._plain else self._caller.fate(self._tally.share("cut"))
        while True:
            began = time.monotonic()
            answer = self._caller.call(method, (request,), fate)
            self._tally.count(method, "stalled" if fate == "stall" else "cut" if answer.cut else answer.status)
            if answer.status == "OK" or (answer.status == gone and cut_at is not None):
                return answer
            busy = answer.status == "ABORTED" and cut_at is not None and began < cut_at + LEASE_SECONDS
            excused = answer.status in STORE_ERRORS and self._excuse(began)
            if answer.cut and (fate != "stall" or answer.status in STALL_ENDS):
                cut_at = time.monotonic()
            elif not busy and not excused:
                raise Wrong(f"session, {method}, client would {fate}: {answer.status} {answer.message}")
            elif excused and method == "DeleteSession":
                cut_at = cut_at or began  # what failed may have deleted a part
            if time.monotonic() > end:
                raise Wrong(f"session, {method}: no success in {SESSION_PATIENCE} s, at last {answer.status} {answer.message}")
            fate = "finish"
            time.sleep(0.1)


class Client:
    """One client, with a tenant of its own."""

    def __init__(self, number, server, expected, tally, excuse, seed):
        self._caller = Caller(server, f"soak-{number}", f"{seed}/{number}")
        self._expected, self._tally, self._excuse = expected, tally, excuse

    def run(self, until):
        while time.monotonic() < until:
            try:
                if self._caller.random.random() < SESSIONS:
                    variant = self._caller.random.randrange(VARIANTS)
                    SessionRun(self._caller, self._tally, self._excuse, variant, self._expected.sessions[variant]).run(
                        durable=self._caller.random.random() < 0.5)
                else:
                    self._one_ask()
            except Wrong as error:
                self._tally.add_wrong(str(error))
            time.sleep(self._caller.random.uniform(0, 0.1))

    def _one_ask(self):
        place = self._caller.random.randrange(len(self._expected.asks))
        ask, fate = self._expected.asks[place], self._caller.fate(self._tally.share("cut"))
        if isinstance(ask, HttpAsk):
            answer = self._caller.post(ask, fate)
            parts = tuple(answer.responses) or ("",)
        else:
            answer = self._caller.call(ask.method, ask.messages, fate)
            parts = ask.read(answer.responses)
        self._tally.count(ask.method, "stalled" if fate == "stall" else "cut" if answer.cut else answer.status)
        if fate == "stall" and answer.status in STALL_ENDS:
            return
        if answer.status != "OK" and not answer.cut:
            raise Wrong(f"{ask.method}, client would {fate}: {answer.status} {answer.message}")
        judge(ask.method, parts, self._expected.answers[place], answer.cut)

    def finish(self):
        """After the load: deletes what calls that were cut have left."""
        try:
            clean_up(self._caller)
        except Wrong as error:
            self._tally.add_wrong(str(error))
        self._caller.close()


def clean_up(caller):
    """Deletes all sessions and snapshots of a tenant; waits for a store that has just failed."""
    end = time.monotonic() + SESSION_PATIENCE
    while True:
        answer = caller.call("ListSessions", (b"",))
        found = []
        if answer.status == "OK":
            found = [texts(one, 1).decode() for number in (1, 2) for one in sub(answer.responses[0], number)]
            if not found:
                return
            for identity in found:
                caller.call("DeleteSession", (messages.field(1, identity),))
        if time.monotonic() > end:
            raise Wrong(f"ListSessions: {answer.status} {answer.message}, {len(found)} left after {SESSION_PATIENCE} s")
        time.sleep(0.1)
