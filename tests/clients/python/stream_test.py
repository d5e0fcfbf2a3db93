"""Completions over scripted servers: chunks and results, resumes, cancellation, deadlines."""

import asyncio
import threading
import time
import unittest

import grpc
from support import PATIENCE, QUICK, UNAVAILABLE, ClientTest, Refuse, delta, finish, for_both, migrated, wait_until

import polysketch
from polysketch.v1 import polysketch_pb2 as pb


def endless(call):
    """Sends a token every 10 ms until the client goes."""
    while call.context.is_active():
        yield delta("a", 1)
        time.sleep(0.01)


def silent(call):
    """Sends a token, and then nothing until the client goes."""
    yield delta("a", 1)
    wait_until(lambda: not call.context.is_active(), "the client to go")


@for_both
class Streams(ClientTest):
    def test_chunks_and_the_result(self):
        top = [pb.Alternative(token=7, logprob=-1, piece="p")]
        logprobs = [pb.TokenLogprob(), pb.TokenLogprob(logprob=-0.5, top=top)]
        server = self.fake([
            pb.CompleteResponse(delta=pb.Delta(text="x", tokens=[1, 2], logprobs=logprobs, echoed=True)),
            delta("a", 3),
            pb.CompleteResponse(state=b"12"), pb.CompleteResponse(state=b"3"),
            finish(pb.FINISH_REASON_STOP, text="b", seed=5, matched_stop="c", usage=pb.Usage(completion_tokens=1),
                   timings=pb.Timings(total_seconds=2), cache_miss=pb.CACHE_MISS_TOO_SHORT)])
        stream = self.client(server.target).complete("x", echo=True, logprobs=1, return_state=True)
        first, second, last = stream
        self.assertEqual((first.text, first.tokens, first.echoed), ("x", (1, 2), True))
        self.assertEqual(first.logprobs, (polysketch.TokenLogprob(None),
                                          polysketch.TokenLogprob(-0.5, (polysketch.Alternative(7, -1, "p"),))))
        self.assertEqual((second.text, second.finish_reason), ("a", None))
        self.assertEqual((last.text, last.tokens, last.finish_reason), ("b", (), "stop"))
        self.assertEqual((stream.text, stream.tokens), ("xab", [1, 2, 3]))
        result = stream.result()
        self.assertEqual((result.text, result.tokens, result.seed, result.matched_stop), ("xab", [1, 2, 3], 5, "c"))
        self.assertEqual((result.usage.completion_tokens, result.timings.total_seconds), (1, 2))
        self.assertEqual((result.state, result.cache_miss, result.finish_reason), (b"123", "too_short", "stop"))
        self.assertEqual(result.logprobs, list(first.logprobs))

    def test_choices(self):
        server = self.fake([delta("a", 1), delta("b", 2, choice=1),
                            pb.CompleteResponse(choice=pb.ChoiceFinish(choice=1, text="c", reason=1, seed=8, stop_token=9)),
                            pb.CompleteResponse(choice=pb.ChoiceFinish(choice=0, reason=2, seed=7, logprob_sum=-2)),
                            finish()])
        stream = self.client(server.target).complete("x", n=2)
        self.assertEqual([(chunk.choice, chunk.text, chunk.finish_reason) for chunk in stream],
                         [(0, "a", None), (1, "b", None), (1, "c", "stop"), (0, "", "length")])
        one, two = stream.result().choices
        self.assertEqual((one.text, one.tokens, one.finish_reason, one.seed, one.logprob_sum), ("a", [1], "length", 7, -2))
        self.assertEqual((two.text, two.tokens, two.finish_reason, two.seed), ("bc", [2], "stop", 8))
        self.assertEqual((one.stop_token, two.stop_token), (None, 9))

    def test_the_request(self):
        server = self.fake([finish()], [finish()], [finish()])
        client = self.client(server.target)
        client.complete("x", max_tokens=3, temperature=0, top_k=4, logit_bias={3: -1.5}, seed=2**64 - 1, stop="end",
                        stop_token_ids=[5], logprobs=0, cache_read=False, cache_points=[1, 2], draft_tokens=0).result()
        client.complete(tokens=[1, 2], max_tokens=None, stop=["a", "b"]).result()
        client.complete(state=b"s" * (3 << 20)).result()
        text, tokens, state = (call.request for call in server.calls)
        want = pb.CompleteRequest(prompt=pb.Prompt(text="x"), max_tokens=3, stop=["end"], stop_token_ids=[5], logprobs=0,
                                  draft_tokens=0, cache=pb.CacheOptions(read=False, points=[1, 2]))
        want.sampling.MergeFrom(pb.Sampling(temperature=0, top_k=4, logit_bias={3: -1.5}, seed=2**64 - 1))
        self.assertEqual(text, want)
        want = pb.CompleteRequest(prompt=pb.Prompt(tokens=pb.TokenIds(ids=[1, 2])), stop=["a", "b"])
        self.assertEqual(tokens, want)
        self.assertEqual([len(part.state) for part in state], [1 << 20] * 3 + [0])
        self.assertEqual(state[-1].request, pb.CompleteRequest(max_tokens=256))

    def test_structured_output(self):
        values = {"json_schema": {"const": 1}, "json_object": True, "regex": "a+", "ebnf": "root ::= \"a\"", "choice": ["a", "b"]}
        server = self.fake(*[[finish()] for _ in values])
        client = self.client(server.target)
        for name, value in values.items():
            client.complete("x", **{name: value}, compact_json=True).result()
        outputs = [call.request.structured_output for call in server.calls]
        self.assertEqual([output.WhichOneof("grammar") for output in outputs], list(values))
        self.assertEqual([outputs[0].json_schema, list(outputs[4].choice.texts)], ['{"const": 1}', ["a", "b"]])
        self.assertTrue(all(output.compact_json for output in outputs))
        error = self.raises(ValueError, client.complete, "x", regex="a", ebnf="b")
        self.assertEqual(str(error), "regex: expected one field that constrains the output, found ebnf beside it")

    def test_bad_arguments(self):
        client = self.client("127.0.0.1:1")
        self.assertIn("'max_token'", str(self.raises(TypeError, client.complete, "x", max_token=3)))
        self.assertEqual(str(self.raises(ValueError, client.complete, "x", seed=-1)), "seed: Value out of range: -1")
        self.assertIn("prompt: ", str(self.raises(ValueError, client.complete, "\ud800")))
        self.assertEqual(str(self.raises(TypeError, client.complete, 5)),
                         "prompt: expected a text (str), found 5 (int); tokens= takes ids")
        self.assertIn("found [1, 2] (list)", str(self.raises(TypeError, client.complete, [1, 2])))
        self.assertEqual(str(self.raises(TypeError, client.score, 5)),
                         "text: expected a text (str) or parts of one, found 5 (int)")
        self.assertIn("tokens: ", str(self.raises(TypeError, client.complete, tokens=["a"])))
        self.assertIn("found both", str(self.raises(ValueError, client.complete, "x", tokens=[1])))
        self.assertIn("found neither", str(self.raises(ValueError, client.score)))

    def test_a_stream_without_a_finish_message(self):
        server = self.fake([delta("a", 1)])
        error = self.raises(polysketch.InternalError, self.client(server.target).complete("x").result)
        self.assertIn("expected a finish message", error.message)

    def test_close_cancels(self):
        server = self.fake(endless, endless)
        client = self.client(server.target)
        stream = client.complete("x")
        next(stream)
        stream.close()
        with client.complete("x") as other:
            next(other)
        for call in wait_until(lambda: len(server.calls) == 2 and server.calls, "two calls"):
            wait_until(lambda call=call: not call.context.is_active(), "the cancellation")
        self.assertEqual(list(stream), [])
        self.raises(polysketch.CancelledError, stream.result)

    def test_a_call_that_has_ended_is_not_cancelled(self):
        active = []

        def slow_to_end(call):
            yield finish()
            time.sleep(0.1)
            active.append(call.context.is_active())

        self.client(self.fake(slow_to_end).target).complete("x").result()
        self.assertEqual(wait_until(lambda: active, "the end of the call"), [True])

    def test_close_after_the_end(self):
        server = self.fake([delta("a", 1), finish()])
        with self.client(server.target).complete("x") as stream:
            self.assertEqual(stream.result().text, "a")
        self.assertEqual(stream.result().text, "a")

    def test_the_timeout_covers_all_tries(self):
        server = self.fake(*[[UNAVAILABLE]] * 3, endless)
        stream = self.client(server.target).complete("x", timeout=0.5)
        start = time.monotonic()
        self.raises(polysketch.DeadlineExceededError, stream.result)
        self.assertLess(time.monotonic() - start, 5)
        self.assertEqual(len(server.calls), 4)

    def test_the_timeout_of_other_calls(self):
        def late(call):
            wait_until(lambda: not call.context.is_active(), "the deadline")
            yield pb.GetModelResponse()

        self.raises(polysketch.DeadlineExceededError, self.client(self.fake(late).target).info, timeout=0.1)


@for_both
class Resumes(ClientTest):
    def test_another_replica_continues(self):
        first = self.fake([delta("a", 1), delta("b", 2), migrated("t1")])
        second = self.fake([delta("c", 3), finish(text="d", usage=pb.Usage(completion_tokens=3))])
        client = self.client([second.target, first.target])  # the second address has the first turn
        stream = client.complete("x", return_state=True)
        self.assertEqual([chunk.text for chunk in stream], ["a", "b", "c", "d"])
        result = stream.result()
        self.assertEqual((result.text, result.tokens, result.finish_reason), ("abcd", [1, 2, 3], "length"))
        self.assertEqual((result.migrations, result.resume_token, result.usage.completion_tokens), (1, "", 3))
        self.assertEqual(second.calls[0].request, pb.CompleteRequest(resume_token="t1", return_state=True))

    def test_twice(self):
        server = self.fake([delta("a", 1), migrated("t1")], [delta("b", 2), migrated("t2")], [delta("c", 3), finish()])
        result = self.client(server.target).complete("x").result()
        self.assertEqual((result.text, result.migrations), ("abc", 2))
        self.assertEqual([call.request.resume_token for call in server.calls], ["", "t1", "t2"])

    def test_choices_continue(self):
        end = [pb.CompleteResponse(choice=pb.ChoiceFinish(choice=index, reason=2)) for index in (0, 1)]
        server = self.fake([delta("a", 1), delta("b", 2, choice=1), end[0], migrated("t")],
                           [delta("c", 3, choice=1), end[1], finish()])
        result = self.client(server.target).complete("x", n=2).result()
        self.assertEqual([(one.text, one.finish_reason) for one in result.choices], [("a", "length"), ("bc", "length")])

    def test_patience_until_a_replica_is_back(self):
        """More failed rounds than Retry.attempts, within Retry.resume_timeout."""
        server = self.fake([migrated("t")], *[[UNAVAILABLE]] * 20, [delta("a", 1), finish()])
        self.assertEqual(self.client(server.target).complete("x").result().text, "a")
        self.assertEqual(len(server.calls), 22)

    def test_patience_ends(self):
        server = self.fake([delta("a", 1), migrated("t")], *[[UNAVAILABLE]] * 1000)
        retry = polysketch.Retry(initial_backoff=0.01, max_backoff=0.02, resume_timeout=0.3)
        stream = self.client(server.target, retry=retry).complete("x")
        start = time.monotonic()
        self.raises(polysketch.UnavailableError, stream.result)
        self.assertGreaterEqual(time.monotonic() - start, 0.3)
        self.assertEqual(stream.text, "a")

    def test_a_token_that_has_expired(self):
        server = self.fake([migrated("t")], [Refuse(grpc.StatusCode.NOT_FOUND)])
        self.raises(polysketch.NotFoundError, self.client(server.target).complete("x").result)

    def test_the_session_moves_along(self):
        first = self.fake([pb.Session(session="s", tokens=2)], [delta("a", 1), migrated("t")])
        second = self.fake([delta("b", 2), finish(session=pb.Session(session="s", tokens=9))],
                           [pb.ForkSessionResponse()])
        session = self.client([second.target, first.target]).session()
        self.assertEqual(session.complete("x").result().text, "ab")
        self.assertEqual(session.tokens, 9)
        session.fork()
        self.assertEqual(second.calls[1].request.expected_position, 9)

    def test_without_retries_the_caller_resumes(self):
        server = self.fake([delta("a", 1), migrated("t")], [delta("b", 2), finish()])
        client = self.client(server.target, retry=None)
        result = client.complete("x").result()
        self.assertEqual((result.finish_reason, result.resume_token), ("migrated", "t"))
        self.assertEqual(client.complete(resume_token=result.resume_token).result().text, "b")
        self.assertEqual(server.calls[1].request, pb.CompleteRequest(resume_token="t"))


class SyncOnly(ClientTest):
    def test_a_forgotten_stream_is_cancelled(self):
        server = self.fake(endless)
        for _ in self.client(server.target).complete("x"):
            break
        wait_until(lambda: not server.calls[0].context.is_active(), "the cancellation")

    def test_close_from_another_thread(self):
        stream = self.client(self.fake(silent).target).complete("x")
        next(stream)
        timer = threading.Timer(0.05, stream.close)
        timer.start()
        self.assertEqual(list(stream), [])
        timer.join()

    def test_streams_run_at_the_same_time(self):
        """The calls start before they are read."""
        server = self.fake(endless, endless)
        client = self.client(server.target)
        streams = [client.complete("x"), client.complete("x")]
        wait_until(lambda: len(server.calls) == 2, "both calls")
        for stream in streams:
            stream.close()


class AsyncOnly(ClientTest):
    def run_async(self, target, scenario):
        async def run():
            async with polysketch.AsyncClient(target, retry=QUICK, timeout=PATIENCE) as client:
                await scenario(client)

        asyncio.run(run())

    def test_a_cancelled_task_cancels_its_stream(self):
        server = self.fake(silent)

        async def scenario(client):
            task = asyncio.create_task(client.complete("x").result())
            while not server.calls:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(wait_until, lambda: not server.calls[0].context.is_active(), "the cancellation")

        self.run_async(server.target, scenario)

    def test_a_cancelled_task_cancels_its_score(self):
        server = self.fake(self.hold)

        async def scenario(client):
            with self.assertRaises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await client.score("x")
            await asyncio.to_thread(wait_until, lambda: not server.calls[0].context.is_active(), "the cancellation")

        self.run_async(server.target, scenario)

    @staticmethod
    def hold(call):
        wait_until(lambda: not call.context.is_active(), "the client to go")
        yield pb.ScoreResponse()

    def test_close_from_another_task(self):
        async def scenario(client):
            stream = client.complete("x")
            await anext(stream)
            rest = asyncio.create_task(stream.result())
            await asyncio.sleep(0.05)
            await stream.close()
            with self.assertRaises(polysketch.CancelledError):
                await rest

        self.run_async(self.fake(silent).target, scenario)

    def test_sessions_open_by_await_and_by_with(self):
        server = self.fake([pb.Session(session="one")], [pb.Session(session="two")], [pb.DeleteSessionResponse()])

        async def scenario(client):
            session = await client.session()
            self.assertEqual(session.id, "one")
            async with client.session() as other:
                self.assertEqual(other.id, "two")

        self.run_async(server.target, scenario)
        self.assertEqual([call.method for call in server.calls], ["CreateSession", "CreateSession", "DeleteSession"])


if __name__ == "__main__":
    unittest.main()
