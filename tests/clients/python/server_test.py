"""The client and the real server with models/demo."""

import asyncio
import tempfile
import threading
import unittest
from unittest import mock

from support import ROOT, ClientTest, Server, for_both, wait_until

import polysketch
from polysketch import _requests

PROMPT = "It was a fine morning in May, and"
RUNNING = "polysketch_num_requests_running"
STREAMED = 'polysketch_rpcs_total{code="OK",rpc="CompleteStream"}'


@for_both
class RealServer(ClientTest):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-sequences", "4")
        cls.addClassCleanup(cls.server.stop)

    def setUp(self):
        self.api = self.client(self.server.target)

    def test_a_completion_is_that_of_the_command_line_client(self):
        flags = ["--prompt", PROMPT, "--max-tokens", 40, "--temperature", 0.7, "--top-p", 0.9, "--seed", 4, "--logprobs", 2,
                 "--stop", "zzz", "--logit-bias", "5=-1"]
        want = self.server.command("complete", *flags)
        got = self.api.complete(PROMPT, max_tokens=40, temperature=0.7, top_p=0.9, seed=4, logprobs=2, stop="zzz",
                                logit_bias={5: -1}).result()
        self.assertEqual((got.text, got.tokens, got.finish_reason), (want["text"], want["tokens"], want["finish_reason"]))
        self.assertEqual(got.usage.completion_tokens, want["usage"]["completion_tokens"])
        self.assertEqual([len(one.top) for one in got.logprobs], [2] * len(got.tokens))
        for ours, theirs in zip(got.logprobs, want["logprobs"], strict=True):
            self.assertAlmostEqual(ours.logprob, theirs["logprob"] if isinstance(theirs, dict) else theirs, places=4)

    def test_structured_output_is_that_of_the_command_line_client(self):
        flags = ["--prompt", PROMPT, "--max-tokens", 60, "--seed", 4]
        want = self.server.command("complete", *flags, "--regex", "[a-z]{3,6}: [0-9]+!")
        got = self.api.complete(PROMPT, max_tokens=60, seed=4, regex="[a-z]{3,6}: [0-9]+!").result()
        self.assertEqual(got.text, want["text"])
        self.assertRegex(got.text, "^[a-z]{3,6}: [0-9]+!?$")
        self.assertIn(self.api.complete(PROMPT, json_schema={"enum": ["yes", "no"]}).result().text, ['"yes"', '"no"'])

    def test_choices_are_the_completions_of_their_seeds(self):
        result = self.api.complete(PROMPT, max_tokens=10, n=3, seed=1).result()
        for choice in result.choices:
            alone = self.api.complete(PROMPT, max_tokens=10, seed=choice.seed).result()
            self.assertEqual((choice.tokens, choice.text), (alone.tokens, alone.text))

    def test_a_score_is_that_of_the_command_line_client(self):
        text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")[:4000]
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            want = self.server.command("score", "--prompt-file", file.name)
        got = self.api.score(text)
        self.assertEqual((got.tokens, len(got.logprobs)), (want["tokens"], want["tokens"] - 1))
        self.assertAlmostEqual(got.perplexity, want["perplexity"], delta=1e-4 * want["perplexity"])
        lines = text.splitlines(keepends=True)
        self.assertEqual(self.api.score(iter(lines)).logprobs, got.logprobs)
        self.assertEqual(self.api.score(text, logprobs=False).logprobs, [])
        ids = self.api.tokenize(text)
        self.assertEqual(self.api.score(tokens=[ids[:100], ids[100:]]).logprobs, got.logprobs)
        self.assertEqual(got.far_mass, [])
        far_mass = self.api.score(tokens=ids[:700], far_mass=True).far_mass
        self.assertEqual(sum(one.queries for one in far_mass if one.layer == 3), 699)
        self.assertEqual([one.first for one in far_mass if one.layer == 0], [0, 64, 128, 256, 512])
        self.assertEqual([len(one.shares) for one in far_mass], [3] * len(far_mass))

    def test_text(self):
        ids = self.api.tokenize("Hello there", add_bos=False)
        self.assertEqual(self.api.detokenize(ids), "Hello there")
        self.assertEqual(self.api.tokenize("Hello there"), [self.api.info().bos_id, *ids])
        self.assertEqual(self.api.tokenize("</s>", add_bos=False, parse_special=True), [self.api.info().eos_id])
        self.assertEqual(self.api.health(), {self.server.target: "SERVING"})

    def test_a_session_is_the_whole_sequence(self):
        whole = self.api.complete(PROMPT, max_tokens=30, temperature=0, ignore_eos=True).result()
        with self.api.session() as session:
            usage = session.append(PROMPT)
            self.assertEqual(session.tokens, usage.prompt_tokens)
            first = session.complete(max_tokens=10, temperature=0, ignore_eos=True).result()
            self.assertEqual(session.tokens, usage.prompt_tokens + 10)
            (fork,) = session.fork()
            key = session.snapshot().snapshot
            rest = [one.complete(max_tokens=20, temperature=0, ignore_eos=True).result().tokens
                    for one in (session, fork, self.api.restore(key))]
            self.assertEqual(rest, [whole.tokens[10:]] * 3)
            self.assertEqual([first.tokens, session.tokens], [whole.tokens[:10], usage.prompt_tokens + 30])
            self.assertEqual(self.api.session(fork.id).tokens, session.tokens)
            self.assertIn(key, [one.snapshot for one in self.api.snapshots()])
            self.api.delete(key)
        left = [one.session for one in self.api.sessions()]
        self.assertNotIn(session.id, left)
        self.assertIn(fork.id, left)
        session.close()
        self.raises(polysketch.NotFoundError, self.api.session, session.id)
        fork.close()

    def test_a_score_in_a_session(self):
        ids = self.api.tokenize(PROMPT)
        greedy = self.api.complete(tokens=ids, max_tokens=8, temperature=0, ignore_eos=True).result().tokens
        whole = self.api.score(tokens=[*ids, *greedy, 5])
        with self.api.session() as session:
            session.append(tokens=ids)
            score = session.score(tokens=[*greedy, 5])
            self.assertEqual(session.refresh(), len(ids))
        self.assertEqual(score.logprobs, whole.logprobs[len(ids) - 1:])
        self.assertEqual(score.greedy[:8], [True] * 8)
        self.assertEqual((score.tokens, score.greedy), (9, whole.greedy[len(ids) - 1:]))

    def test_log_probabilities_from_a_token_on(self):
        ids = self.api.tokenize(PROMPT)
        result = self.api.complete(tokens=ids, max_tokens=0, echo=True, logprobs=0, logprobs_from=5).result()
        self.assertEqual([one.logprob is not None for one in result.logprobs], [i >= 5 for i in range(len(ids))])
        self.assertEqual([one.logprob for one in result.logprobs[5:]], self.api.score(tokens=ids).logprobs[4:])

    def test_a_prompt_in_parts(self):
        prompt = PROMPT + " caf\u00e9" * 500
        options = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
        want = self.api.complete(prompt, **options).result().tokens
        state = self.api.complete(PROMPT, max_tokens=0, return_state=True).result().state
        before = self.server.metric(STREAMED)
        with mock.patch.multiple(_requests, PART_BYTES=1000, PART_CHARACTERS=99, PART_TOKENS=99):
            self.assertEqual(self.api.complete(prompt, **options).result().tokens, want)
            self.assertEqual(self.api.complete(tokens=self.api.tokenize(prompt), **options).result().tokens, want)
            self.assertEqual(self.api.complete(prompt[len(PROMPT):], state=state, **options).result().tokens, want)
            with self.api.session() as session:
                self.assertEqual(session.complete(prompt, **options).result().tokens, want)
        self.assertEqual(self.server.metric(STREAMED), before + 4)

    def test_two_clients_of_a_session(self):
        session = self.api.session()
        other = self.api.session(session.id)
        session.append(PROMPT)
        self.raises(polysketch.FailedPreconditionError, other.append, "x")
        other.refresh()
        other.append("x")
        self.assertGreater(other.tokens, session.tokens)
        other.close()

    def test_a_state_of_the_client(self):
        whole = self.api.complete(PROMPT, max_tokens=20, temperature=0, ignore_eos=True).result()
        first = self.api.complete(PROMPT, max_tokens=5, temperature=0, ignore_eos=True, return_state=True).result()
        rest = self.api.complete(state=first.state, max_tokens=15, temperature=0, ignore_eos=True).result()
        self.assertEqual(first.tokens + rest.tokens, whole.tokens)

    def test_an_input_in_parts(self):
        ids = self.api.tokenize((ROOT / "README.md").read_text(encoding="utf-8"))
        ends = []
        for parts in (ids, [ids[:7], ids[7:8], ids[8:]]):
            with self.api.session() as session:
                session.append(tokens=parts)
                self.assertEqual(session.tokens, len(ids))
                ends.append(session.complete(max_tokens=5, temperature=0).result().tokens)
        self.assertEqual(*ends)

    def test_close_frees_the_slot_and_keeps_the_session(self):
        session = self.api.session()
        session.append(PROMPT)
        tokens = session.tokens
        stream = session.complete(max_tokens=100000, ignore_eos=True)
        next(iter(stream))
        wait_until(lambda: self.server.metric(RUNNING) == 1, "the request")
        stream.close()
        session.append("x")  # the former request may still hold the session for a moment
        self.assertGreater(session.tokens, tokens)
        wait_until(lambda: self.server.metric(RUNNING) == 0, "the slot")
        session.close()

    def test_a_timeout_frees_the_slot(self):
        stream = self.api.complete(PROMPT, max_tokens=100000, ignore_eos=True, timeout=0.3)
        self.raises(polysketch.DeadlineExceededError, stream.result)
        self.assertNotEqual(stream.text, "")
        wait_until(lambda: self.server.metric(RUNNING) == 0, "the slot")

    def test_errors(self):
        error = self.raises(polysketch.InvalidArgumentError, self.api.complete("x", top_p=1.5).result)
        self.assertEqual(error.message, "sampling.top_p: expected a number in (0, 1], found 1.5")
        self.assertEqual(error.fields, {"sampling.top_p": "expected a number in (0, 1], found 1.5"})
        self.assertEqual(error.reason, "INVALID_ARGUMENT")
        error = self.raises(polysketch.NotFoundError, self.api.delete, "0" * 32)
        self.assertIn(f" id={error.request_id} ", self.server.log())


class Cancellation(ClientTest):
    def test_a_cancelled_task_frees_the_slot(self):
        server = self.start_server()

        async def scenario():
            async with polysketch.AsyncClient(server.target) as client:
                task = asyncio.create_task(client.complete(PROMPT, max_tokens=100000, ignore_eos=True).result())
                await asyncio.to_thread(wait_until, lambda: server.metric(RUNNING) == 1, "the request")
                task.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await task
                await asyncio.to_thread(wait_until, lambda: server.metric(RUNNING) == 0, "the slot")

        asyncio.run(scenario())


@for_both
class Full(ClientTest):
    def test_a_full_queue_is_waited_for(self):
        """The server refuses with RetryInfo while its slot and its queue are taken."""
        server = self.start_server("--max-sequences", "1", "--max-queue", "1")
        one, two = (polysketch.Client(server.target) for _ in range(2))
        self.addCleanup(one.close)
        self.addCleanup(two.close)
        streams = [one.complete(PROMPT, max_tokens=100000, ignore_eos=True)]
        next(streams[0])
        streams.append(two.complete(PROMPT, max_tokens=100000, ignore_eos=True))
        wait_until(lambda: server.metric("polysketch_num_requests_waiting") == 1, "the queue")
        refused = self.client(server.target, retry=None).complete(PROMPT, max_tokens=3)
        error = self.raises(polysketch.ResourceExhaustedError, refused.result)
        self.assertGreater(error.retry_after, 0)
        self.assertEqual((error.reason, error.fields), ("QUEUE_FULL", {}))
        timer = threading.Timer(0.5, lambda: [stream.close() for stream in streams])
        timer.start()
        self.addCleanup(timer.join)
        client = self.client(server.target, retry=polysketch.Retry(attempts=100))
        self.assertEqual(len(client.complete(PROMPT, max_tokens=3).result().tokens), 3)


if __name__ == "__main__":
    unittest.main()
