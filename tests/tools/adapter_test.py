"""Adapters of polysketch-linearize: the folder that a merge writes, and what is refused. tests/training compares it with PEFT."""

import json
import math
import shutil
import subprocess
import unittest

import support

import ml_dtypes
import numpy as np

from polysketch_tools import adapter, safetensors
from polysketch_tools.errors import ToolError

RANK, ALPHA = 3, 7
Q, NORM = "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"
A, B = (f"base_model.model.model.layers.0.self_attn.q_proj.lora_{which}.weight" for which in "AB")
FAR = "model.layers.0.self_attn.far_q.weight"
FIELDS = {"layer_types": ["window_with_far_part"], "attention_sinks": 4}


class AdapterTest(support.ToolTest):
    def setUp(self):
        super().setUp()
        self.rng = np.random.default_rng(1)
        self.base, self.adapter, self.out = (self.dir / name for name in ("base", "adapter", "out"))
        self.base.mkdir()
        self.adapter.mkdir()
        self.write_base("F32")
        for name, text in (("config.json", '{"hidden_size": 5}'), ("tokenizer.json", "{}"), ("LICENSE", "A licence."),
                           ("README.md", "The base."), ("notes.txt", "None.")):  # fmt: skip
            (self.base / name).write_text(text)
        self.lora = {A: self.draw(RANK, 5), B: self.draw(8, RANK)}
        self.write_adapter()
        (self.adapter / "README.md").write_text("The model.")

    def draw(self, *shape):
        return self.rng.normal(size=shape).astype(ml_dtypes.bfloat16)

    def write_base(self, dtype: str, scale: float = 1.0) -> None:
        kind = safetensors.DTYPES[dtype]
        self.tensors = {Q: (scale * self.rng.normal(size=(8, 5))).astype(kind), NORM: np.ones(5, kind)}
        safetensors.write(self.base / "model.safetensors", self.tensors)

    def write_adapter(self, **config) -> None:
        safetensors.write(self.adapter / "adapter_model.safetensors", self.lora)
        (self.adapter / "adapter_config.json").write_text(json.dumps({"r": RANK, "lora_alpha": ALPHA} | config))
        safetensors.write(self.adapter / "far.safetensors", {FAR: self.draw(4, 5)})
        (self.adapter / "model.json").write_text(json.dumps(FIELDS))

    def merge(self, **options) -> dict[str, np.ndarray]:
        adapter.merge(self.base, self.adapter, self.out, **options)
        return safetensors.read(adapter.weight_files(self.out))

    def exact(self) -> np.ndarray:
        """The merged weight: sums that are rounded once to float64, of products that it holds exactly."""
        a, b = self.lora[A].astype(np.float64), self.lora[B].astype(np.float64)
        delta = [[math.fsum(b[i] * a[:, j]) for j in range(5)] for i in range(8)]
        return self.tensors[Q].astype(np.float64) + ALPHA / RANK * np.array(delta)

    def test_weights(self):
        for dtype, digits in (("F32", 24), ("F16", 11), ("BF16", 8)):
            with self.subTest(dtype):
                self.write_base(dtype)
                found, expected = self.merge(overwrite=True), self.exact()
                self.assertEqual({name: array.dtype for name, array in found.items()},
                                 {Q: self.tensors[Q].dtype, NORM: self.tensors[NORM].dtype, FAR: np.float32})  # fmt: skip
                # Rounded to the type: half a unit of its last digit, and some of float64.
                np.testing.assert_allclose(found[Q].astype(np.float64), expected, rtol=2.0**-digits * 1.01)
                np.testing.assert_array_equal(found[NORM], self.tensors[NORM])
                np.testing.assert_array_equal(found[FAR], safetensors.read([self.adapter / "far.safetensors"])[FAR].astype(np.float32))

    def test_folder(self):
        self.merge()
        self.assertEqual(json.loads((self.out / "config.json").read_text()), {"hidden_size": 5} | FIELDS)
        files = {path.name for path in self.out.iterdir()}
        self.assertEqual(files, {"LICENSE", "README.md", "README.teacher.md", "SHA256SUMS", "config.json", "model.safetensors", "tokenizer.json"})
        self.assertEqual([(self.out / name).read_text() for name in ("README.md", "README.teacher.md")], ["The model.", "The base."])
        checked = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=self.out, check=False)
        self.assertEqual(checked.returncode, 0)
        sums = (self.out / "SHA256SUMS").read_bytes()
        with self.assertRaisesRegex(ToolError, "--overwrite"):
            self.merge()
        self.merge(overwrite=True)
        self.assertEqual((self.out / "SHA256SUMS").read_bytes(), sums)

    def test_parts(self):
        """Without LoRA, without far parts, and a base in two files."""
        (self.adapter / "adapter_model.safetensors").unlink()
        found = self.merge()
        self.assertEqual(found.keys(), {Q, NORM, FAR})
        np.testing.assert_array_equal(found[Q], self.tensors[Q])
        self.write_adapter()
        (self.adapter / "far.safetensors").unlink()
        self.assertEqual(self.merge(overwrite=True).keys(), {Q, NORM})
        (self.base / "model.safetensors").unlink()
        for name, array in self.tensors.items():
            safetensors.write(self.base / f"{name}.safetensors", {name: array})
        index = {"weight_map": {name: f"{name}.safetensors" for name in self.tensors}}
        (self.base / "model.safetensors.index.json").write_text(json.dumps(index))
        self.write_adapter()
        np.testing.assert_allclose(self.merge(overwrite=True)[Q], self.exact(), rtol=2.0**-23)

    def refused(self, words: str) -> None:
        with self.subTest(words), self.assertRaisesRegex(ToolError, words):
            self.merge(overwrite=True)
        self.assertFalse(self.out.exists())

    def test_refused(self):
        whole = dict(self.lora)
        for changes, words in (
            ({A: None}, r"expected matrices \[3, in\] and \[out, 3\], found None and \[8, 3\]"),
            ({B: None}, r"found \[3, 5\] and None"),
            ({A: self.draw(2, 5)}, r"found \[2, 5\] and \[8, 3\]"),
            ({A: self.draw(3, 6)}, rf"expected tensor {Q} \[8, 6\], as the adapter has it; found \[8, 5\]"),
            ({A.replace("q_proj", "x"): whole[A], B.replace("q_proj", "x"): whole[B]}, "found none of this name"),
            ({"lm_head.weight": self.draw(2, 2)}, "expected LoRA of weights, found tensor lm_head.weight"),
        ):
            self.lora = {name: array for name, array in (whole | changes).items() if array is not None}
            self.write_adapter()
            self.refused(words)
        self.lora = whole
        self.write_adapter(r=0)
        self.refused("expected a rank r and lora_alpha, found 0 and 7")
        self.write_adapter(lora_alpha=1e300)
        self.refused("expected finite values within the range of F32, found others")
        self.write_adapter()
        safetensors.write(self.adapter / "far.safetensors", {NORM: self.draw(5)})
        self.refused(f"expected no tensor {NORM}, which the adapter adds")
        (self.adapter / "model.json").unlink()
        self.refused("expected an adapter of polysketch-linearize, found no model.json")
        shutil.rmtree(self.adapter)
        self.refused("found no model.json")


if __name__ == "__main__":
    unittest.main()
