"""A client of sessions that keeps a ledger of what the server has acknowledged."""

import http2
import messages


class SessionClient:
    def __init__(self, address, tenant="owner"):
        self._address, self._metadata = address, [("x-tenant-id", tenant)]
        self._connection = None
        self.acknowledged = {}  # id -> tokens of the last answer
        self.uncertain = set()  # ids of sessions of which an append was perhaps made
        self.spoken = []  # (call, status, message) of every error

    def connect(self, address=None):
        """Again, to a server that was started again."""
        self.close()
        self._address = address or self._address

    def close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self):
        if self._connection is None or self._connection.closed:
            self._connection = http2.Connection(self._address)
        return self._connection

    def _note(self, what, status, message):
        if status != "OK":
            self.spoken.append((what, status, message))
        return status

    def unary(self, method, message=b"", timeout=60):
        try:
            status, response, text = self._open().unary(method, message, self._metadata, timeout)
        except http2.Closed as error:
            status, response, text = "UNAVAILABLE", None, str(error)
        self._note(method, status, text)
        return status, response

    def create(self, durable=True):
        """(status, id)"""
        status, session = self.unary("CreateSession", messages.field(1, int(durable)))
        if status != "OK":
            return status, None
        identity = messages.session_id(session)
        self.acknowledged[identity] = 0
        return status, identity

    def append(self, session, text, timeout=60):
        try:
            call = self._open().call("Append", self._metadata)
            call.send(messages.append_request(session, text), end=True)
            tokens = None
            while (got := call.receive(timeout)) is not None:
                for event in messages.parse(got[1]).get(2, ()):
                    tokens = messages.session_tokens(event)
            status, message = call.status, call.message
        except http2.Closed as error:
            status, message, tokens = "UNAVAILABLE", f"connection closed: {error}", None
        if status == "OK":
            self.acknowledged[session] = tokens
            self.uncertain.discard(session)
        elif "unknown" in message or "closed" in message or status in ("CANCELLED", "DEADLINE_EXCEEDED"):
            self.uncertain.add(session)
        return self._note("Append", status, message)

    def listed(self):
        """(status, id -> tokens)"""
        status, response = self.unary("ListSessions")
        found = {}
        if status == "OK":
            for session in messages.parse(response).get(1, ()):
                found[messages.session_id(session)] = messages.session_tokens(session)
        return status, found

    def lost(self):
        """What was acknowledged and is not there, or was refused and is there, or cannot be continued: texts."""
        status, found = self.listed()
        if status != "OK":
            return [f"ListSessions: {status}"]
        wrong = []
        for session, tokens in list(self.acknowledged.items()):
            if found.get(session, -1) < tokens:
                wrong.append(f"session {session}: acknowledged {tokens} tokens, listed {found.get(session)}")
            elif found[session] > tokens and session not in self.uncertain:
                wrong.append(f"session {session}: {found[session] - tokens} tokens of a refused append")
            elif (status := self.append(session, "and")) != "OK":
                wrong.append(f"session {session}: Append {status}")
        return wrong
