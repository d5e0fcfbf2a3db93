"""tools/make-random: every kind, the presets' sizes, the same seed the same bytes."""

import json
import unittest

import support

import numpy as np

from polysketch_tools import safetensors
from polysketch_tools.errors import ToolError
from polysketch_tools.make_random import PRESETS, main, make_random
from polysketch_tools.model_config import (
    ATTENTION_KINDS,
    read_model_config,
    tensor_shapes,
    used_fields,
)

OPTIONAL = {
    "grain_size": 16,
    "power": 8,  # of every kind: polynomial_square has no higher one
    "near_power": 4,
    "sketch_size": 8,
    "num_features": 40,
    "sketch_kind": "srht",
}


def config_of(kind: str) -> dict:
    config = {
        "attention": kind,
        "vocab_size": 50,
        "emb_dim": 32,
        "num_heads": 2,
        "num_layers": 2,
        "context_length": 64,
    }
    return config | {name: OPTIONAL[name] for name in used_fields(kind)}


class MakeRandomTest(support.ToolTest):
    def make(self, config: dict, out="out", **options):
        path = self.write_json("config.json", config)
        make_random(read_model_config(path), self.dir / out, **options)
        return self.dir / out

    def test_every_kind(self):
        for kind in ATTENTION_KINDS:
            with self.subTest(kind):
                out = self.make(config_of(kind), kind, dtype="F32")
                tensors = safetensors.read([out / "model.safetensors"])
                config = read_model_config(out / "config.json")
                self.assertEqual(
                    {name: array.shape for name, array in tensors.items()}, tensor_shapes(config)
                )
                written = json.loads((out / "config.json").read_text())
                self.assertEqual({name: written[name] for name in config_of(kind)}, config_of(kind))
                for name, array in tensors.items():
                    self.assertGreater(array.std(), 0, name)

    def test_sketch_shapes(self):
        shapes = tensor_shapes(
            read_model_config(self.write_json("c.json", config_of("random_sketch") | {"power": 16}))
        )
        names = {
            name: shape for name, shape in shapes.items() if name.startswith("layers.1.attn.sketch")
        }
        self.assertEqual(
            names,
            {
                "layers.1.attn.sketch.level0": (8, 16, 8),
                "layers.1.attn.sketch.level1": (4, 8, 8),
                "layers.1.attn.sketch.level2": (2, 8, 8),
            },
        )

    def test_presets(self):
        for name, millions in (("paper-110m", 110.6), ("paper-730m", 730.8)):
            config = PRESETS[name]
            config.check()
            parameters = sum(int(np.prod(shape)) for shape in tensor_shapes(config).values())
            self.assertAlmostEqual(parameters / 1e6, millions, delta=0.1)
            self.assertEqual(
                (
                    config.attention,
                    config.sketch_size,
                    config.grain_size,
                    config.head_dim,
                    config.vocab_size,
                ),
                ("learned_sketch_mixed", 32, 256, 64, 32000),
            )

    def test_the_seed_decides(self):
        first = self.make(config_of("performer"), "a", seed=1)
        again = self.make(config_of("performer"), "b", seed=1, shard_bytes=5000)
        other = self.make(config_of("performer"), "c", seed=2)
        tensors = [
            safetensors.read(sorted(folder.glob("*.safetensors")))
            for folder in (first, again, other)
        ]
        for name, array in tensors[0].items():
            np.testing.assert_array_equal(array, tensors[1][name])
            self.assertTrue((array != tensors[2][name]).any(), name)

    def test_layers_differ(self):
        tensors = safetensors.read([self.make(config_of("random_sketch")) / "model.safetensors"])
        self.assertTrue(
            (tensors["layers.0.attn.sketch.level0"] != tensors["layers.1.attn.sketch.level0"]).any()
        )

    def test_wrong_configs(self):
        for changes, message in (
            ({"grain": 3}, 'unknown field "grain"'),
            ({"attention": "x"}, 'field "attention": expected one of'),
            ({"sketch_size": None}, 'field "sketch_size": missing'),
            ({"power": 6}, 'field "power": expected a power of two from 4, found 6'),
            ({"sketch_kind": "x"}, 'field "sketch_kind": expected one of gaussian, srht'),
            (
                {"sketch_size": 300},
                'field "sketch_size": expected an integer in [1, 256], found 300',
            ),
            ({"format_version": 4}, 'field "format_version": expected one of 1, 2, 3; found 4'),
            (
                {"format_version": 1, "decay_gate": True},
                'field "decay_gate": expected format_version 2 beside it, found 1',
            ),
            ({"decay_gate": 1}, 'field "decay_gate": expected true or false, found 1'),
            ({"bos_id": 50}, 'field "bos_id": expected an integer in [-1, 49], found 50'),
            ({"add_bos": True}, 'field "add_bos": expected a bos_id beside it'),
        ):
            with self.subTest(message):
                config = {
                    k: v for k, v in (config_of("random_sketch") | changes).items() if v is not None
                }
                with self.assertRaises(ToolError) as caught:
                    self.make(config)
                self.assertIn(message, str(caught.exception))
                self.assertFalse((self.dir / "out").exists())

    def test_decay_gate(self):
        path = self.write_json("config.json", config_of("linear"))
        main(["--config", str(path), "--out", str(self.dir / "m"), "--decay-gate"])
        tensors = safetensors.read([self.dir / "m/model.safetensors"])
        config = read_model_config(self.dir / "m/config.json")
        self.assertTrue(config.decay_gate)
        self.assertEqual(json.loads((self.dir / "m/config.json").read_text())["format_version"], 2)
        for name, shape in (("weight", (32, 2)), ("bias", (2,))):
            gate = tensors[f"layers.1.attn.gate.{name}"]
            self.assertEqual((gate.shape, gate.dtype), (shape, np.float32))
        path = self.write_json("config.json", config_of("softmax"))
        with self.assertRaises(ToolError) as caught:
            main(["--config", str(path), "--out", str(self.dir / "kv"), "--decay-gate"])
        self.assertIn('field "decay_gate": expected false for attention softmax', str(caught.exception))

    def test_coefficients(self):
        """F32 in every format, of a layer or of its heads."""
        for kind, fields, shape in (
            ("polynomial_square", {"power": 3}, (4,)),
            ("polynomial_square", {"power": 3, "head_coefficients": True, "alpha": -1.5, "beta": 4}, (2, 4)),
            ("affine_square", {"learned_coefficients": False}, (2,)),
            ("affine_square", {"head_coefficients": True, "power": 1}, (2, 2)),
        ):
            with self.subTest(kind, **fields):
                for dtype in ("F32", "BF16", "Q8", "Q4"):
                    out = self.make(config_of(kind) | fields, "m", dtype=dtype, overwrite=True)
                    stored = safetensors.read([out / "model.safetensors"])["layers.1.attn.coefficients"]
                    self.assertEqual((stored.shape, stored.dtype), (shape, np.float32))
                written = json.loads((out / "config.json").read_text())
                self.assertEqual(written["format_version"], 3)
                self.assertEqual({name: written[name] for name in fields}, fields)

    def test_wrong_coefficients(self):
        for kind, changes, message in (
            ("polynomial_square", {"power": 9}, 'field "power": expected an integer in [1, 8], found 9'),
            ("polynomial_square", {"power": 0}, 'field "power": expected an integer in [1, 8], found 0'),
            ("affine_square", {"power": 2}, 'field "power": expected an integer in [1, 1], found 2'),
            ("affine_square", {"beta": 0}, 'field "beta": expected a number in [1e-06, 1e+06], found 0'),
            ("affine_square", {"alpha": "1"}, "field \"alpha\": expected a number in [-1e+06, 1e+06], found '1'"),
            ("affine_square", {"head_coefficients": 2}, 'field "head_coefficients": expected true or false, found 2'),
            ("affine_square", {"emb_dim": 512}, "expected emb_dim 512 / num_heads to be at most 255"),
            ("affine_square", {"format_version": 2}, 'field "format_version": expected 3 for attention affine_square'),
        ):
            with self.subTest(message), self.assertRaises(ToolError) as caught:
                self.make(config_of(kind) | changes)
            self.assertIn(message, str(caught.exception))

    def test_without_sinusoids(self):
        path = self.write_json("config.json", config_of("softmax"))
        main(["--config", str(path), "--out", str(self.dir / "m"), "--no-sinusoids"])
        fields = json.loads((self.dir / "m/config.json").read_text())
        self.assertEqual((fields["format_version"], fields["sinusoidal_positions"]), (2, False))
        self.assertNotIn("decay_gate", fields)
        self.assertFalse(read_model_config(self.dir / "m/config.json").sinusoidal_positions)
        path = self.write_json("old.json", fields | {"format_version": 1})
        with self.assertRaisesRegex(ToolError, '"sinusoidal_positions": expected format_version 2'):
            read_model_config(path)

    def test_command_line_with_a_tokenizer(self):
        path = self.write_json("config.json", config_of("linear") | {"vocab_size": 4096})
        main(
            [
                "--config",
                str(path),
                "--out",
                str(self.dir / "m"),
                "--dtype",
                "f16",
                "--tokenizer",
                str(support.DEMO / "tokenizer.model"),
            ]
        )
        config = read_model_config(self.dir / "m/config.json")
        self.assertEqual((config.bos_id, config.eos_id, config.add_bos), (1, 2, True))
        self.assertTrue((self.dir / "m/tokenizer.model").exists())


if __name__ == "__main__":
    unittest.main()
