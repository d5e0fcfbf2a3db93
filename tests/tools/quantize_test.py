"""Quantised model folders: the server's own integers, whatever quantised them."""

import json
import os
import pathlib
import subprocess
import unittest

import support

import numpy as np

from polysketch_tools import quantize
from polysketch_tools.make_random import make_random
from polysketch_tools.model_config import read_model_config

BENCH = pathlib.Path(os.environ["POLYSKETCH_BIN_DIR"]) / "polysketch-bench"

CONFIG = {
    "attention": "learned_sketch_mixed",
    "vocab_size": 90,
    "emb_dim": 200,  # no multiple of a group, and large enough for four bits
    "num_heads": 4,
    "num_layers": 2,
    "context_length": 64,
    "grain_size": 16,
    "sketch_size": 8,
}


def perplexity(model: pathlib.Path, weights: str, tokens: pathlib.Path) -> float:
    """Of every state format; every digit of a sum over all log-probabilities."""
    command = [BENCH, "--model", model, "--weights", weights, "--drift", tokens, "--json"]
    command += ["--drift-tokens", "200", "--threads", "1"]
    rows = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["drift"]
    return [row["perplexity"] for row in rows]


class QuantizedFolders(support.ToolTest):
    def test_stored_is_what_the_server_makes_on_load(self):
        tokens = self.dir / "tokens"
        np.random.default_rng(0).integers(0, 90, 200).astype("<u2").tofile(tokens)
        config = self.dir / "config.json"
        config.write_text(json.dumps(CONFIG))
        for dtype in ("f32", "q8", "q4"):
            make_random(read_model_config(config), self.dir / dtype, dtype=dtype.upper())
        plain = perplexity(self.dir / "f32", "f32", tokens)
        for dtype in ("q8", "q4"):
            stored = perplexity(self.dir / dtype, dtype, tokens)
            self.assertEqual(stored, perplexity(self.dir / "f32", dtype, tokens), dtype)
            self.assertNotEqual(stored, plain)
        # Read as another format: near what was quantised.
        for weights in ("f32", "bf16", "q8"):
            np.testing.assert_allclose(
                perplexity(self.dir / "q4", weights, tokens), plain, rtol=0.05
            )

    def test_group_of_known_scale(self):
        integers = np.arange(32) % 16 - 8
        packed, scales = quantize.quantize("Q4", "x", (integers * 0.25)[:, None])
        self.assertEqual(float(scales[0, 0]), 0.25)
        self.assertEqual(list(packed[:, 0] & 15), list(integers[:16] + 8))
        self.assertEqual(list(packed[:, 0] >> 4), list(integers[16:] + 8))


if __name__ == "__main__":
    unittest.main()
