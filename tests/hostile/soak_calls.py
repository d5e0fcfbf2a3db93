"""Calls of soak.py: what is asked, how an answer is read, and clients that finish, cancel or stall."""

import dataclasses
import http.client
import json
import random
import socket
import time

import http2
import messages

# Chances of a call, so that at least 20% and 5% of all calls are cancelled and stalled. What a session needs is called again until
# it succeeds, and some calls end before the client goes: more on a faster machine, so that clients go less often while enough
# calls were cut.
CANCEL, CANCEL_ENOUGH, STALL = 0.6, 0.3, 0.085
ENOUGH = 0.22  # of the calls
STALL_SECONDS = 2  # --stall-deadline
PATIENCE = 60  # seconds for an answer
LATEST_CANCEL = 0.01  # seconds after the call; half of the cancelled calls end at once
# What a stalled client is told. A connection whose message stops halfway is closed.
STALL_ENDS = {"ABORTED", "CANCELLED", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL", "DEADLINE_EXCEEDED"}


def sub(message, number):
    """The values of a field of messages, one after the other."""
    return messages.parse(message).get(number, [])


def texts(message, number):
    return b"".join(sub(message, number))


# --- how answers are read: a tuple of sequences. Of a call that was cancelled each is a beginning. ---


def read_deltas(responses):
    """Tokens and text of Complete."""
    tokens, text = [], b""
    for response in responses:
        tokens += messages.delta_tokens(response)
        for part in (*sub(response, 1), *sub(response, 3)):
            text += texts(part, 1)
    return tuple(tokens), text


def read_with_state(responses):
    """Tokens and text, and the bytes of the state that follows them."""
    return *read_deltas(responses), b"".join(texts(response, 4) for response in responses)


def read_unary(responses):
    """Text, tokens and log-probabilities of CompleteUnary."""
    return tuple(b"".join(texts(response, number) for response in responses) for number in (1, 2, 3))


def read_score(responses):
    """The log-probabilities, bit for bit."""
    return (b"".join(texts(logprobs, 2) for response in responses for logprobs in sub(response, 1)),)


def read_tokens(responses):
    return tuple(b"".join(texts(response, number) for response in responses) for number in (1, 2))


@dataclasses.dataclass(frozen=True)
class Ask:
    """A call of gRPC whose answer is always the same."""
    method: str
    messages: tuple
    read: object


@dataclasses.dataclass(frozen=True)
class HttpAsk:
    """A completion over HTTP, or an answer in a chat."""
    body: str
    stream: bool
    path: str = "/v1/completions"

    @property
    def chat(self):
        return self.path == "/v1/chat/completions"

    @property
    def method(self):
        return "HTTP chat" if self.chat else "HTTP"

    def text_of(self, choice):
        """Of a choice of a response, or of an event of a stream."""
        if not self.chat:
            return choice["text"]
        return choice["delta" if self.stream else "message"].get("content") or ""


PROMPTS = ("It was a fine morning in May, and", "The old man said that", "In the beginning of winter the river",
           "A letter came for her. She opened it and", "The bell in the church rang when")
LONG = " ".join(PROMPTS[number % len(PROMPTS)] + f" the {number} of them went on." for number in range(60))  # about 1,000 tokens
STATE_CHUNK = 1 << 20

RETURN_STATE = messages.field(23, 1)  # of CompleteRequest
SCHEMA = json.dumps({"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "old": {"type": "boolean"}},
                     "required": ["name", "old"]})
CHAT_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}</s>{% endfor %}"


def every_ask():
    """The calls without a session: completions of several lengths, scores, tokens."""
    asks = []
    for seed, prompt in enumerate(PROMPTS):
        asks += [Ask("Complete", (messages.complete_request(prompt, length, seed),), read_deltas) for length in (2, 24, 160)]
        asks.append(Ask("CompleteUnary", (messages.complete_request(prompt, 24, seed, echo=True, logprobs=2),), read_unary))
        asks.append(Ask("Score", tuple(messages.field(1, part) for part in (prompt, " and so on", prompt)), read_score))
        body = {"model": "demo", "prompt": prompt, "max_tokens": 24, "seed": seed, "temperature": 0.8, "ignore_eos": True}
        asks += [HttpAsk(json.dumps({**body, "stream": stream}), stream) for stream in (False, True)]
    asks.append(Ask("Complete", (messages.complete_request(LONG, 8, 1),), read_deltas))
    asks.append(Ask("Score", tuple(messages.field(1, LONG[at:at + 700]) for at in range(0, len(LONG), 700)), read_score))
    asks += [Ask("Tokenize", (messages.field(1, text),), read_tokens) for text in (PROMPTS[0], LONG * 8)]
    # In chunks, and with a state that the client keeps (every_ask_with).
    parts = [messages.field(2, messages.complete_request("", 24, 3))]
    parts += [messages.field(3, LONG[at:at + 900]) for at in range(0, 1800, 900)]
    asks.append(Ask("CompleteStream", tuple(parts), read_deltas))
    asks.append(Ask("CompleteWithState", (messages.field(2, messages.complete_request(PROMPTS[2], 12, 3) + RETURN_STATE),),
                    read_with_state))
    # Structured output: masks of grammars that are compiled before the load, and kept.
    for seed, grammar in enumerate((messages.field(3, "[a-z ]{30,60}"), messages.field(1, SCHEMA))):
        request = messages.complete_request(PROMPTS[seed], 40, seed, ignore_eos=False) + messages.field(26, grammar)
        asks.append(Ask("Complete", (request,), read_deltas))
    body = {"model": "demo", "max_tokens": 24, "seed": 5, "temperature": 0.8}
    asks.append(HttpAsk(json.dumps({**body, "prompt": PROMPTS[3], "guided_choice": ["the bell", "the river"]}), False))
    for stream in (False, True):
        chat = {**body, "messages": [{"role": "user", "content": PROMPTS[4]}], "ignore_eos": True, "stream": stream}
        asks.append(HttpAsk(json.dumps(chat), stream, "/v1/chat/completions"))
    return asks


def every_ask_with(state):
    """The calls that continue a state which the server has returned."""
    chunks = tuple(messages.field(1, state[at:at + STATE_CHUNK]) for at in range(0, len(state), STATE_CHUNK))
    return [Ask("CompleteWithState", (*chunks, messages.field(2, messages.complete_request(PROMPTS[0], 12, 4))), read_deltas),
            Ask("CompleteStream", (*chunks, messages.field(2, messages.complete_request("", 12, 4)), messages.field(3, PROMPTS[1])),
                read_deltas)]


@dataclasses.dataclass
class Answer:
    status: str
    message: str = ""
    responses: list = dataclasses.field(default_factory=list)
    cut: bool = False  # the client went away, or stalled and was ended: what the server did is not known


class Caller:
    """Calls of one client, each finished, cancelled or stalled by chance."""

    def __init__(self, server, tenant, seed):
        self._address, self._http = server.grpc, server.http
        self._metadata = [("x-tenant-id", tenant)]
        self.random = random.Random(seed)
        self._connection, self._calls = None, 0

    def close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self):
        self._calls += 1
        if self._calls % 100 == 0:
            self.close()
        if self._connection is None or self._connection.closed:
            self.close()
            self._connection = http2.Connection(self._address)
        return self._connection

    def fate(self, cut):
        """cut: the share of all clients' calls that were cut."""
        chance = self.random.random()
        cancel = CANCEL if cut < ENOUGH else CANCEL_ENOUGH
        return "cancel" if chance < cancel else "stall" if chance < cancel + STALL else "finish"

    # --- gRPC ---

    def call(self, method, requests, fate="finish"):
        if fate == "stall":
            return self._stalled(method, requests)
        responses = []
        try:
            call = self._open().call(method, self._metadata)
            if fate == "cancel":
                return self._cancelled(call, requests, responses)
            for number, request in enumerate(requests, 1):
                call.send(request, end=number == len(requests), timeout=PATIENCE)
            self._receive(call, responses, time.monotonic() + PATIENCE)
            return Answer(call.status, call.message, responses)
        except http2.Closed as error:
            return Answer("UNAVAILABLE", f"connection closed: {error}", responses)
        except TimeoutError as error:
            self.close()
            return Answer("no answer", str(error), responses)

    @staticmethod
    def _receive(call, responses, end):
        """Until the call has ended. TimeoutError at the time `end`."""
        while (got := call.receive(max(0.0, end - time.monotonic()))) is not None:
            responses.append(got[1])

    def _cancelled(self, call, requests, responses):
        """Sends all or a part, and goes some time later, by RST_STREAM or with the connection."""
        end = time.monotonic() + max(0.0, self.random.uniform(-LATEST_CANCEL, LATEST_CANCEL))
        part = self.random.random() < 0.25
        try:
            for number, request in enumerate(requests, 1):
                call.send(request, end=number == len(requests) and not part)
            self._receive(call, responses, end)
            return Answer(call.status, call.message, responses)
        except TimeoutError:
            if self.random.random() < 0.8:
                call.cancel()
            else:
                self.close()
            return Answer("CANCELLED", "by the client", responses, cut=True)

    def _stalled(self, method, requests):
        """Reads no answer, or stops in the middle of its last message, until the server ends the call."""
        reads = self.random.random() < 0.5
        connection = http2.Connection(self._address, window=(1 << 24) if reads else 0)
        responses = []
        try:
            call = connection.call(method, self._metadata)
            for request in requests[:-1]:
                call.send(request)
            last = b"\0" + len(requests[-1]).to_bytes(4, "big") + requests[-1]
            call.send_bytes(last[:(len(last) + 1) // 2] if reads else last, end=not reads)
            self._receive(call, responses, time.monotonic() + PATIENCE)
            return Answer(call.status, call.message, responses, cut=True)
        except http2.Closed as error:
            return Answer("UNAVAILABLE", f"connection closed: {error}", responses, cut=True)
        except TimeoutError as error:
            return Answer("no answer", str(error), responses)
        finally:
            connection.close()

    # --- HTTP ---

    def post(self, ask, fate="finish"):
        """An Answer whose only response is the text."""
        connection = http.client.HTTPConnection(*self._http, timeout=PATIENCE)
        body = ask.body.encode()
        try:
            connection.putrequest("POST", ask.path)
            for name, value in (("content-type", "application/json"), ("content-length", str(len(body))), *self._metadata):
                connection.putheader(name, value)
            connection.endheaders()
            connection.send(body[:len(body) // 2] if fate == "stall" else body)
            if fate == "cancel":
                connection.sock.settimeout(max(0.001, self.random.uniform(-LATEST_CANCEL, LATEST_CANCEL)))
            response = connection.getresponse()
            text = self._streamed(ask, response) if ask.stream and response.status == 200 else self._whole(ask, response)
            if fate == "stall":
                return Answer("CANCELLED", f"HTTP {response.status}", cut=response.status != 200)
            return Answer("OK" if response.status == 200 else f"HTTP {response.status}", text, [text])
        except (socket.timeout, ConnectionError, http.client.HTTPException) as error:
            ended = fate == "cancel" or (fate == "stall" and not isinstance(error, socket.timeout))
            return Answer("CANCELLED" if ended else "UNAVAILABLE", f"{type(error).__name__} {error}", cut=ended)
        finally:
            connection.close()

    @staticmethod
    def _whole(ask, response):
        body = response.read().decode()
        return ask.text_of(json.loads(body)["choices"][0]) if response.status == 200 else body

    @staticmethod
    def _streamed(ask, response):
        text, ended = "", False
        while line := response.readline():
            data = line.decode().strip().removeprefix("data: ")
            ended = ended or data == "[DONE]"
            if data.startswith("{"):
                text += "".join(map(ask.text_of, json.loads(data)["choices"]))
        return text if ended else text + " [no end]"
