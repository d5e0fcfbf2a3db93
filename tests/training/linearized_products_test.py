"""The linearized models of scripts/get-model: the log-probabilities of the server's model beside those of polysketch-linearize's.
POLYSKETCH_TEST_FULL=1: 8,192 tokens in place of 1,024."""

import unittest

import numpy as np
import torch

import support
from frames_test import PROBE, instruction_sets, probe
from smollm2_test import FULL

from polysketch_tools.adapter import Adapter
from polysketch_training.linearize.decoder import FULL as FULL_LAYER
from polysketch_training.linearize.decoder import WITH_FAR, WITH_SINKS, Decoder, load_tokenizer
from polysketch_training.linearize.texts import DEFAULT_TEXT

# Name -> the types of its 30 layers, and how many layers are full.
PRODUCTS = {
    "smollm2-hybrid": ({FULL_LAYER, WITH_SINKS}, 6),
    "smollm2-polysketch": ({WITH_FAR}, 0),
}
TOKENS = 8192 if FULL else 1024
BLOCK = 512  # positions whose logits are compared at a time
LARGEST_ADAPTER = 6_000_000


class AdapterTest(unittest.TestCase):
    def test_size_and_layers(self):
        for name, (kinds, full) in PRODUCTS.items():
            with self.subTest(name):
                folder = support.ROOT / "models/adapters" / name
                self.assertLess(sum(path.stat().st_size for path in folder.iterdir() if path.is_file()), LARGEST_ADAPTER)
                types = Adapter.read(folder).fields["layer_types"]
                self.assertEqual(len(types), 30)
                self.assertEqual(set(types), kinds)
                self.assertEqual(types.count(FULL_LAYER), full)


@unittest.skipUnless(PROBE.exists(), "logits-probe is not built here")
class ServedTest(unittest.TestCase):
    def test_log_probabilities(self):
        tokenizer = load_tokenizer(support.get_model("smollm2"))  # the same: transformers refuses config.json of the others
        tokens = np.array(tokenizer.encode(DEFAULT_TEXT.read_text()[: 8 * TOKENS])[:TOKENS], np.int32)
        self.assertEqual(len(tokens), TOKENS)
        for name in PRODUCTS:
            with self.subTest(name):
                folder = support.get_model(name)
                decoder = Decoder(folder, torch.device("cpu"))
                hidden = decoder.hidden(tokens)
                found = torch.from_numpy(probe(folder, instruction_sets()[-1], "f32", "256", tokens).copy())
                largest = 0.0
                for begin in range(0, TOKENS, BLOCK):
                    rows = slice(begin, begin + BLOCK)
                    expected, served = (x.double().log_softmax(-1) for x in (hidden[rows] @ decoder.head.T, found[rows]))
                    largest = max(largest, (served - expected).abs().max().item())
                self.assertLess(largest, 1e-3)


if __name__ == "__main__":
    unittest.main()
