"""tools/convert: both checkpoint forms give the same folder, and what does not fit is named."""

import json
import os
import pathlib
import subprocess
import unittest

import support
from support import (
    DEMO,
    GOLDENS,
    SHARED,
    flax_leaves,
    transformer_config,
    write_msgpack,
    write_orbax,
)

import ml_dtypes
import msgpack
import numpy as np

from polysketch_tools import safetensors
from polysketch_tools.convert import convert
from polysketch_tools.errors import ToolError

CASES = (
    "learned_sketch",
    "learned_sketch_mixed",
    "polynomial_p4",
    "polynomial_p8",
    "random_sketch",
    "softmax",
)


def model_bytes(folder: pathlib.Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


class ConvertTest(support.ToolTest):
    def convert(
        self,
        case: str,
        leaves=None,
        config=None,
        out="out",
        tokenizer=None,
        checkpoint=None,
        **options,
    ):
        if checkpoint is None:
            checkpoint = write_msgpack(
                self.dir / "ckpt.msgpack", flax_leaves(case) if leaves is None else leaves
            )
        config_path = self.write_json(
            "config.json", transformer_config(case) if config is None else config
        )
        convert(checkpoint, config_path, tokenizer, self.dir / out, **options)
        return self.dir / out

    def assert_refused(self, message: str, case="softmax", **arguments):
        with self.assertRaises(ToolError) as caught:
            self.convert(case, **arguments)
        self.assertIn(message, str(caught.exception))
        self.assertEqual(
            [p.name for p in self.dir.iterdir() if "out" in p.name],
            [],
            "nothing half-written stays",
        )

    # --- what is accepted ---

    def test_checksums(self):
        out = self.convert("softmax")
        listed = {line.split("  ")[1] for line in (out / "SHA256SUMS").read_text().splitlines()}
        self.assertEqual(listed, {p.name for p in out.iterdir()} - {"SHA256SUMS"})
        check = ["sha256sum", "--strict", "-c", "SHA256SUMS"]
        subprocess.run(check, cwd=out, check=True, capture_output=True)
        with (out / "model.safetensors").open("r+b") as file:
            file.seek(-1, 2)
            last = file.read(1)
            file.seek(-1, 2)
            file.write(bytes([last[0] ^ 1]))
        self.assertEqual(subprocess.run(check, cwd=out, capture_output=True).returncode, 1)

    def test_msgpack(self):
        for case in CASES:
            with self.subTest(case):
                out = self.convert(case, out=case)
                self.assertEqual(model_bytes(out), model_bytes(GOLDENS / case))
                self.assertEqual(
                    (out / "config.json").read_text(), (GOLDENS / case / "config.json").read_text()
                )

    def test_orbax(self):
        for ocdbt in (True, False):
            with self.subTest(ocdbt=ocdbt):
                name = f"orbax_{ocdbt}"
                checkpoint = write_orbax(
                    self.dir / name, flax_leaves("learned_sketch_mixed"), ocdbt
                )
                out = self.convert(
                    "learned_sketch_mixed", checkpoint=checkpoint, out=f"out_{ocdbt}"
                )
                self.assertEqual(model_bytes(out), model_bytes(GOLDENS / "learned_sketch_mixed"))

    @unittest.skipUnless((SHARED / "goldens").exists(), f"no {SHARED}/goldens")
    def test_the_authors_own_files(self):
        source = SHARED / "goldens/learned_sketch_mixed"
        for checkpoint in ("orbax", "ckpt.msgpack"):
            with self.subTest(checkpoint):
                convert(source / checkpoint, source / "config.json", None, self.dir / checkpoint)
                self.assertEqual(
                    model_bytes(self.dir / checkpoint),
                    model_bytes(GOLDENS / "learned_sketch_mixed"),
                )

    def test_chunked_arrays(self):
        leaves = flax_leaves("softmax")
        whole = leaves["wte/embedding"]
        flat = whole.ravel()
        leaves["wte/embedding"] = {
            "__msgpack_chunked_array__": True,
            "shape": {str(i): n for i, n in enumerate(whole.shape)},
            "chunks": {
                str(i): support.pack_array(part) for i, part in enumerate(np.array_split(flat, 12))
            },
        }
        self.assertEqual(
            model_bytes(self.convert("softmax", leaves)), model_bytes(GOLDENS / "softmax")
        )

    def test_training_state_and_bare_parameters(self):
        wraps = {
            "bare": lambda params: params,
            "state": lambda params: {"params": params, "step": 7, "opt_state": {"0": {"count": 7}}},
            "doubled": lambda params: {"step": 7, "params": {"params": params}},
        }
        for name, wrap in wraps.items():
            with self.subTest(name):
                checkpoint = write_msgpack(self.dir / name, flax_leaves("softmax"), wrap)
                out = self.convert("softmax", checkpoint=checkpoint, out="out_" + name)
                self.assertEqual(model_bytes(out), model_bytes(GOLDENS / "softmax"))

    def test_sketch_key_in_place_of_a_seed(self):
        config = transformer_config("random_sketch") | {"sketch_seed": None, "sketch_key": [0, 3]}
        self.assertEqual(
            model_bytes(self.convert("random_sketch", config=config)),
            model_bytes(GOLDENS / "random_sketch"),
        )

    def test_defaults_of_the_authors(self):
        """None is TransformerConfig's default of the fields that some kind does not need; `power` is a float."""
        nulls = dict.fromkeys(("power", "sketch_size", "grain_size", "sketch_key", "sketch_seed"))
        for case, fields in (
            ("softmax", {}),
            ("polynomial_p8", {"power": 8.0}),
            ("learned_sketch", {"sketch_size": 8}),
            ("random_sketch", {"sketch_size": 8, "sketch_seed": 3}),
        ):
            for absent in (False, True):
                with self.subTest(case, absent=absent):
                    config = transformer_config(case) | nulls | fields
                    if absent:
                        config = {k: v for k, v in config.items() if v is not None}
                    out = self.convert(case, config=config, overwrite=True)
                    self.assertEqual(model_bytes(out), model_bytes(GOLDENS / case))
                    expected = json.loads((GOLDENS / case / "config.json").read_text())
                    del expected["grain_size"]
                    self.assertEqual(json.loads((out / "config.json").read_text()), expected)

    def test_performer_features(self):
        config = transformer_config("softmax") | {"attention": "performer", "num_features": 6}
        omega = np.arange(6 * 32, dtype=np.float32).reshape(6, 32)
        leaves = flax_leaves("softmax") | {f"Block_{i}/attn/omega": omega + i for i in range(2)}
        converted = safetensors.read(
            [self.convert("softmax", leaves, config) / "model.safetensors"]
        )
        np.testing.assert_array_equal(converted["layers.1.attn.omega"], omega + 1)
        del leaves["Block_1/attn/omega"]
        leaves["Block_0/attn/omega"] = omega.T
        for message in (
            "missing tensor Block_1/attn/omega: expected shape [6, 32]",
            "tensor Block_0/attn/omega: expected shape [6, 32], found [32, 6]",
        ):
            with self.assertRaises(ToolError) as caught:
                self.convert("softmax", leaves, config, overwrite=True)
            self.assertIn(message, str(caught.exception))

    def test_storage_types(self):
        original = safetensors.read([GOLDENS / "softmax/model.safetensors"])
        for dtype in ("BF16", "F16"):
            with self.subTest(dtype):
                out = self.convert("softmax", out=dtype, dtype=dtype)
                for name, array in safetensors.read([out / "model.safetensors"]).items():
                    self.assertEqual(array.dtype, safetensors.DTYPES[dtype])
                    np.testing.assert_array_equal(array, original[name].astype(array.dtype))

    def test_bfloat16_checkpoint(self):
        leaves = {
            name: array.astype(ml_dtypes.bfloat16) for name, array in flax_leaves("softmax").items()
        }
        converted = safetensors.read(
            [self.convert("softmax", leaves, dtype="BF16") / "model.safetensors"]
        )
        np.testing.assert_array_equal(converted["embedding.weight"], leaves["wte/embedding"])

    def test_shards(self):
        out = self.convert("softmax", shard_bytes=60000)
        self.assertFalse((out / "model.safetensors").exists())
        index = json.loads((out / "model.safetensors.index.json").read_text())
        files = sorted(set(index["weight_map"].values()))
        self.assertGreater(len(files), 2)
        self.assertEqual(
            files, [f"model-{i + 1:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))]
        )
        whole = safetensors.read([GOLDENS / "softmax/model.safetensors"])
        shards = safetensors.read(out / name for name in files)
        self.assertEqual(
            index["metadata"]["total_size"], sum(array.nbytes for array in whole.values())
        )
        self.assertEqual(shards.keys(), whole.keys())
        for name, array in whole.items():
            np.testing.assert_array_equal(shards[name], array)
            self.assertIn(name, safetensors.read([out / index["weight_map"][name]]))

    def test_overwrite(self):
        out = self.convert("softmax")
        with self.assertRaisesRegex(ToolError, "exists and is not an empty folder"):
            self.convert("softmax")
        self.convert("polynomial_p4", overwrite=True)
        self.assertEqual(model_bytes(out), model_bytes(GOLDENS / "polynomial_p4"))
        (self.dir / "precious").mkdir()
        (self.dir / "precious/file").write_text("x")
        with self.assertRaisesRegex(ToolError, "replaces model folders only"):
            self.convert("softmax", out="precious", overwrite=True)

    # --- what is refused ---

    def test_wrong_tensors_are_named_together(self):
        leaves = flax_leaves("learned_sketch_mixed")
        del leaves["Block_1/attn/LayerNorm_1/scale"]
        leaves["ln/bias"] = leaves["ln/bias"][:63]
        leaves["Block_0/ff/Dense_0/kernel"] = leaves["Block_0/ff/Dense_0/kernel"].T
        leaves["Block_0/attn/extra/kernel"] = np.zeros((2, 5), np.float32)
        with self.assertRaises(ToolError) as caught:
            self.convert("learned_sketch_mixed", leaves)
        for message in (
            "missing tensor Block_1/attn/LayerNorm_1/scale: expected shape [32]",
            "tensor ln/bias: expected shape [64], found [63]",
            "tensor Block_0/ff/Dense_0/kernel: expected shape [64, 336], found [336, 64]",
            "left-over tensor Block_0/attn/extra/kernel of shape [2, 5]",
        ):
            self.assertIn(message, str(caught.exception))

    def test_more_layers_than_the_config_says(self):
        self.assert_refused(
            "left-over tensor Block_1/ln_1/scale",
            config=transformer_config("softmax") | {"num_layers": 1},
        )

    def test_values(self):
        leaves = flax_leaves("softmax")
        self.assert_refused(
            "tensor ln/scale: expected a float type, found int32",
            leaves=leaves | {"ln/scale": np.ones(64, np.int32)},
        )
        self.assert_refused(
            "tensor final_norm.scale: expected finite values",
            leaves=leaves | {"ln/scale": np.full(64, np.nan, np.float32)},
        )
        self.assert_refused(
            "beyond the range of f16",
            dtype="F16",
            leaves=leaves | {"ln/scale": np.full(64, 1e5, np.float32)},
        )

    def test_damaged_msgpack(self):
        whole = write_msgpack(self.dir / "whole", flax_leaves("softmax")).read_bytes()
        for name, data in (
            ("cut", whole[:-1]),
            ("cut_early", whole[:50]),
            ("empty", b""),
            ("appended", whole + b"x"),
            ("list", msgpack.packb([1, 2])),
            ("text", b"hello"),
            ("extension", msgpack.packb({"params": msgpack.ExtType(9, b"x")})),
            (
                "array",
                msgpack.packb(
                    {"params": msgpack.ExtType(1, msgpack.packb(([3], "float32", b"123")))}
                ),
            ),
        ):
            with self.subTest(name):
                path = self.dir / f"{name}.msgpack"
                path.write_bytes(data)
                self.assert_refused(str(path), checkpoint=path)

    def test_unknown_state(self):
        checkpoint = write_msgpack(
            self.dir / "x", flax_leaves("softmax"), lambda p: {"params": p, "ema": {"a": 1}}
        )
        self.assert_refused("found also ['ema']", checkpoint=checkpoint)

    def test_damaged_orbax(self):
        folder = write_orbax(self.dir / "orbax", flax_leaves("softmax"), ocdbt=True)
        self.assert_refused("no such file or folder", checkpoint=self.dir / "nowhere")
        (self.dir / "empty").mkdir()
        self.assert_refused(
            "an Orbax folder, a folder of numbered steps", checkpoint=self.dir / "empty"
        )
        metadata = folder / "_METADATA"
        text = metadata.read_text()
        metadata.write_text(text.replace("ln_2", "ln_3"))
        self.assert_refused("tensor params/Block_0/ln_3/", checkpoint=folder)
        metadata.write_text("{}")
        self.assert_refused("not an Orbax parameter list", checkpoint=folder)

    def test_config_fields(self):
        good = transformer_config("random_sketch")
        for changes, message in (
            ({"sketch_sizes": 8}, 'unknown field "sketch_sizes"'),
            ({"attention": "flash"}, 'field "attention": expected one of softmax, polynomial'),
            ({"vocab_size": None}, 'field "vocab_size": missing'),
            (
                {"sketch_size": None},
                'field "sketch_size": missing (attention random_sketch needs it)',
            ),
            (
                {"vocab_size": "96"},
                "field \"vocab_size\": expected an integer in [2, 4194304], found '96'",
            ),
            (
                {"num_heads": 3},
                'field "num_heads": expected emb_dim 64 / num_heads to be an even integer, found 3',
            ),
            ({"power": 8}, 'field "power": expected 4, the only degree'),
            (
                {"attention": "learned_sketch_mixed", "grain_size": None},
                'field "grain_size": missing (attention learned_sketch_mixed needs it)',
            ),
            (
                {"grain_size": 0},
                'field "grain_size": expected an integer in [1, 65536], found 0',
            ),
            (
                {"attention": "polynomial", "power": None},
                'field "power": missing (attention polynomial needs it)',
            ),
            (
                {"attention": "polynomial", "power": 4.5},
                'field "power": expected an integer in [2, 64], found 4.5',
            ),
            (
                {"attention": "performer"},
                'field "num_features": missing (attention performer needs it)',
            ),
            ({"sketch_seed": None}, 'field "sketch_seed": expected an integer in [0, 2^32)'),
            ({"sketch_seed": -1}, "found -1"),
            ({"sketch_key": [1]}, 'field "sketch_key": expected two 32-bit integers, found [1]'),
        ):
            with self.subTest(message):
                self.assert_refused(message, case="random_sketch", config=good | changes)
                absent = {k: v for k, v in (good | changes).items() if v is not None}
                self.assert_refused(message, case="random_sketch", config=absent)

    def test_config_text(self):
        checkpoint = write_msgpack(self.dir / "ckpt.msgpack", flax_leaves("softmax"))
        for text, message in (
            ("{", "not valid JSON"),
            ("[]", "expected a JSON object"),
            ('{"power": 4, "power": 8}', 'key "power" appears twice'),
        ):
            path = self.dir / "bad.json"
            path.write_text(text)
            with self.assertRaises(ToolError) as caught:
                convert(checkpoint, path, None, self.dir / "out")
            self.assertIn(message, str(caught.exception))
        with self.assertRaises(ToolError) as caught:
            convert(checkpoint, checkpoint, None, self.dir / "out")
        self.assertEqual(
            str(caught.exception), f"{checkpoint}: expected a JSON object, found a msgpack file"
        )

    # --- tokenizers ---

    def test_tokenizer_must_fit(self):
        self.assert_refused(
            "expected 96 pieces (vocab_size), found 4096", tokenizer=DEMO / "tokenizer.model"
        )
        self.assert_refused(
            "config.json: expected a SentencePiece model, found a JSON file",
            tokenizer=DEMO / "config.json",
        )
        cut = self.dir / "cut.model"
        cut.write_bytes((DEMO / "tokenizer.model").read_bytes()[:5000])
        self.assert_refused(
            "cut.model: expected a SentencePiece model, found damage", tokenizer=cut
        )
        self.assert_refused("nowhere: no such file or folder", tokenizer=self.dir / "nowhere")

    def test_chat_template_beside_the_tokenizer_is_copied(self):
        source = self.dir / "source"
        source.mkdir()
        (source / "tokenizer.model").write_bytes((DEMO / "tokenizer.model").read_bytes())
        (source / "chat_template.jinja").write_text("{{ messages }}")
        config = transformer_config("softmax") | {"vocab_size": 4096}
        leaves = flax_leaves("softmax") | {
            "wte/embedding": np.zeros((4096, 64), np.float32),
            "softmax_bias": np.zeros(4096, np.float32),
        }
        out = self.convert("softmax", leaves, config, tokenizer=source / "tokenizer.model")
        self.assertEqual((out / "chat_template.jinja").read_text(), "{{ messages }}")
        fields = json.loads((out / "tokenizer_config.json").read_text())
        self.assertEqual((fields["bos_token"], fields["add_bos_token"]), ("<s>", True))
        self.assertTrue((out / "tokenizer.json").exists())

    def test_tokenizer_gives_its_ids(self):
        config = transformer_config("softmax") | {"vocab_size": 4096}
        leaves = flax_leaves("softmax") | {
            "wte/embedding": np.zeros((4096, 64), np.float32),
            "softmax_bias": np.zeros(4096, np.float32),
        }
        for add_bos, expected in ((None, True), (True, True), (False, False)):
            with self.subTest(add_bos):
                out = self.convert(
                    "softmax",
                    leaves,
                    config,
                    tokenizer=DEMO / "tokenizer.model",
                    add_bos=add_bos,
                    overwrite=True,
                )
                written = json.loads((out / "config.json").read_text())
                self.assertEqual(
                    (written["bos_id"], written["eos_id"], written["add_bos"]), (1, 2, expected)
                )
                self.assertEqual(
                    (out / "tokenizer.model").read_bytes(), (DEMO / "tokenizer.model").read_bytes()
                )


class CommandTest(support.ToolTest):
    """The program as a user runs it, from another folder."""

    def run_tool(self, *arguments, **environment):
        return subprocess.run(
            [support.ROOT / "tools/convert", *map(str, arguments)],
            cwd=self.dir,
            text=True,
            capture_output=True,
            env=os.environ | environment,
        )

    def test_end_to_end(self):
        write_msgpack(self.dir / "ckpt.msgpack", flax_leaves("softmax"))
        self.write_json("config.json", transformer_config("softmax"))
        result = self.run_tool(
            "--checkpoint", "ckpt.msgpack", "--config", "config.json", "--out", "deep/model"
        )
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("100%", result.stderr)
        self.assertEqual(model_bytes(self.dir / "deep/model"), model_bytes(GOLDENS / "softmax"))

    def test_errors_are_one_line(self):
        self.write_json("config.json", transformer_config("softmax"))
        result = self.run_tool(
            "--checkpoint", "no.msgpack", "--config", "config.json", "--out", "model"
        )
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stderr, "error: no.msgpack: no such file or folder\n")
        self.assertFalse((self.dir / "model").exists())


if __name__ == "__main__":
    unittest.main()
