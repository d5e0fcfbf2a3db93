"""The largest requests of each door: what each makes the server hold at most. A door is a function of the requests that are sent
at once, each a function of the target that sends one and returns its outcome."""

import http.client
import json
import threading

import http2
import messages
from messages import field

MIB = 1 << 20
LARGEST = 4 * MIB  # of a body and of a message: the defaults of --max-body-bytes and --max-message-bytes
PATIENCE = 60.0
CHAT_TEMPLATE = ("{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}"
                 "{% if add_generation_prompt %}<s>assistant:{% endif %}")


class Target:
    """`source`: the address that requests come from."""

    def __init__(self, server, source="127.0.0.1"):
        self.server, self.source = server, source

    def post(self, path, body):
        """The status of a POST whose answer is read to its end."""
        connection = http.client.HTTPConnection(*self.server.http, timeout=PATIENCE, source_address=(self.source, 0))
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            while answer.read(MIB):
                pass
            return str(answer.status)
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()

    def call(self, method, *parts):
        """The status of a call of these messages whose responses are read to their end."""
        connection = None
        try:
            connection = http2.Connection(self.server.grpc, source=self.source)
            call = connection.call(method)
            for part in parts:
                call.send(part, timeout=PATIENCE)
            call.half_close()
            while call.receive(PATIENCE) is not None:
                pass
            return call.status
        except (OSError, http2.Closed, TimeoutError) as error:
            return type(error).__name__
        finally:
            if connection is not None:
                connection.close()


def at_once(server, sends, threads=24):
    """Sends requests from a few addresses at once; the outcomes with their counts."""
    outcomes, lock, left = {}, threading.Lock(), list(enumerate(sends))

    def work():
        while True:
            with lock:
                if not left or not server.alive():
                    return
                number, send = left.pop(0)
            outcome = send(Target(server, f"127.0.0.{2 + number % 4}"))
            with lock:
                outcomes[outcome] = outcomes.get(outcome, 0) + 1

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return outcomes


def filled(form, unit, size=LARGEST):
    """`form` with as many `unit` in place of "@", separated by commas, as fit in `size` bytes."""
    count = (size - len(form)) // (len(unit) + 1)
    return form.replace("@", ",".join([unit] * count))


def keys(form, value, size=LARGEST):
    """`form` with members of distinct keys in place of "@"."""
    count = (size - len(form)) // (len(value) + 11)
    return form.replace("@", ",".join(f'"{number:07d}":{value}' for number in range(count)))


def posts(path, body, times=24):
    body = body if isinstance(body, (str, bytes)) else json.dumps(body)
    return [lambda target: target.post(path, body)] * times


def calls(method, *parts, times=24):
    return [lambda target: target.call(method, *parts)] * times


# --- OpenAI's paths ---

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
PATHS = {COMPLETIONS: '{"max_tokens":1,"prompt":"x"', CHAT: '{"max_tokens":1,"messages":[{"role":"user","content":"x"}]',
         RESPONSES: '{"max_output_tokens":1,"store":false,"input":"x"'}


def odd_json():
    """Bodies whose values take many times their text."""
    units = ("[]", "{}", '""', "1", '{"":1}', "[[[[1]]]]")
    for path, begin in PATHS.items():
        for unit in units:
            yield from posts(path, filled(begin + ',"metadata":{"a":[@]}}', unit), 4)
        yield from posts(path, keys(begin + ',"metadata":{@}}', "1"), 4)
    for path in ("/tokenize", "/detokenize"):
        yield from posts(path, filled('{"prompt":[@]}', "[]"), 4)
    yield from posts("/detokenize", filled('{"tokens":[@]}', "1"), 4)


def prompts_beside(name, value):
    """256 prompts beside a field that is copied for each."""
    body = json.dumps({"prompt": ["x"] * 256, "max_tokens": 1, name: "@"})
    return posts(COMPLETIONS, body.replace('"@"', value), 6)


def many_prompts():
    yield from prompts_beside("stop", json.dumps("s" * (LARGEST - 4096)))
    yield from prompts_beside("stop", json.dumps(["s" * 1000] * 4000))
    yield from prompts_beside("stop_token_ids", json.dumps([7] * MIB))
    yield from prompts_beside("logit_bias", json.dumps({str(number): 1 for number in range(4096)}))
    yield from prompts_beside("guided_regex", json.dumps("r" * (LARGEST - 4096)))
    yield from prompts_beside("guided_grammar", json.dumps("g" * (LARGEST - 4096)))
    yield from prompts_beside("guided_choice", json.dumps(["c" * 100] * 38000))
    yield from prompts_beside("guided_json", json.dumps({"type": "string", "description": "d" * (LARGEST - 4096)}))
    yield from prompts_beside("session", json.dumps("s" * (LARGEST - 4096)))
    yield from prompts_beside("resume_token", json.dumps("s" * (LARGEST - 4096)))
    yield from prompts_beside("cache", json.dumps({"points": list(range(1, 400000))}))
    yield from posts(COMPLETIONS, {"prompt": ["p" * 16000] * 256, "max_tokens": 1}, 8)
    yield from posts(COMPLETIONS, filled('{"max_tokens":1,"prompt":[@]}', "7"), 8)


def chats(size=LARGEST):
    long = "It was a fine morning. " * ((size - 4096) // 23)
    for path, name, kind in ((CHAT, "messages", "text"), (RESPONSES, "input", "input_text")):
        limit = {"max_tokens": 1} if path == CHAT else {"max_output_tokens": 1}
        yield from posts(path, {name: [{"role": "user", "content": long}], **limit})
        yield from posts(path, {name: [{"role": "user", "content": "x"}] * (size // 42), **limit}, 8)
        yield from posts(path, {name: [{"role": "user", "content": [{"type": kind, "text": "x"}] * (size // 42)}], **limit}, 8)
        yield from posts(path, keys(json.dumps({name: [{"role": "user", "content": "x"}], **limit})[:-1]
                                    + ',"chat_template_kwargs":{@}}', "1", size), 8)
        yield from posts(path, filled(json.dumps({name: [{"role": "user", "content": "x"}], **limit})[:-1]
                                      + ',"chat_template_kwargs":{"a":[@]}}', "[]", size), 8)
    yield from posts(RESPONSES, {"input": "x", "instructions": long, "max_output_tokens": 1, "stream": True})


def smaller_chats():
    """Which fit, some of them."""
    yield from chats(MIB)
    yield from chats(MIB // 8)


def echoes():
    """Responses that repeat a field of the request."""
    large = "v" * (LARGEST - 4096)
    common = {"input": "x", "max_output_tokens": 1, "store": False}
    for stream in (False, True):
        yield from posts(RESPONSES, {**common, "stream": stream, "metadata": {"a": large}}, 12)
        yield from posts(RESPONSES, {**common, "stream": stream, "text": {"format": {
            "type": "json_schema", "name": "x", "schema": {"type": "string", "description": large}}}}, 12)
    yield from posts(RESPONSES, keys(json.dumps(common)[:-1] + ',"metadata":{@}}', '"v"'), 12)
    yield from posts(RESPONSES, filled(json.dumps(common)[:-1] + ',"metadata":{"a":[@]}}', "[]"), 12)


def fan_outs():
    """Small requests for large answers."""
    text = "It was a fine morning in May, and the birds sang. " * 220
    for stream in (False, True):
        yield from posts(COMPLETIONS, {"prompt": text, "echo": True, "logprobs": 20, "n": 64, "max_tokens": 1, "stream": stream}, 6)
        yield from posts(COMPLETIONS, {"prompt": [text] * 16, "echo": True, "logprobs": 20, "n": 4, "max_tokens": 1,
                                       "stream": stream}, 6)
        yield from posts(COMPLETIONS, {"prompt": "x" * 80000, "echo": True, "n": 64, "max_tokens": 1, "stream": stream}, 6)


def texts(size=LARGEST):
    yield from posts("/tokenize", {"prompt": "a b " * (size // 4 - 1024), "return_token_strs": True})
    yield from posts("/tokenize", {"prompt": "\U0001f600" * (size // 12 - 1024)}, 8)
    yield from posts("/detokenize", filled('{"tokens":[@]}', "7", size))


def smaller_texts():
    """Which fit, some of them."""
    yield from texts(MIB // 2)


def pages():
    """The JSON forms of messages on the status page."""
    size = MIB - 4096
    yield from posts("/api/sessions/fork", json.dumps({"session": "x" * size}))
    yield from posts("/api/sessions/fork", filled('{"session":[@]}', '""', size))
    yield from posts("/api/sessions/list", "[" * size)
    yield from posts("/api/sessions/list", '{"a":' * (size // 5))


# --- RPCs ---

def completions():
    text = field(1, field(1, "a b " * (LARGEST // 4 - 1024)))
    one = field(1, field(1, "x")) + field(3, 1)
    for method in ("Complete", "CompleteUnary"):
        yield from calls(method, text + field(3, 1))
        yield from calls(method, one + field(4, "") * (LARGEST // 2 - 100), times=8)
        yield from calls(method, one + field(4, "s" * (LARGEST - 1000)), times=8)
        yield from calls(method, one + field(2, b"".join(
            field(8, field(1, number % 4096) + field(2, 1.0)) for number in range(LARGEST // 14))), times=8)
        yield from calls(method, one + field(5, b"\1" * (LARGEST - 1000)), times=8)
        yield from calls(method, field(1, field(2, field(1, b"\1" * (LARGEST - 1000)))) + field(3, 1), times=8)
    echo = messages.complete_request("It was a fine morning in May. " * 400, 1, echo=True, logprobs=20) + field(10, 64)
    for method in ("Complete", "CompleteUnary"):
        yield from calls(method, echo, times=8)


def text_calls():
    yield from calls("Tokenize", field(1, "a b " * (LARGEST // 4 - 1024)), times=8)
    yield from calls("Tokenize", field(1, "\xe4" * (LARGEST // 16)), times=8)
    yield from calls("Detokenize", field(1, b"\7" * (LARGEST - 1024)))
    yield from calls("Score", field(2, field(1, b"\xff\x7f" * (LARGEST // 2 - 1024))))
    yield from calls("CompleteStream", field(1, field(3, 1)), *[field(2, "a b " * (MIB // 4 - 16))] * 8)


def many_fields():
    """Messages whose fields take many times their bytes."""
    for method in ("CreateSession", "ForkSession", "ListSessions", "GetModel", "Tokenize", "Detokenize", "CompleteUnary"):
        yield from calls(method, field(3000, 1) * (LARGEST // 3 - 100), times=4)
        yield from calls(method, field(3000, "") * (LARGEST // 3 - 100), times=4)
        yield from calls(method, (b"\xc3\xbb\x0b\xc4\xbb\x0b") * (LARGEST // 6 - 100), times=4)  # empty groups
    yield from calls("CompleteUnary", field(20, "s") + field(280, "") * (LARGEST // 3 - 100), times=4)


def states():
    """States that come and go, many at once."""
    parts = []

    def state_of(target):
        connection = http2.Connection(target.server.grpc)
        call = connection.call("Complete")
        call.send(field(1, field(1, "It was a fine morning. " * 40)) + field(3, 1) + field(23, 1), end=True)
        while (got := call.receive(PATIENCE)) is not None:
            parts.extend(messages.parse(got[1]).get(4, ()))
        connection.close()
        return call.status

    def round_trip(target):
        request = field(2, field(1, field(1, " and")) + field(3, 1) + field(23, 1))
        return target.call("CompleteWithState", *[field(1, part) for part in parts], request)

    def endless(target):
        return target.call("CompleteWithState", *[field(1, b"x" * MIB)] * 64)

    return [state_of] + [round_trip] * 120 + [endless] * 24


def gateway():
    generate = "/vllm.grpc.engine.VllmEngine/Generate"
    sampling = field(8, 1)
    yield from calls(generate, field(2, field(2, b"\7" * (LARGEST - 1024))) + field(4, sampling))
    yield from calls(generate, field(2, field(1, "t" * (LARGEST - 1024)) + field(2, b"\7")) + field(4, sampling), times=8)
    yield from calls(generate, field(3, "a b " * (LARGEST // 4 - 1024)) + field(4, sampling))
    yield from calls(generate, field(3, "x") + field(4, sampling + field(10, "") * (LARGEST // 2 - 100)), times=8)
    yield from calls(generate, field(3, "x") + field(4, sampling + field(17, "r" * (LARGEST - 1024))), times=8)
    yield from calls(generate, field(3, "It was a fine morning. " * 500) + field(4, sampling + field(15, 64) + field(22, 20)
                                                                           + field(23, 20)), times=8)
    yield from calls("/vllm.grpc.engine.VllmEngine/GetTokenizer", b"", times=48)
    yield from calls("/vllm.grpc.engine.VllmEngine/Abort", field(1, "") * (LARGEST // 2 - 100), times=8)


DOORS = {door.__name__: door for door in (odd_json, many_prompts, chats, smaller_chats, echoes, fan_outs, texts, smaller_texts, pages,
                                          completions, text_calls, many_fields, states, gateway)}
