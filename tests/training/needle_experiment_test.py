"""experiments/needle: its texts, a quick run on models/novels, the table."""

import sys
import unittest

import numpy as np
import sentencepiece

import support
from experiment_support import EXPERIMENTS, IS_BUILT, ExperimentTest, plan

sys.path.append(str(EXPERIMENTS / "needle"))
import texts

TOKENIZER = support.NOVELS / "tokenizer.model"


class TextsTest(unittest.TestCase):
    def test_fact_and_question(self):
        filler = np.arange(300, 1300)
        made = texts.make_texts(TOKENIZER, filler, 100, 1, 4)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(TOKENIZER))
        self.assertEqual(len(made.candidates), 4)
        question = processor.encode("\n" + texts.QUESTION)
        self.assertEqual(made.without_fact[-len(question) :], question)
        word = processor.decode(question + made.candidates[made.right]).split()[-1]
        # The fact lies 100 tokens before the question, and is all that the texts differ by.
        fact = processor.encode("\n" + texts.FACT.format(word) + "\n")
        end = len(made.with_fact) - len(question) - 100
        self.assertEqual(made.with_fact[end - len(fact) : end], fact)
        self.assertEqual(made.with_fact[: end - len(fact)] + made.with_fact[end:], made.without_fact)

    def test_a_short_filler_is_repeated(self):
        made = texts.make_texts(TOKENIZER, np.arange(300, 310), 1000, 1, 2)
        self.assertEqual(made.without_fact[:20], [*range(300, 310)] * 2)

    def test_another_seed_is_another_text(self):
        first, same, other = (texts.make_texts(TOKENIZER, np.arange(300, 4000), 50, seed, 10) for seed in (1, 1, 2))
        self.assertEqual(first, same)
        self.assertNotEqual(first.with_fact, other.with_fact)


@unittest.skipUnless(IS_BUILT, "polysketch-server is not built here")
class QuickTest(ExperimentTest):
    def test_quick(self):
        quick = plan("needle", "quick")
        names = [f"novels-{depth}-{seed}" for depth, seeds in quick["seeds_of_depths"].items() for seed in range(1, seeds + 1)]
        done = self.run_quick("needle")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = self.results()
        self.assertEqual(found.keys(), set(names))
        for result in found.values():
            gains = [with_fact - without for with_fact, without in zip(result["with_fact"], result["without_fact"])]
            self.assertEqual(result["retrieved"], max(gains) == gains[result["right"]])
        self.assertEqual(self.table("needle/table")[0], "| tokens after the fact | novels |")


if __name__ == "__main__":
    unittest.main()
