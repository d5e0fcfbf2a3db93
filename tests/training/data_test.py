"""From text to batches: the tokens are the text, rows go on where they were, draws can be saved; the learning rate."""

import unittest

import numpy as np
import sentencepiece

import support  # noqa: F401: the paths
from train_support import TrainTest

from polysketch_training import text_files, token_file
from polysketch_training.batches import Batches
from polysketch_training.learning_rate import learning_rate
from polysketch_training.presets import PRESETS, Recipe
from polysketch_training.tokenizer_training import train_tokenizer
from polysketch_training.train_options import parser, preset_of


class TokensTest(TrainTest):
    def test_tokens_are_the_text(self):
        """Two documents, one larger than a piece: BOS, text, EOS of each; decoded it is the text, newlines and all."""
        first, second = self.dir / "a.txt", self.dir / "b.txt"
        first.write_text("A line with ünïcode and   spaces.\n\n" * 40000)
        second.write_text("short, without an end of line")
        tokenizer = self.dir / "tokenizer.model"
        train_tokenizer([first, second], 300, tokenizer)
        processor = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer))
        files = text_files.find_files([self.dir], "*.txt")
        token_file.write_tokens([first, second], tokenizer, self.dir / "tokens", quiet=True)
        tokens = token_file.open_tokens(self.dir / "tokens", processor.piece_size())
        self.assertEqual(files[:2], [first, second])
        self.assertEqual(tokens.ids.dtype, np.uint16)
        self.assertEqual(len(tokens.documents), 2)
        begin, end = tokens.documents[1], len(tokens.ids)
        for ids, path in ((tokens.ids[:begin], first), (tokens.ids[begin:end], second)):
            self.assertEqual((ids[0], ids[-1]), (processor.bos_id(), processor.eos_id()))
            text = "".join(processor.decode([int(i) for i in piece]) for piece in np.array_split(ids[1:-1], 1))
            self.assertEqual(text.replace(" ", ""), path.read_text().replace(" ", ""))

    def test_a_short_text_gives_fewer_pieces(self):
        self.text.write_text("few words, few pieces\n" * 50)
        self.assertIn("pieces, not 4000", self.train("run", "--vocab-size=4000"))
        self.train("run", "--vocab-size=4000")  # again: the tokenizer of the folder is taken


class BatchesTest(unittest.TestCase):
    def batches(self, rank: int = 0, documents=(0, 1000, 7000), **changes) -> Batches:
        fields = {"steps": 1, "warmup_steps": 0, "learning_rate": 1, "batch": 4, "length": 32, "stream_chunks": 6}
        recipe = Recipe(**fields | changes)
        tokens = token_file.Tokens(np.arange(20000, dtype=np.uint16), np.array(documents))
        return Batches(tokens, recipe, block=16, rank=rank)

    def test_streamed_rows_go_on(self):
        batches, before, restarts = self.batches(sequences="streamed", max_offset=1 << 16), None, 0
        for _ in range(100):
            batch = batches.next()
            self.assertTrue((batch.targets == batch.tokens + 1).all())  # the text counts up
            self.assertTrue((batch.positions % 16 == 0).all())
            if before is not None:
                for row in range(4):
                    if batch.starts[row]:
                        restarts += 1
                    else:
                        self.assertEqual(batch.tokens[row, 0], before.tokens[row, -1] + 1)
                        self.assertEqual(batch.positions[row], before.positions[row] + 32)
            before = batch
        # 400 chances of 1/6 each: 67 expected, seven standard deviations of 7.5 allowed.
        self.assertAlmostEqual(restarts, 67, delta=52)

    def test_packed_rows_start_anew(self):
        batches = self.batches(max_offset=1 << 16)
        drawn = [batches.next() for _ in range(100)]
        self.assertTrue(all(batch.starts.all() for batch in drawn))
        positions = np.concatenate([batch.positions.numpy() for batch in drawn])
        self.assertAlmostEqual((positions == 0).mean(), 0.7, delta=0.16)  # seven standard deviations of 400 draws
        self.assertGreater(positions.max(), 1 << 13)
        self.assertLessEqual(positions.max(), 1 << 16)
        first = np.concatenate([batch.tokens[:, 0].numpy() for batch in drawn])
        self.assertAlmostEqual(np.isin(first, [0, 1000, 7000]).mean(), 0.5, delta=0.18)

    def test_the_end_of_the_text(self):
        batches = self.batches(sequences="streamed", stream_chunks=10**9)
        for _ in range(2000):  # 64,000 tokens a row, of a text of 20,000
            batch = batches.next()
            self.assertTrue((batch.targets == batch.tokens + 1).all())

    def test_restored_draws_and_processes(self):
        for sequences in ("packed", "streamed"):
            one, two = (self.batches(sequences=sequences, max_offset=4096) for _ in range(2))
            for _ in range(10):
                one.next()
            two.restore(one.state())
            for _ in range(20):
                a, b = one.next(), two.next()
                self.assertTrue((a.tokens == b.tokens).all() and (a.positions == b.positions).all())
            self.assertFalse((self.batches(rank=1).next().tokens == self.batches(rank=0).next().tokens).all())


class LearningRateTest(unittest.TestCase):
    def test_the_warm_up_of_a_shorter_run(self):
        """It keeps its share of the steps unless it is given; 0 is given, too."""
        for options, steps in (("", 200), ("--steps=250", 20), ("--steps=250 --warmup-steps=0", 0), ("--warmup-steps=7", 7)):
            args = parser().parse_args(["--text", "x", "--out", "y", *options.split()])
            self.assertEqual(preset_of(args).recipe.warmup_steps, steps, options)

    def test_the_papers_recipe(self):
        recipe = PRESETS["paper-110m"].recipe
        self.assertEqual((recipe.steps, recipe.warmup_steps, recipe.learning_rate), (125_000, 10_000, 7e-4))
        rates = [learning_rate(recipe, step) for step in range(recipe.steps)]
        self.assertAlmostEqual(rates[0], 7e-8)
        self.assertAlmostEqual(rates[9_999], 7e-4)
        self.assertAlmostEqual(rates[10_000], 7e-4)
        self.assertAlmostEqual(rates[-1], 7e-5)
        middle = (10_000 + 124_999) // 2
        self.assertAlmostEqual(rates[middle], 7e-4 * 0.55, places=7)
        self.assertEqual(rates, sorted(rates[:10_000]) + sorted(rates[10_000:], reverse=True))


if __name__ == "__main__":
    unittest.main()
