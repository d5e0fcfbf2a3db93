"""Chat of the client: against a scripted HTTP server, and the real server with the plain template."""

import http.server
import json
import threading
import unittest

from support import ClientTest, Server, for_both, wait_until

import polysketch

RUNNING = "polysketch_num_requests_running"


def sse(*events):
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def chunk(content=None, finish=None, **delta):
    return {"choices": [{"index": 0, "delta": {"content": content, **delta}, "finish_reason": finish}]}


def completed(name, text="", *items, kind="response.completed"):
    usage = {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 3}}
    return sse({"type": "response.output_text.delta", "delta": text},
               {"type": kind, "response": {"id": name, "output": list(items), "usage": usage}})


def refusal(status, **error):
    return status, json.dumps({"error": {"message": "no", "param": None, "code": None} | error}).encode()


class Scripted(http.server.ThreadingHTTPServer):
    """Answers each request with the next item: bytes of events, or a status and a body. `requests` records them."""

    def __init__(self, *script):
        self.script, self.requests = list(script), []
        super().__init__(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def stop(self):
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.requests.append((self.command, self.path, json.loads(body or b"null"), self.headers))
        answer = self.server.script.pop(0) if self.server.script else b"{}"
        status, data = answer if isinstance(answer, tuple) else (200, answer)
        self.send_response(status)
        self.send_header("x-request-id", "r-1")
        if status == 503:
            self.send_header("retry-after-ms", "1")
        self.end_headers()
        self.wfile.write(data)

    do_DELETE = do_POST

    def log_message(self, *_):
        pass


@for_both
class Script(ClientTest):
    def serve(self, *script):
        server = Scripted(*script)
        self.addCleanup(server.stop)
        return server, self.client("127.0.0.1:1", http=server.address, api_key="key")

    def test_the_request_and_the_answer(self):
        usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
        server, client = self.serve(sse(chunk("Hel", reasoning_content="Hm"), chunk("lo"), chunk(finish="stop"),
                                        {"choices": [], "usage": usage}))
        stream = client.chat("Hi", system="Be kind", temperature=0, max_tokens=None)
        self.assertEqual(list(stream), ["Hel", "lo"])
        answer = stream.result()
        self.assertEqual((answer.text, answer.reasoning, answer.finish_reason), ("Hello", "Hm", "stop"))
        self.assertEqual(answer.usage, polysketch.Usage(7, 2, 4))
        method, path, body, headers = server.requests[0]
        self.assertEqual((method, path, headers["authorization"]), ("POST", "/v1/chat/completions", "Bearer key"))
        self.assertEqual(body, {"messages": [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi"}],
                                "temperature": 0, "stream": True, "stream_options": {"include_usage": True}})

    def test_calls_of_tools(self):
        parts = [{"index": 0, "id": "c1", "function": {"name": "clock", "arguments": '{"a"'}},
                 {"index": 0, "function": {"arguments": ": 1}"}},
                 {"index": 1, "id": "c2", "function": {"name": "map", "arguments": "{}"}}]
        _, client = self.serve(sse(*(chunk(tool_calls=[part]) for part in parts), chunk(finish="tool_calls")))
        answer = client.chat([{"role": "user", "content": "When?"}], tools=[]).result()
        self.assertEqual(answer.tool_calls, [polysketch.ToolCall("c1", "clock", '{"a": 1}'),
                                             polysketch.ToolCall("c2", "map", "{}")])
        self.assertEqual(answer.finish_reason, "tool_calls")

    def test_errors(self):
        _, client = self.serve(refusal(400, message="n: expected 1", param="n", code="INVALID_ARGUMENT"),
                               refusal(503, code="DRAINING"), sse(chunk("a", "length")), (502, b"<html>"),
                               sse({"error": {"message": "draining", "code": "DRAINING"}}))
        error = self.raises(polysketch.InvalidArgumentError, lambda: client.chat("Hi", n=2).result())
        self.assertEqual((error.message, error.reason, error.fields, error.request_id),
                         ("n: expected 1", "INVALID_ARGUMENT", {"n": "n: expected 1"}, "r-1"))
        self.assertEqual(client.chat("Hi").result().finish_reason, "length")  # after the refusal
        self.assertIn("502", self.raises(polysketch.RpcError, lambda: client.chat("Hi").result()).message)
        self.assertEqual(self.raises(polysketch.RpcError, lambda: client.chat("Hi").result()).reason, "DRAINING")
        _, client = self.serve(sse(chunk("a")))
        error = self.raises(polysketch.UnavailableError, lambda: client.chat("Hi").result())
        self.assertEqual(error.message, "expected the end of the answer, found that of the connection")
        absent = self.client("127.0.0.1:1", http="1", retry=None)
        self.raises(polysketch.UnavailableError, lambda: absent.chat("Hi").result())
        error = self.raises(TypeError, lambda: client.chat(5).result())
        self.assertEqual(str(error), "messages: expected a text (str) or messages as {'role': ..., 'content': ...}, found 5")

    def test_a_conversation_sends_what_is_new(self):
        call = {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": "{}"}
        lost = refusal(404, param="previous_response_id")
        server, client = self.serve(completed("resp_1", "One"), completed("resp_2", "", call), b"{}",
                                    completed("resp_3", "Noon"), b"{}", lost, completed("resp_4", "Yes"))
        with client.conversation(system="Be kind", max_tokens=9) as talk:
            self.assertEqual(talk.say("Hi").result().text, "One")
            answer = talk.say("When?").result()
            self.assertEqual((answer.finish_reason, answer.usage), ("tool_calls", polysketch.Usage(5, 2, 3)))
            self.assertEqual(talk.return_results({answer.tool_calls[0].id: "noon"}).result().text, "Noon")
            self.assertEqual(talk.say("Sure?").result().text, "Yes")
            messages = list(talk.messages)
        user = lambda text: {"role": "user", "content": text}
        output = {"type": "function_call_output", "call_id": "c1", "output": "noon"}
        said = [user("Hi"), {"role": "assistant", "content": "One"}, user("When?"), call, output,
                {"role": "assistant", "content": "Noon"}, user("Sure?"), {"role": "assistant", "content": "Yes"}]
        self.assertEqual(messages, said)
        posts = [body for method, _, body, _ in server.requests if method == "POST"]
        self.assertEqual(posts[0], {"instructions": "Be kind", "max_output_tokens": 9, "stream": True, "input": said[:1]})
        self.assertEqual([body.get("previous_response_id") for body in posts], [None, "resp_1", "resp_2", "resp_3", None])
        self.assertEqual([body["input"] for body in posts[1:]], [said[2:3], [output], said[6:7], said[:7]])
        deleted = [path for method, path, _, _ in server.requests if method == "DELETE"]
        self.assertEqual(sorted(deleted), [f"/v1/responses/resp_{i}" for i in (1, 2, 3, 4)])

    def test_a_fork_goes_on_apart(self):
        server, client = self.serve(completed("resp_1", "One"), completed("resp_2", "Two"), completed("resp_3", "Three"))
        talk = client.conversation()
        talk.say("Hi").result()
        fork = talk.fork()
        fork.say("a").result()
        talk.say("b").result()
        self.assertEqual([len(body["input"]) for _, _, body, _ in server.requests[:3]], [1, 3, 1])
        self.assertEqual(server.requests[2][2]["previous_response_id"], "resp_1")
        self.assertEqual([one["content"] for one in fork.messages], ["Hi", "One", "a", "Two"])
        self.assertEqual([one["content"] for one in talk.messages], ["Hi", "One", "b", "Three"])


@for_both
class RealServer(ClientTest):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--http-listen=0", "--chat-template=plain")
        cls.addClassCleanup(cls.server.stop)

    def setUp(self):
        self.api = self.client(self.server.target, http=self.server.http)

    def complete(self, prompt):
        stop = ["\nUser:", "\nAssistant:"]
        return self.api.complete(prompt, max_tokens=12, temperature=0, stop=stop).result().text

    def test_an_answer_is_that_of_the_rendered_prompt(self):
        answer = self.api.chat("It was late", system="Be kind", max_tokens=12, temperature=0).result()
        self.assertEqual(answer.text, self.complete("Be kind\n\nUser: It was late\nAssistant:"))
        self.assertEqual(answer.usage.completion_tokens, 12)
        error = self.raises(polysketch.InvalidArgumentError,
                            lambda: self.api.chat("Hi", temperature=-1).result())
        self.assertIn("temperature", error.message)

    def test_a_conversation(self):
        with self.api.conversation(max_tokens=12, temperature=0) as talk:
            first = talk.say("It was late").result().text
            second = talk.say("Why?").result().text
        prompt = "User: It was late\nAssistant:"
        self.assertEqual(first, self.complete(prompt))
        self.assertEqual(second, self.complete(f"{prompt} {first.strip()}\nUser: Why?\nAssistant:"))

    def test_close_cancels(self):
        with self.api.chat("It was late", ignore_eos=True, max_tokens=100000, temperature=0) as stream:
            for _ in stream:
                break
        wait_until(lambda: self.server.metric(RUNNING) == 0, "the end of the request")


if __name__ == "__main__":
    unittest.main()
