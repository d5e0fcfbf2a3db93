"""What is wrong with data, settings, numbers or the disk ends in one message, and keeps the last good checkpoint."""

import contextlib
import resource
import signal
import unittest

from train_support import TrainTest

from polysketch_tools.errors import ToolError
from polysketch_training.checkpoints import newest
from polysketch_training.export import load_run


class BadDataTest(TrainTest):
    def refused(self, words: str, *options):
        with self.assertRaisesRegex(ToolError, words):
            self.train("run", *options)

    def test_files(self):
        for content, words in (
            (b"", "expected text, found an empty file"),
            (b"text\n" * 1000 + b"\0\1", r"expected UTF-8 text, found a binary file \(a zero byte at 5000\)"),
            (b"\x89PNG\r\n\x1a\n\0", "found a binary file"),
            (b"GGUF\0\0", "found a GGUF file"),
            (b"a line\n" * 300000 + b"caf\xe9 noir", r"found other bytes \(byte 0xe9 at 2100003\)"),
        ):
            with self.subTest(words):
                bad = self.dir / "bad.txt"
                bad.write_bytes(content)
                self.refused(words, f"--text={bad}")

    def test_folders(self):
        folder = self.dir / "empty"
        folder.mkdir()
        self.refused("expected files of text that match", f"--text={folder}")
        self.refused("no such file or folder", f"--text={self.dir / 'missing'}")
        (folder / ".hidden").write_text("x")
        self.refused("expected files of text that match", f"--text={folder}")

    def test_too_short(self):
        short = self.dir / "short.txt"
        short.write_text("a few words " * 4)
        self.refused("expected at least 65 tokens of text", f"--text={short}", "--vocab-size=300")

    def test_tokens(self):
        self.train("run")
        tokens = self.dir / "run/tokens/tokens.bin"
        tokenizer = f"--tokenizer={self.dir / 'run/tokenizer.model'}"
        with self.assertRaisesRegex(ToolError, "expected --tokenizer beside it"):
            self.train_on_tokens("other", tokens)
        bad = self.dir / "bad.bin"
        bad.write_bytes(b"\xff\x7f" * 500)
        with self.assertRaisesRegex(ToolError, "expected token ids below .*, found 32767"):
            self.train_on_tokens("other", bad, tokenizer)
        self.assertFalse((self.dir / "other/tokens").exists())  # the right file may follow


class BadSettingsTest(TrainTest):
    def test_another_recipe(self):
        self.train("run")
        with self.assertRaisesRegex(ToolError, "holds a run with learning_rate 0.003, found 0.001"):
            self.train("run", "--learning-rate=0.001")

    def test_another_text(self):
        self.train("run")
        self.text.write_text("another text " * 1000)
        with self.assertRaisesRegex(ToolError, "use another --out for another text"):
            self.train("run")

    def test_other_tokens(self):
        """A run goes on with the token ids that it began with, under any name of their file, and not with others or text."""
        self.train("text")
        tokens = (self.dir / "text/tokens/tokens.bin").read_bytes()
        tokenizer = f"--tokenizer={self.dir / 'text/tokenizer.model'}"
        contents = {"a": tokens, "b": tokens, "shorter": tokens[:-2], "turned": tokens[2:] + tokens[:2]}
        for name, data in contents.items():
            (self.dir / name).write_bytes(data)
        self.train_on_tokens("run", self.dir / "a", tokenizer, "--minutes=1e-9")
        self.train_on_tokens("run", self.dir / "b", tokenizer)
        words = "expected the tokens of a file of .*; use another --out"
        for name in ("shorter", "turned"):
            with self.subTest(name), self.assertRaisesRegex(ToolError, words):
                self.train_on_tokens("run", self.dir / name, tokenizer)
        with self.assertRaisesRegex(ToolError, "expected --tokens as before, found --text"):
            self.train("run")
        with self.assertRaisesRegex(ToolError, "expected the tokens of --text, as before"):
            self.train_on_tokens("text", self.dir / "a", tokenizer)

    def test_init_with_another_tokenizer(self):
        self.train("run")
        self.text.write_text("another text, whose pieces are others\n" * 1000)
        words = r"--init .*: expected its tokenizer \(--tokenizer .*/tokenizer.model\), found another one"
        with self.assertRaisesRegex(ToolError, words):
            self.train("on", f"--init={self.dir / 'run/model'}")

    def test_what_a_kind_lacks(self):
        for changes, options, words in (
            ({"attention": "softmax"}, ["--sequences=streamed"], "expected a recurrent kind, found softmax"),
            ({"attention": "polynomial", "power": 4}, ["--sequences=packed", "--decay-gate"], "expected a recurrent kind"),
            ({"grain_size": 48}, ["--sequences=streamed"], r"expected a multiple of the block \(48\) .*, found 64"),
            ({}, ["--sketch-seed=3"], "expected random_sketch or random_sketch_mixed, found learned_sketch_mixed"),
        ):
            with self.subTest(words), self.assertRaisesRegex(ToolError, words):
                self.train("run", f"--config={self.write_config('other.json', **changes)}", *options)


class BadNumbersTest(TrainTest):
    def test_a_loss_that_is_not_finite(self):
        """The rate grows until weights leave float32: the message names the step, and the checkpoint before it is finite."""
        options = ("--steps=40", "--save-every=1", "--learning-rate=1e36", "--warmup-steps=40", "--sequences=packed")
        with self.assertRaisesRegex(ToolError, r"step \d+: expected a finite loss and gradient, found .*step (\d+)"):
            self.train("run", *options)
        checkpoint = newest(self.dir / "run/checkpoints")
        self.assertIsNotNone(checkpoint)
        self.assertEqual(int(checkpoint.name[5:]), len(self.losses("run")))
        for name, tensor in load_run(self.dir / "run")[0].state_dict().items():
            self.assertTrue(tensor.isfinite().all(), name)

    def test_weights_that_are_not_finite_are_not_saved(self):
        """The step leaves float32: no later loss is needed to see it."""
        with self.assertRaisesRegex(ToolError, "step 1: expected finite weights, found"):
            self.train("run", "--steps=2", "--save-every=1", "--learning-rate=1e36", "--warmup-steps=0", "--weight-decay=1e5")
        self.assertIsNone(newest(self.dir / "run/checkpoints"))


@contextlib.contextmanager
def largest_file(size: int):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


class FullDiskTest(TrainTest):
    """A limit of the size of files stands for a full disk: the same error of the same calls."""

    def test_log(self):
        """What is written at every step meets the full disk first."""
        options = ("--steps=40", "--save-every=100")
        self.train("run", *options, "--minutes=1e-9")
        written = (self.dir / "run/losses.csv").stat().st_size
        words = "losses.csv: cannot be written: .*; the last good checkpoint is .*step-00000001"
        with largest_file(written + 100), self.assertRaisesRegex(ToolError, words):
            self.train("run", *options)
        self.train("run", *options)
        self.assertEqual(len(self.losses("run")), 40)

    def test_checkpoint(self):
        self.train("run", "--steps=6", "--save-every=2", "--minutes=1e-9")  # one step, one checkpoint
        before = newest(self.dir / "run/checkpoints")
        self.train("whole", "--steps=6", "--save-every=2")
        words = "cannot be written: .*; the last good checkpoint is .*step-00000001"
        with largest_file(60_000), self.assertRaisesRegex(ToolError, words):
            self.train("run", "--steps=6", "--save-every=2")
        self.assertEqual(newest(self.dir / "run/checkpoints"), before)
        self.assertEqual([path.name for path in (self.dir / "run/checkpoints").iterdir()], [before.name])
        self.train("run", "--steps=6", "--save-every=2")
        self.assertEqual(self.losses("run"), self.losses("whole"))


if __name__ == "__main__":
    unittest.main()
