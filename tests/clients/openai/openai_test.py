"""OpenAI's own Python client against the server: completions, streams, errors, cancellation; and many streams at once."""

import asyncio
import http.client
import json
import pathlib
import random
import shutil
import tempfile
import unittest

import openai
from server_process import ROOT, Server

PROMPT = "It was late in the afternoon"
GREEDY = {"model": "demo", "prompt": PROMPT, "temperature": 0, "extra_body": {"ignore_eos": True}}


class TemplateServer(Server):
    """A server of models/demo with a chat template in its folder."""

    def __init__(self, template, *flags):
        self.folder = tempfile.TemporaryDirectory()
        model = pathlib.Path(self.folder.name) / "demo"
        shutil.copytree(ROOT / "models/demo", model)
        (model / "chat_template.jinja").write_text(template)
        super().__init__(*flags, model=model)

    def stop(self):
        status = super().stop()
        self.folder.cleanup()
        return status


class ServerTest(unittest.TestCase):
    """Tests of one server, that of serve(), with a client of it."""

    TIMEOUT = 120

    @classmethod
    def serve(cls):
        return Server()

    @classmethod
    def connect(cls):
        return openai.OpenAI(base_url=cls.server.url, api_key="none", max_retries=0, timeout=cls.TIMEOUT)

    @classmethod
    def setUpClass(cls):
        cls.server = cls.serve()
        cls.client = cls.connect()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0


class OpenAiClient(ServerTest):
    @classmethod
    def serve(cls):
        return Server("--max-sequences", "64", "--max-connections", "700", "--max-queue", "600")

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["demo"])
        self.assertEqual(self.client.models.retrieve("demo").object, "model")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("gpt")

    def test_completion_equals_the_command_line(self):
        options = ["--prompt", PROMPT, "--max-tokens", "24", "--temperature", "0", "--ignore-eos", "--logprobs", "2"]
        expected = self.server.command_line(*options)
        answer = self.client.completions.create(**GREEDY, max_tokens=24, logprobs=2)
        self.assertEqual(answer.choices[0].text, expected["text"])
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.prompt_tokens, expected["usage"]["prompt_tokens"])
        self.assertEqual(answer.usage.completion_tokens, 24)
        self.assertEqual(len(answer.choices[0].logprobs.token_logprobs), 24)

    def test_stream(self):
        # Long, since tokens that wait for the connection share an event.
        request = GREEDY | {"max_tokens": 1000}
        whole = self.client.completions.create(**request)
        events = list(self.client.completions.create(**request, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(event.choices[0].text for event in events[:-1]), whole.choices[0].text)
        self.assertGreater(len(events), 3)
        self.assertEqual(events[-1].usage, whole.usage)

    def test_n_echo_stop_seed(self):
        request = GREEDY | {"temperature": 1.0, "seed": 5}
        several = self.client.completions.create(**request, max_tokens=12, n=3, echo=True)
        self.assertEqual([choice.index for choice in several.choices], [0, 1, 2])
        self.assertTrue(all(choice.text.startswith(PROMPT) for choice in several.choices))
        self.assertEqual(len({choice.text for choice in several.choices}), 3)
        again = self.client.completions.create(**request, max_tokens=12, n=3, echo=True)
        self.assertEqual([c.text for c in several.choices], [c.text for c in again.choices])
        text = self.client.completions.create(**GREEDY, max_tokens=40).choices[0].text
        word = text.split()[5]
        stopped = self.client.completions.create(**GREEDY, max_tokens=40, stop=[word]).choices[0]
        self.assertEqual(stopped.text, text[: text.index(word)])
        self.assertEqual(stopped.finish_reason, "stop")

    def test_errors(self):
        with self.assertRaisesRegex(openai.BadRequestError, "top_p"):
            self.client.completions.create(**GREEDY | {"top_p": 2.0})
        with self.assertRaisesRegex(openai.NotFoundError, "gpt"):
            self.client.completions.create(**GREEDY | {"model": "gpt"})

    def test_a_page_of_another_name_is_refused(self):
        connection = http.client.HTTPConnection(self.server.http, timeout=60)
        connection.request("GET", "/v1/models", headers={"Host": "evil.example"})
        self.assertEqual(connection.getresponse().status, 403)
        connection.close()

    def test_a_closed_stream_frees_its_slot(self):
        stream = self.client.completions.create(**GREEDY, max_tokens=100000, stream=True)
        next(iter(stream))
        stream.close()
        self.assertTrue(self.server.becomes_idle())

    def test_512_streams_are_open_at_once(self):
        async def run():
            client = openai.AsyncOpenAI(base_url=self.server.url, api_key="none", max_retries=0, timeout=300)

            async def one(i):
                request = GREEDY | {"prompt": f"{PROMPT} {i % 8}"}
                stream = await client.completions.create(**request, max_tokens=4, stream=True)
                return "".join([event.choices[0].text async for event in stream])

            texts = await asyncio.gather(*[one(i) for i in range(512)])
            await client.close()
            return texts

        texts = asyncio.run(run())
        self.assertEqual(len(texts), 512)
        for i, text in enumerate(texts):
            self.assertEqual(text, texts[i % 8])

    def test_bad_bodies_beside_a_stream(self):
        """200 bodies that are wrong in some way get 4xx in OpenAI's shape, and a stream beside them keeps its text."""
        expected = self.client.completions.create(**GREEDY, max_tokens=2000).choices[0].text
        stream = self.client.completions.create(**GREEDY, max_tokens=2000, stream=True)
        text = next(stream).choices[0].text
        rng = random.Random(1)
        connection = http.client.HTTPConnection(self.server.http, timeout=60)
        for i in range(200):
            body = bad_body(rng, i)
            connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            error = json.loads(answer.read())["error"]
            self.assertIn(answer.status, (400, 404, 413), body[:80])
            self.assertIsInstance(error["message"], str)
            self.assertIn("type", error)
        connection.close()
        self.assertEqual(text + "".join(event.choices[0].text for event in stream), expected)


def bad_body(rng, i):
    good = {"prompt": PROMPT, "max_tokens": 5, "temperature": 0.5, "n": 1, "stop": ["x"], "logit_bias": {"5": 1}}
    kind = i % 8
    if kind == 0:  # truncated
        text = json.dumps(good)
        return text[: rng.randrange(len(text))].encode()
    if kind == 1:  # a wrong type
        field = rng.choice(["prompt", "max_tokens", "temperature", "n", "logit_bias", "stop"])
        return json.dumps(good | {field: rng.choice([True, {"a": [1]}, [[["x"]]], [{}]])}).encode()
    if kind == 2:  # out of range
        field, value = rng.choice([("max_tokens", -1), ("n", 0), ("n", 65), ("temperature", 1e9), ("top_p", 0), ("min_p", 2)])
        return json.dumps(good | {field: value}).encode()
    if kind == 3:  # deep
        return ('{"prompt": ' + "[" * rng.randrange(1000, 200000)).encode()
    if kind == 4:  # no number
        return json.dumps(good | {"temperature": rng.choice([float("nan"), float("inf")])}).encode()
    if kind == 5:  # not UTF-8
        return json.dumps(good).encode().replace(b"late", rng.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5"]))
    if kind == 6:  # huge integers, mistyped fields
        return json.dumps(good | rng.choice([{"max_tokens": 10**30}, {"seed": 10**25}, {"max_token": 1}, {"prompt": [2**63]}])).encode()
    return json.dumps(good | {"prompt": [rng.choice([-1, 4096, 10**9])]}).encode()


if __name__ == "__main__":
    unittest.main()
