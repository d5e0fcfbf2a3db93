"""Which calls are repeated, where and when: over scripted servers."""

import time
import unittest

import grpc
from support import QUICK, UNAVAILABLE, ClientTest, FakeServer, Refuse, delta, finish, for_both

import polysketch
from polysketch.v1 import polysketch_pb2 as pb

MODEL = [pb.GetModelResponse(name="fake")]
TEXT = [delta("a", 1), finish()]
APPENDED = [pb.AppendResponse(session=pb.Session(session="s", tokens=3))]
SESSION = [pb.Session(session="s", tokens=2)]


def full(seconds):
    return Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full", retry_info=seconds)


def gaps(server):
    return [after.time - before.time for before, after in zip(server.calls, server.calls[1:], strict=False)]


@for_both
class Retries(ClientTest):
    def test_the_server_says_when(self):
        server = self.fake([full(0.2)], [full(0.3)], TEXT)
        self.assertEqual(self.client(server.target).complete("x").result().text, "a")
        self.assertEqual(len(server.calls), 3)
        for waited, asked in zip(gaps(server), (0.2, 0.3), strict=True):
            self.assertGreaterEqual(waited, asked)

    def test_the_error_says_when(self):
        server = self.fake([full(0.25)])
        error = self.raises(polysketch.ResourceExhaustedError, self.client(server.target, retry=None).info)
        self.assertEqual((error.code, error.message), (grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full"))
        self.assertEqual((error.retry_after, error.target), (0.25, server.target))
        self.assertEqual(str(error), f"RESOURCE_EXHAUSTED: the queue is full; again in 0.25 s ({server.target})")

    def test_the_delay_as_metadata_only(self):
        refuse = Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, metadata=[("retry-after-ms", "150")])
        server = self.fake([refuse], MODEL)
        self.client(server.target).info()
        self.assertGreaterEqual(gaps(server)[0], 0.15)

    def test_details_that_are_no_status(self):
        refuse = Refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, metadata=[("grpc-status-details-bin", b"\xff\xff")])
        self.assertIsNone(self.raises(polysketch.ResourceExhaustedError, self.client(self.fake([refuse]).target).info).retry_after)

    def test_a_wait_beyond_the_timeout(self):
        server = self.fake([full(0.9)])
        start = time.monotonic()
        self.raises(polysketch.ResourceExhaustedError, self.client(server.target, timeout=0.8).info)
        self.assertLess(time.monotonic() - start, 0.8)
        self.assertEqual(len(server.calls), 1)

    def test_attempts_are_counted(self):
        server = self.fake(*[[UNAVAILABLE]] * 9)
        retry = polysketch.Retry(attempts=3, initial_backoff=0.1, multiplier=2)
        self.raises(polysketch.UnavailableError, self.client(server.target, retry=retry).info)
        first, second = gaps(server)
        self.assertGreaterEqual(first, 0.05)  # half of the backoff, or more
        self.assertGreaterEqual(second, 0.1)

    def test_other_errors_are_not_repeated(self):
        for code, error in [(grpc.StatusCode.INVALID_ARGUMENT, polysketch.InvalidArgumentError),
                            (grpc.StatusCode.RESOURCE_EXHAUSTED, polysketch.ResourceExhaustedError),
                            (grpc.StatusCode.DATA_LOSS, polysketch.DataLossError),
                            (grpc.StatusCode.UNAUTHENTICATED, polysketch.UnauthenticatedError),
                            (grpc.StatusCode.OUT_OF_RANGE, polysketch.RpcError)]:
            with self.subTest(code):
                server = self.fake([Refuse(code)], MODEL)
                self.assertIs(self.raises(error, self.client(server.target).info).code, code)
                self.assertEqual(len(server.calls), 1)

    def test_nothing_is_repeated_once_a_token_arrived(self):
        server = self.fake([delta("a", 1), UNAVAILABLE], TEXT)
        stream = self.client(server.target).complete("x")
        self.assertEqual(next(stream).text, "a")
        self.raises(polysketch.UnavailableError, next, stream)
        self.assertEqual((stream.text, len(server.calls)), ("a", 1))
        self.assertEqual(list(stream), [])

    def test_progress_is_no_token(self):
        progress = pb.CompleteResponse(progress=pb.Progress(processed=1, total=2))
        server = self.fake([progress, UNAVAILABLE], [progress, *TEXT])
        seen = []
        result = self.client(server.target).complete("x", on_progress=lambda *numbers: seen.append(numbers)).result()
        self.assertEqual((result.text, seen), ("a", [(1, 2), (1, 2)]))

    def test_a_prompt_of_any_size_is_sent_again(self):
        prompt = "\u00e9" * (9 << 20)  # 18 MiB: messages have 4 MiB at most
        server = self.fake([UNAVAILABLE], TEXT)
        self.assertEqual(self.client(server.target).complete(prompt, max_tokens=7).result().text, "a")
        for call in server.calls:
            self.assertEqual((call.method, call.request[0].request.max_tokens), ("CompleteStream", 7))
            self.assertEqual("".join(part.text for part in call.request[1:]), prompt)
        self.assertEqual(len(server.calls), 2)

    def test_a_session_says_what_it_expects(self):
        server = self.fake(SESSION, [UNAVAILABLE], APPENDED, [UNAVAILABLE],
                           [delta("a", 1), finish(session=pb.Session(session="s", tokens=9))], [UNAVAILABLE],
                           [pb.ForkSessionResponse()])
        session = self.client(server.target).session()
        session.append("text")
        self.assertEqual(session.tokens, 3)
        session.complete("x").result()
        self.assertEqual(session.tokens, 9)
        session.fork()
        first = [call.request[0] if isinstance(call.request, list) else call.request for call in server.calls[1:]]
        self.assertEqual([request.expected_position for request in first], [2, 2, 3, 3, 9, 9])

    def test_a_call_that_was_applied_is_not_applied_again(self):
        """The answer of the first try was lost: the second one is refused by its expected position."""
        server = self.fake(SESSION, [UNAVAILABLE], [Refuse(grpc.StatusCode.FAILED_PRECONDITION)],
                           [pb.ListSessionsResponse(sessions=[pb.Session(session="s", tokens=7)])])
        session = self.client(server.target).session()
        self.raises(polysketch.FailedPreconditionError, session.append, "text")
        self.assertEqual((session.refresh(), session.tokens), (7, 7))

    def test_a_session_that_is_in_use_for_a_moment(self):
        server = self.fake(SESSION, [Refuse(grpc.StatusCode.ABORTED)], APPENDED)
        session = self.client(server.target).session()
        session.append("text")
        self.assertEqual(session.tokens, 3)

    def test_an_input_that_is_read_once(self):
        server = self.fake([UNAVAILABLE], [UNAVAILABLE], [pb.ScoreResponse(finish=pb.ScoreFinish(tokens=2))])
        client = self.client(server.target)
        self.raises(polysketch.UnavailableError, client.score, iter(["a", "b"]))
        self.assertEqual(client.score("ab").tokens, 2)
        self.assertEqual(len(server.calls), 3)

    def test_an_error_of_the_input_is_raised(self):
        def parts():
            yield "a"
            raise OSError("the disk is gone")

        server = self.fake([pb.ScoreResponse()])
        self.assertEqual(str(self.raises(OSError, self.client(server.target).score, parts())), "the disk is gone")

    def test_long_inputs_are_sent_in_parts(self):
        scored = [pb.ScoreResponse(finish=pb.ScoreFinish(tokens=2))]
        server = self.fake(scored, scored)
        client = self.client(server.target)
        text = "ü" * (3 << 20)
        client.score(text)
        client.score(tokens=range(1 << 20))
        texts, tokens = (call.request for call in server.calls)
        self.assertEqual("".join(part.text for part in texts), text)
        self.assertEqual([one for part in tokens for one in part.tokens.ids], list(range(1 << 20)))
        self.assertLess(max(part.ByteSize() for part in [*texts, *tokens]), 4 << 20)


@for_both
class SeveralReplicas(ClientTest):
    def test_calls_take_turns(self):
        servers = [self.fake(*[MODEL] * 4), self.fake(*[MODEL] * 4)]
        client = self.client([server.target for server in servers])
        for _ in range(8):
            client.info()
        self.assertEqual([len(server.calls) for server in servers], [4, 4])

    def test_another_one_answers_at_once(self):
        gone = FakeServer()
        gone.stop()
        live = self.fake(*[MODEL] * 4)
        client = self.client([gone.target, live.target], retry=polysketch.Retry(initial_backoff=30, max_backoff=30))
        for _ in range(4):
            client.info()

    def test_one_that_was_unavailable_is_left_alone(self):
        bad, live = self.fake(*[[UNAVAILABLE]] * 9), self.fake(*[MODEL] * 8)
        client = self.client([live.target, bad.target])
        for _ in range(8):
            client.info()
        self.assertEqual((len(bad.calls), len(live.calls)), (1, 8))

    def test_a_full_one_is_left_alone(self):
        full_one, live = self.fake([full(30)]), self.fake(*[MODEL] * 4)
        client = self.client([full_one.target, live.target])
        client.info()
        client.info()
        self.assertEqual((len(full_one.calls), len(live.calls)), (1, 2))

    def session_of_two(self, *script):
        """A session, its server and another one, which both answer the next calls by the script."""
        servers = [self.fake(SESSION), self.fake(SESSION)]
        session = self.client([server.target for server in servers]).session()
        home, other = sorted(servers, key=lambda server: not server.calls)
        home.script, other.script = list(script), list(script)
        return session, home, other

    def test_a_busy_one_is_not_called_early(self):
        """One replica asks for 0.4 s, the other one is unavailable: rounds go to the latter until then."""
        busy, gone = self.fake([full(0.4)], MODEL), self.fake(*[[UNAVAILABLE]] * 1000)
        client = self.client([gone.target, busy.target], retry=polysketch.Retry(1000, 0.01, 0.02))
        self.assertEqual(client.info().name, "fake")
        self.assertGreaterEqual(gaps(busy)[0], 0.4)
        self.assertGreater(len(gone.calls), 5)

    def test_a_session_stays(self):
        session, home, other = self.session_of_two(*[APPENDED] * 4)
        for _ in range(4):
            session.append("x")
        self.assertEqual((len(home.calls), len(other.calls)), (5, 0))

    def test_a_session_moves_when_its_replica_is_gone(self):
        session, home, other = self.session_of_two(APPENDED, APPENDED)
        home.stop()
        session.append("x")
        session.append("y")
        self.assertEqual((len(home.calls), len(other.calls)), (1, 2))

    def test_a_session_that_only_a_lost_replica_had(self):
        session, home, other = self.session_of_two(*[[Refuse(grpc.StatusCode.NOT_FOUND)]] * 9)
        home.stop()
        self.assertEqual(self.raises(polysketch.UnavailableError, session.append, "x").target, home.target)
        self.assertGreater(len(other.calls), 1)

    def test_health(self):
        gone = FakeServer()
        gone.stop()
        self.assertEqual(self.client(gone.target).health(), {gone.target: "UNAVAILABLE"})


class Parameters(unittest.TestCase):
    def test_ranges(self):
        for options, message in [({"attempts": 0}, "attempts: expected 1 or more, found 0"),
                                 ({"multiplier": 0.5}, "multiplier: expected 1 or more, found 0.5")]:
            with self.assertRaisesRegex(ValueError, message):
                polysketch.Retry(**options)

    def test_the_backoff_grows_to_its_maximum(self):
        retry = polysketch.Retry(initial_backoff=1, max_backoff=5, multiplier=2)
        for rounds, most in enumerate((1, 2, 4, 5, 5), 1):
            waits = [retry.backoff(rounds) for _ in range(100)]
            self.assertTrue(most / 2 <= min(waits) < max(waits) <= most, (rounds, min(waits), max(waits)))
        self.assertEqual(QUICK.attempts, polysketch.Retry().attempts)


if __name__ == "__main__":
    unittest.main()
