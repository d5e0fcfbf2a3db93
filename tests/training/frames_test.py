"""The server's models of the frames of Hugging Face folders compute what transformers computes."""

import os
import pathlib
import subprocess
import tempfile
import unittest

import numpy as np

import frame_models
import support

PROBE = pathlib.Path(os.environ.get("POLYSKETCH_BIN_DIR", support.ROOT / "build/cpu/bin")) / "logits-probe"
TOKENS = 200
# Wider than the recordings of tests/data/frames: every kernel has whole vectors and rests.
CHANGES = {"vocab_size": 517, "hidden_size": 144, "intermediate_size": 392, "num_hidden_layers": 4, "head_dim": 32}


def instruction_sets() -> list[str]:
    """Those that this machine has, of the ones that the cpu backend is compiled for."""
    flags = pathlib.Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split()
    sets = [
        ("avx2", "avx2"),
        ("avxvnni", "avx_vnni"),
        ("avx512", "avx512f"),
        ("avx512vnni", "avx512_vnni"),
        ("avx512bf16", "avx512_bf16"),
    ]
    return [name for name, flag in sets if flag in flags]


def probe(folder: pathlib.Path, backend: str, weights: str, parts: str, tokens: np.ndarray) -> np.ndarray:
    result = subprocess.run([PROBE, folder, backend, weights, parts], input=tokens.tobytes(), capture_output=True)
    if result.returncode != 0:
        raise AssertionError(result.stderr.decode())
    return np.frombuffer(result.stdout, np.float32).reshape(len(tokens), -1)


@unittest.skipUnless(PROBE.exists(), "logits-probe is not built here")
class FramesTest(unittest.TestCase):
    def test_logits(self):
        for name in frame_models.CASES:
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                model = frame_models.random_model(name, **CHANGES)
                frame_models.save(model, folder)
                tokens = frame_models.random_tokens(model, TOKENS)
                expected = frame_models.logits_of(model, tokens).numpy()
                for backend in ["reference", *instruction_sets()]:
                    found = probe(folder, backend, "f32", str(TOKENS), tokens)
                    # Four layers: some hundred roundings of 2^-24, and in transformers angles of float32.
                    error = np.abs(found - expected).max() / np.abs(expected).max()
                    self.assertLess(error, 1e-4, backend)
                    if backend == "reference":
                        continue
                    for parts in ("1", "64", "7,1,90,30"):
                        np.testing.assert_array_equal(probe(folder, backend, "f32", parts, tokens), found, f"{backend} {parts}")


if __name__ == "__main__":
    unittest.main()
