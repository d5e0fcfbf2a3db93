"""PyPI's gateway smg before two replicas that share a state store, driven by OpenAI's own Python client."""

import concurrent.futures
import contextlib
import itertools
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import openai
from chat_test import MESSAGES, TEMPLATE
from openai_test import GREEDY
from server_process import ROOT, Proxy, Server, free_port

SMG = pathlib.Path(sys.executable).parent / "smg"
# The text that two prompts share: longer than the part by which the gateway tells prompts apart.
CONTEXT = "The old house at the end of the lane had been empty for years, and no one knew who had lived there. "


class Gateway(Proxy):
    """One process of smg. It gets the tokenizer from a replica, by GetTokenizer."""

    def __init__(self, replicas, folder, *flags):
        self.port = free_port()
        command = [SMG, "launch", "--host", "127.0.0.1", "--port", str(self.port), "--policy", "cache_aware"]
        command += ["--worker-urls", *(f"grpc://{replica.grpc}" for replica in replicas)]
        command += ["--health-check-interval-secs", "1", "--log-level", "warn"]
        super().__init__([*command, "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()), *flags], folder)

    def client(self, key="none"):
        return openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key=key, max_retries=0, timeout=120)

    def wait_for(self, replicas, key="none"):
        """Returns when requests reach each replica."""
        before = [completed(replica) for replica in replicas]
        numbers = itertools.count()

        def reach():
            with contextlib.suppress(openai.OpenAIError):
                client.completions.create(model="demo", prompt=f"{next(numbers)} a", max_tokens=1)
            return all(completed(replica) > b for replica, b in zip(replicas, before, strict=True))

        with self.client(key) as client:
            self.wait(reach)


class Fleet:
    """Replicas that share a state store, and a folder for what runs before them."""

    def __init__(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = self.temporary.name
        model = pathlib.Path(self.folder) / "demo"
        shutil.copytree(ROOT / "models/demo", model)
        (model / "chat_template.jinja").write_text(TEMPLATE)
        store = ["--state-store", f"dir:{self.folder}/states"]
        self.replicas = [Server(*store, "--max-sequences", "16", model=model) for _ in range(2)]

    def stop(self):
        statuses = [replica.stop() for replica in self.replicas]
        self.temporary.cleanup()
        assert statuses == [0, 0], statuses


class Redis:
    def __init__(self, folder):
        self.port = free_port()
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def unspaced(text):
    """smg decodes an output by itself, without the prompt before it: a space that begins it is lost."""
    return text.removeprefix(" ")


def completed(replica):
    return replica.metric("polysketch_generation_tokens_total")


class GatewayOfReplicas(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.fleet = Fleet()
        cls.addClassCleanup(cls.fleet.stop)
        cls.redis = Redis(cls.fleet.folder)
        cls.addClassCleanup(cls.redis.stop)
        cls.gateway = cls.new_gateway()
        cls.addClassCleanup(cls.gateway.stop)
        cls.client = cls.gateway.client("key-of-alice")
        cls.addClassCleanup(cls.client.close)
        cls.direct = openai.OpenAI(base_url=cls.fleet.replicas[0].url, api_key="none", max_retries=0, timeout=120)
        cls.addClassCleanup(cls.direct.close)

    @classmethod
    def new_gateway(cls):
        keys = ["--tenant-api-key", "alice:key-of-alice", "--tenant-api-key", "bob:key-of-bob"]
        history = ["--history-backend", "redis", "--redis-url", f"redis://127.0.0.1:{cls.redis.port}"]
        gateway = Gateway(cls.fleet.replicas, cls.fleet.folder, *keys, *history)
        gateway.wait_for(cls.fleet.replicas, "key-of-alice")
        return gateway

    def test_completion_equals_that_of_a_replica(self):
        want = self.direct.completions.create(**GREEDY, max_tokens=24)
        got = self.client.completions.create(**GREEDY, max_tokens=24)
        self.assertEqual(got.choices[0].text, unspaced(want.choices[0].text))
        self.assertEqual(got.choices[0].finish_reason, "length")
        self.assertEqual(got.usage.prompt_tokens, want.usage.prompt_tokens)
        self.assertEqual(got.usage.completion_tokens, 24)
        # Long, since tokens that wait for the connection share an event.
        want = self.direct.completions.create(**GREEDY, max_tokens=1000)
        events = list(self.client.completions.create(**GREEDY, max_tokens=1000, stream=True))
        self.assertGreater(len(events), 3)
        text = "".join(event.choices[0].text for event in events)
        self.assertEqual(unspaced(text), unspaced(want.choices[0].text))

    def test_chat_equals_that_of_a_replica(self):
        chat = {"model": "demo", "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 16}
        want = self.direct.chat.completions.create(**chat)
        got = self.client.chat.completions.create(**chat, logprobs=True, top_logprobs=2)
        self.assertEqual(got.choices[0].message.content, unspaced(want.choices[0].message.content))
        self.assertEqual(got.usage.prompt_tokens, want.usage.prompt_tokens)
        self.assertEqual([len(token.top_logprobs) for token in got.choices[0].logprobs.content], [2] * 16)
        events = list(self.client.chat.completions.create(**chat, stream=True))
        text = "".join(event.choices[0].delta.content or "" for event in events if event.choices)
        self.assertEqual(unspaced(text), unspaced(want.choices[0].message.content))

    def test_choices_stops_and_seeds(self):
        text = self.client.completions.create(**GREEDY, max_tokens=40).choices[0].text
        word = text.split()[5]
        stopped = self.client.completions.create(**GREEDY, max_tokens=40, stop=[word]).choices[0]
        self.assertEqual((stopped.text, stopped.finish_reason), (text[: text.index(word)], "stop"))
        sampled = GREEDY | {"temperature": 1.0, "seed": 5, "max_tokens": 12, "n": 3}
        several = self.client.completions.create(**sampled)
        self.assertEqual(sorted(choice.index for choice in several.choices), [0, 1, 2])
        self.assertEqual(len({choice.text for choice in several.choices}), 3)
        want = {choice.index: unspaced(choice.text) for choice in self.direct.completions.create(**sampled).choices}
        self.assertEqual({choice.index: choice.text for choice in several.choices}, want)

    def test_responses_belong_to_their_tenant(self):
        request = {"model": "demo", "temperature": 0, "max_output_tokens": 8}
        first = self.client.responses.create(**request, input="It was late")
        second = self.client.responses.create(**request, input="Why?", previous_response_id=first.id)
        self.assertGreater(second.usage.input_tokens, first.usage.total_tokens)
        self.assertEqual(self.client.responses.retrieve(first.id).output_text, first.output_text)
        with self.gateway.client("key-of-bob") as bob, self.assertRaises(openai.NotFoundError):
            bob.responses.retrieve(first.id)
        # Another gateway with the same Redis continues the conversation.
        other = self.new_gateway()
        with other.client("key-of-alice") as client:
            third = client.responses.create(**request, input="And?", previous_response_id=second.id)
        other.stop()
        self.assertGreater(third.usage.input_tokens, second.usage.total_tokens)

    def test_refusals(self):
        with self.gateway.client("key-of-mallory") as stranger, self.assertRaises(openai.AuthenticationError):
            stranger.completions.create(**GREEDY, max_tokens=1)

    def test_structured_output(self):
        schema = {"enum": ["yes", "no"]}
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        answer = self.client.chat.completions.create(
            model="demo", messages=MESSAGES, max_completion_tokens=40, response_format=form
        )
        self.assertIn(answer.choices[0].message.content, ['"yes"', '"no"'])

    def test_prompts_that_share_a_context_share_a_replica(self):
        before = [completed(replica) for replica in self.fleet.replicas]
        for i in range(6):
            self.client.completions.create(**GREEDY | {"prompt": 8 * CONTEXT + str(i)}, max_tokens=10)
        after = [completed(replica) for replica in self.fleet.replicas]
        self.assertEqual(sorted(b - a for a, b in zip(before, after, strict=True)), [0, 60])

    def test_a_client_that_leaves_frees_its_slot(self):
        stream = self.client.completions.create(**GREEDY, max_tokens=100000, stream=True)
        next(iter(stream))
        stream.close()
        for replica in self.fleet.replicas:
            self.assertTrue(replica.becomes_idle())


class GatewayWhileAReplicaDrains(unittest.TestCase):
    STREAMS = 8
    TOKENS = 1500

    def setUp(self):
        self.fleet = Fleet()
        self.addCleanup(self.fleet.stop)
        self.gateway = Gateway(self.fleet.replicas, self.fleet.folder)
        self.addCleanup(self.gateway.stop)
        self.gateway.wait_for(self.fleet.replicas)

    def stream(self, client, i):
        """The text of one stream and its finish reason. Its beginning sends it to either replica."""
        request = GREEDY | {"prompt": f"{i} {PROMPTS[i % len(PROMPTS)]}"}
        text, reason = "", None
        for event in client.completions.create(**request, max_tokens=self.TOKENS, stream=True):
            text += event.choices[0].text
            reason = event.choices[0].finish_reason or reason
        return text, reason

    def test_streams_end_within_the_drain_and_later_requests_go_to_the_other(self):
        first, second = self.fleet.replicas
        with self.gateway.client() as client, concurrent.futures.ThreadPoolExecutor(self.STREAMS) as pool:
            streams = [pool.submit(self.stream, client, i) for i in range(self.STREAMS)]
            end = time.monotonic() + 60
            running = "polysketch_num_requests_running"
            while time.monotonic() < end and not (first.metric(running) and second.metric(running)):
                time.sleep(0.01)
            self.assertTrue(first.metric(running) and second.metric(running), "both replicas have streams")
            first.process.send_signal(signal.SIGTERM)
            # Requests that begin while the replica drains go to the other one, without an error.
            before = completed(second)
            for i in range(4):
                client.completions.create(model="demo", prompt=f"{i} and then", max_tokens=3)
            for i, stream in enumerate(streams):
                text, reason = stream.result(120)
                self.assertEqual(reason, "length", i)
                self.assertGreater(len(text), self.TOKENS, i)
            self.assertEqual(first.process.wait(30), 0)
            self.assertGreaterEqual(completed(second) - before, 12)
            got = client.completions.create(**GREEDY, max_tokens=16).choices[0].text
        with openai.OpenAI(base_url=second.url, api_key="none", max_retries=0) as direct:
            want = direct.completions.create(**GREEDY, max_tokens=16).choices[0].text
        self.assertEqual(got, unspaced(want))


PROMPTS = ("It was late in the afternoon", "The king said to his son", "A dog ran over the hill", "In the beginning")

if __name__ == "__main__":
    unittest.main()
