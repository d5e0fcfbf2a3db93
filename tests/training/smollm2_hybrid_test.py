"""models/smollm2-hybrid: the log-probabilities of the server's model beside those of polysketch-linearize's.
POLYSKETCH_TEST_FULL=1: 8,192 tokens in place of 1,024."""

import pathlib
import subprocess
import unittest

import numpy as np
import torch

import support
from frames_test import PROBE, instruction_sets, probe
from smollm2_test import FULL

from polysketch_tools.adapter import Adapter
from polysketch_training.linearize.decoder import Decoder, load_tokenizer
from polysketch_training.linearize.texts import DEFAULT_TEXT

NAME = "smollm2-hybrid"
FOLDER, ADAPTER = support.ROOT / "models" / NAME, support.ROOT / "models/adapters" / NAME
TOKENS = 8192 if FULL else 1024
BLOCK = 512  # positions whose logits are compared at a time
LARGEST_ADAPTER = 6_000_000


class AdapterTest(unittest.TestCase):
    def test_size(self):
        files = [path for path in ADAPTER.iterdir() if path.is_file()]
        self.assertLess(sum(path.stat().st_size for path in files), LARGEST_ADAPTER)
        config = Adapter.read(ADAPTER).fields
        self.assertEqual(len(config["layer_types"]), 30)
        self.assertLessEqual(config["layer_types"].count("full_attention"), 6)


@unittest.skipUnless(PROBE.exists(), "logits-probe is not built here")
class ServedTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = subprocess.run([support.ROOT / "scripts/get-model", NAME], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            raise unittest.SkipTest(f"models/{NAME} cannot be had here: {(made.stderr.splitlines() or [''])[-1]}")
        text = pathlib.Path(DEFAULT_TEXT).read_text()
        cls.tokens = np.array(load_tokenizer(support.ROOT / "models/smollm2").encode(text[: 8 * TOKENS])[:TOKENS], np.int32)
        cls.decoder = Decoder(FOLDER, torch.device("cpu"))

    def logs(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.double().log_softmax(-1)

    def test_log_probabilities(self):
        self.assertEqual(len(self.tokens), TOKENS)
        hidden = self.decoder.hidden(self.tokens)
        found = probe(FOLDER, instruction_sets()[-1], "f32", "256", self.tokens)
        largest = 0.0
        for begin in range(0, TOKENS, BLOCK):
            rows = slice(begin, begin + BLOCK)
            expected = self.logs(hidden[rows] @ self.decoder.head.T)
            served = self.logs(torch.from_numpy(found[rows].copy()))
            largest = max(largest, (served - expected).abs().max().item())
        self.assertLess(largest, 1e-3)


if __name__ == "__main__":
    unittest.main()
