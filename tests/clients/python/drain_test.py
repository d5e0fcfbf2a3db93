"""Two replicas with one state store: a completion that a drain migrates continues on the other replica without a lost or a
doubled token."""

import functools
import tempfile
import unittest

from support import PATIENCE, ClientTest, Server, for_both

import polysketch

PROMPT = "It was a fine morning in May, and"
TOKENS = 600
OPTIONS = {"max_tokens": TOKENS, "ignore_eos": True, "seed": 3, "temperature": 0.8, "timeout": PATIENCE}


def setUpModule():
    global STORE, LAST
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    STORE = f"--state-store=dir:{folder.name}"
    LAST = Server(STORE)
    unittest.addModuleCleanup(LAST.stop)


@functools.cache
def undisturbed(**options):
    """The completion by the replica that does not drain."""
    with polysketch.Client(LAST.target) as client:
        return client.complete(PROMPT, **OPTIONS | options).result()


@for_both
class Drain(ClientTest):
    def setUp(self):
        self.first = self.start_server(STORE)
        # The second address has the first turn.
        self.api = self.client([LAST.target, self.first.target])

    def disturbed(self, stream, moment):
        """Reads a stream to its end. The replica that serves it drains after `moment` tokens."""
        texts, tokens = {}, {}
        told = False
        for chunk in stream:
            texts[chunk.choice] = texts.get(chunk.choice, "") + chunk.text
            tokens.setdefault(chunk.choice, []).extend(chunk.tokens)
            if not told and sum(map(len, tokens.values())) >= moment:
                self.first.drain()
                told = True
        self.assertEqual(self.first.process.wait(), 0, self.first.log())
        result = stream.result()
        self.assertEqual(result.migrations, 1)
        for choice in result.choices:  # what the chunks said is what the result says
            self.assertEqual((texts[choice.index], tokens[choice.index]), (choice.text, choice.tokens))
        return result

    def test_tokens_are_those_of_an_undisturbed_run(self):
        want = undisturbed()
        got = self.disturbed(self.api.complete(PROMPT, **OPTIONS), 40)
        self.assertEqual((got.tokens, got.text), (want.tokens, want.text))
        self.assertEqual((len(got.tokens), got.finish_reason, got.seed), (TOKENS, "length", want.seed))
        self.assertEqual(got.usage.completion_tokens, TOKENS)

    def test_choices(self):
        options = {"n": 2, "max_tokens": TOKENS // 2}
        want = undisturbed(**options)
        got = self.disturbed(self.api.complete(PROMPT, **OPTIONS | options), 40)
        self.assertEqual([one.tokens for one in got.choices], [one.tokens for one in want.choices])
        self.assertEqual([one.text for one in got.choices], [one.text for one in want.choices])

    def test_a_session_goes_on_at_the_other_replica(self):
        session = self.api.session(durable=True)
        session.append(PROMPT)
        before = session.tokens
        got = self.disturbed(session.complete(**OPTIONS), 40)
        self.assertEqual(got.tokens, undisturbed().tokens)
        self.assertEqual(session.tokens, before + TOKENS)
        session.append("and so on")
        self.assertGreater(session.tokens, before + TOKENS)
        self.assertEqual(self.client(LAST.target).session(session.id).tokens, session.tokens)
        session.close()

    def test_a_session_that_is_idle_during_the_drain(self):
        """Its next call finds it in the store, through the other replica."""
        session = self.api.session()
        session.append(PROMPT)
        self.first.drain()
        self.assertEqual(self.first.process.wait(), 0)
        got = session.complete(**OPTIONS | {"max_tokens": 5}).result()
        self.assertEqual(got.tokens, undisturbed().tokens[:5])
        session.close()

    def test_new_calls_find_the_other_replica(self):
        self.first.drain()
        for _ in range(6):
            self.assertEqual(len(self.api.complete(PROMPT, max_tokens=3, ignore_eos=True).result().tokens), 3)
        self.assertEqual(self.first.process.wait(), 0)
        self.assertEqual(self.api.health(), {LAST.target: "SERVING", self.first.target: "UNAVAILABLE"})


if __name__ == "__main__":
    unittest.main()
