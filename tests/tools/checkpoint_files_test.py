"""What --checkpoint takes: numbered steps; and what it refuses by name: foreign, cut and damaged files."""

import gzip
import importlib.util
import io
import json
import pathlib
import pickle
import struct
import unittest
import zipfile

import support
from support import DEMO, flax_leaves, write_msgpack, write_orbax

import msgpack
import numpy as np

from polysketch_tools import safetensors
from polysketch_tools.checkpoints import open_checkpoint
from polysketch_tools.errors import ToolError

BIAS = "softmax_bias"


def leaves_of_step(step: int) -> dict[str, np.ndarray]:
    return {BIAS: np.full(3, step, np.float32), "wte/embedding": np.zeros((3, 2), np.float32)}


class CheckpointTest(support.ToolTest):
    def step_of(self, path: pathlib.Path, step: int | None = None) -> int:
        return int(open_checkpoint(path, step).read(BIAS)[0])

    def assert_refused(self, message: str, path: pathlib.Path, step: int | None = None) -> str:
        with self.assertRaises(ToolError) as caught:
            parameters = open_checkpoint(path, step)
            for name in parameters._shapes:
                parameters.read(name)
        text = str(caught.exception)
        self.assertIn(message, text)
        self.assertTrue(text.startswith(str(self.dir)), text)
        self.assertTrue(text.isprintable() and "\\x" not in text, text)
        return text


class StepsTest(CheckpointTest):
    def setUp(self):
        super().setUp()
        self.root = self.dir / "checkpoints"

    def add_step(self, name: str, number: int, item: str = "default") -> pathlib.Path:
        """A step as CheckpointManager leaves it after a commit."""
        write_orbax(self.root / name / item, leaves_of_step(number), ocdbt=True)
        self.write_times(name, commit=1)
        return self.root / name

    def write_times(self, name: str, commit: int | None):
        times = {"init_timestamp_nsecs": 1, "commit_timestamp_nsecs": commit}
        (self.root / name / "_CHECKPOINT_METADATA").write_text(json.dumps(times))

    def test_newest_and_named(self):
        for number in (2, 10, 9):
            self.add_step(str(number), number)
        self.assertEqual(self.step_of(self.root), 10)
        self.assertIn("checkpoints/10\n", self.stderr.getvalue())
        self.assertEqual(self.step_of(self.root, 9), 9)
        self.assertEqual(self.step_of(self.root / "2"), 2)
        self.assert_refused("--step 5: expected one of 10, 9, 2; found none", self.root, 5)

    def test_interrupted_saves_are_skipped(self):
        self.add_step("1", 1)
        self.add_step("4.orbax-checkpoint-tmp-17", 4)
        self.add_step("3", 3)
        self.write_times("3", commit=None)
        (self.root / "2/default").mkdir(parents=True)
        self.assertEqual(self.step_of(self.root), 1)
        self.assertIn(
            "skipped, incomplete: 2, 3, 4.orbax-checkpoint-tmp-17\n", self.stderr.getvalue()
        )
        self.assert_refused(
            "--step 3: expected a complete step, found the incomplete 3", self.root, 3
        )
        self.write_times("1", commit=None)
        self.assert_refused("found incomplete steps only: 1, 2, 3, 4.orbax", self.root)
        # A storage without renames has this file in place of a rename.
        (self.root / "3/commit_success.txt").write_text("")
        self.assertEqual(self.step_of(self.root), 3)

    def test_padded_and_prefixed_names(self):
        self.add_step("ckpt_000090", 90)
        self.add_step("ckpt_000100", 100)
        (self.root / "notes.txt").write_text("x")
        self.assertEqual(self.step_of(self.root), 100)
        self.assertEqual(self.step_of(self.root, 90), 90)
        self.add_step("best_7", 7)
        self.assert_refused("expected steps of one name, found best_N, ckpt_N", self.root)

    def test_msgpack_steps_of_flax(self):
        self.root.mkdir()
        for number in (8, 16):
            write_msgpack(self.root / f"checkpoint_{number}", leaves_of_step(number))
        self.assertEqual(self.step_of(self.root), 16)
        self.assertEqual(self.step_of(self.root, 8), 8)

    def test_step_without_items(self):
        write_orbax(self.root / "checkpoint_5", leaves_of_step(5), ocdbt=False)
        self.assertEqual(self.step_of(self.root), 5)

    def test_items(self):
        step = self.add_step("1", 1, "state")
        self.assertEqual(self.step_of(self.root), 1)
        write_orbax(step / "ema", leaves_of_step(2), ocdbt=True)
        text = self.assert_refused("expected one item of parameters, found ema, state", self.root)
        self.assertIn(str(step / "ema"), text)
        write_orbax(step / "params", leaves_of_step(3), ocdbt=True)
        self.assertEqual(self.step_of(self.root), 3)

    def test_step_of_what_has_none(self):
        step = self.add_step("1", 1)
        self.assert_refused(
            "--step 1: expected a folder of numbered steps, found a folder", step, 1
        )
        self.assert_refused("found one Orbax checkpoint", step / "default", 1)
        file = write_msgpack(self.dir / "file", leaves_of_step(1))
        self.assert_refused("numbered steps, found a msgpack file", file, 1)


def foreign_files() -> dict[str, tuple[str, bytes]]:
    """What people have, each as (what the error calls it, content)."""
    archive, arrays, tensors = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("readme", "x")
    np.savez(arrays, a=np.ones(3))
    np.save(tensors, np.ones(3))
    return {
        "gguf": ("a GGUF file", b"GGUF\x03\0\0\0" + bytes(40)),
        "zip": ("a zip archive", archive.getvalue()),
        "cut.zip": ("a damaged zip archive", archive.getvalue()[:40]),
        "npz": ("a NumPy archive", arrays.getvalue()),
        "npy": ("a NumPy file", tensors.getvalue()),
        "h5": ("an HDF5 file", b"\x89HDF\r\n\x1a\n" + bytes(40)),
        "gz": ("a gzip file", gzip.compress(b"x")),
        "tar": ("a tar archive", b"name".ljust(257, b"\0") + b"ustar\x0000" + bytes(300)),
        "pointer": ("a Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\noid x\n"),
        "json": ("a JSON file", b' {"model_type": "gpt2"}'),
        "text": ("a text file", "Grüße,\nhello\n".encode()),
        "model": ("a SentencePiece model", (DEMO / "tokenizer.model").read_bytes()),
        "random": ("a file of an unknown format", bytes(range(7, 256))),
        "array": ("a file of an unknown format", msgpack.packb([1, 2])),
        "empty": ("an empty file", b""),
    }


class ForeignTest(CheckpointTest):
    EXPECTED = (
        "expected a msgpack file of flax.serialization, an Orbax folder, a folder of numbered steps, a safetensors file or"
        " a PyTorch file"
    )

    def test_files(self):
        for name, (description, content) in foreign_files().items():
            with self.subTest(name):
                path = self.dir / f"file.{name}"
                path.write_bytes(content)
                self.assert_refused(f"{path}: {self.EXPECTED}; found {description}", path)

    def test_folders(self):
        (self.dir / "empty").mkdir()
        self.assert_refused(f"{self.EXPECTED}; found an empty folder", self.dir / "empty")
        other = self.dir / "other"
        other.mkdir()
        safetensors.write(other / "model.safetensors", {"lm_head": np.ones(3, np.float32)})
        (other / "config.json").write_text('{"architectures": ["GPT2LMHeadModel"]}')
        self.assert_refused("found a folder with config.json, model.safetensors", other)
        ours = self.dir / "ours"
        ours.symlink_to(DEMO)
        self.assert_refused("found a model folder, which polysketch-server reads as it is", ours)

    def test_another_architecture(self):
        leaves = {f"transformer/h/{i}/ln_1/bias": np.ones(3, np.float32) for i in range(9)}
        parameters = open_checkpoint(write_msgpack(self.dir / "gpt2", leaves))
        with self.assertRaises(ToolError) as caught:
            parameters.check({"wte/embedding": (3, 2), "softmax_bias": (3,)})
        self.assertEqual(
            str(caught.exception),
            f"{self.dir}/gpt2: expected the parameters of a PolySketchFormer, wte/embedding, softmax_bias; found"
            " transformer/h/0/ln_1/bias, transformer/h/1/ln_1/bias, transformer/h/2/ln_1/bias,"
            " transformer/h/3/ln_1/bias, transformer/h/4/ln_1/bias and 4 more",
        )


class TensorFilesTest(CheckpointTest):
    """Files of tensors with the authors' names, joined by "/" or "."."""

    def expect_leaves(self, path: pathlib.Path, leaves: dict[str, np.ndarray]):
        parameters = open_checkpoint(path)
        parameters.check({name: array.shape for name, array in leaves.items()})
        for name, array in leaves.items():
            np.testing.assert_array_equal(parameters.read(name), array, name)

    def test_safetensors(self):
        leaves = flax_leaves("learned_sketch_mixed")
        for separator, prefix in (("/", ""), (".", ""), ("/", "params/"), (".", "params.params.")):
            with self.subTest(separator=separator, prefix=prefix):
                path = self.dir / "file.safetensors"
                safetensors.write(
                    path, {prefix + n.replace("/", separator): a for n, a in leaves.items()}
                )
                self.expect_leaves(path, leaves)

    def test_training_state(self):
        leaves = leaves_of_step(1)
        others = {"step": np.zeros(1, np.int32), "opt_state/0/mu": np.ones(3, np.float32)}
        path = self.dir / "file"
        safetensors.write(path, {f"params/{n}": a for n, a in leaves.items()} | others)
        self.expect_leaves(path, leaves)
        safetensors.write(path, {"params/x": np.ones(1, np.float32)} | {"ema": np.ones(1, np.float32)})
        self.assert_refused("found also ['ema']", path)

    def test_types(self):
        path = self.dir / "file"
        safetensors.write(path, {BIAS: np.ones(3, np.int32)})
        self.assert_refused(f"tensor {BIAS}: expected a float type, found int32", path)
        self.write_header({BIAS: {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}, path)
        self.assert_refused(f"tensor {BIAS}: expected one of F64, F32", path)

    def write_header(self, header, path: pathlib.Path):
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))

    def test_damaged_safetensors(self):
        path, entry = self.dir / "file", {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
        for change, message in (
            ({"data_offsets": [0, 12]}, f"tensor {BIAS}: expected bytes within the file"),
            ({"data_offsets": [-4, 4]}, f"tensor {BIAS}: expected bytes within the file"),
            ({"data_offsets": [8, 0]}, f"tensor {BIAS}: expected bytes within the file"),
            ({"shape": [3]}, "expected the size of its shape, found 8 bytes"),
            ({"shape": [-1, -2]}, "expected names of tensors and their shapes"),
            ({"shape": None}, "found damage"),
            ({"data_offsets": [0]}, "found damage"),
            ({"data_offsets": [0.0, 8.0]}, "found damage"),
        ):
            with self.subTest(change):
                self.write_header({BIAS: entry | change}, path)
                self.assert_refused("expected a safetensors file, found damage: ", path)
                self.assert_refused(message, path)
        self.write_header({BIAS: entry}, path)
        whole = path.read_bytes()
        for size in (len(whole) - 1, 40, 12):
            path.write_bytes(whole[:size])
            self.assert_refused("expected a safetensors file, found damage: ", path)

    @unittest.skipIf(importlib.util.find_spec("torch"), "PyTorch is installed")
    def test_pytorch_files_need_pytorch(self):
        torch = io.BytesIO()
        with zipfile.ZipFile(torch, "w") as file:
            file.writestr("archive/data.pkl", pickle.dumps({}))
            file.writestr("archive/data/0", bytes(64))
        for content, kind in (
            (torch.getvalue(), "a PyTorch file"),
            (pickle.dumps(0x1950A86A20F9469CFC6C, 2), "a Python pickle"),
            (pickle.dumps({"weight": [1.0]}), "a Python pickle"),
        ):
            (self.dir / "file").write_bytes(content)
            self.assert_refused(
                f"expected PyTorch in this Python, which reads {kind}", self.dir / "file"
            )


class DamageTest(CheckpointTest):
    DAMAGE = "expected a msgpack file of flax.serialization, found damage"

    def assert_file_refused(self, message: str, content: bytes):
        path = self.dir / "file"
        path.write_bytes(content)
        self.assert_refused(f"{path}: {message}", path)

    def test_cut_msgpack(self):
        whole = write_msgpack(self.dir / "whole", flax_leaves("softmax")).read_bytes()
        for size in (len(whole) - 1, len(whole) // 2, 50, 1):
            self.assert_file_refused(
                f"expected a whole msgpack file, found one that ends after {size} bytes",
                whole[:size],
            )
        self.assert_file_refused(
            f"expected the end of the file after {len(whole)} bytes, found {len(whole) + 2} bytes",
            whole + b"xy",
        )

    def test_damaged_msgpack(self):
        def array(*fields):
            return msgpack.packb({BIAS: msgpack.ExtType(1, msgpack.packb(fields))})

        self.assert_file_refused(
            "unknown extension type 9", msgpack.packb({"x": msgpack.ExtType(9, b"x")})
        )
        self.assert_file_refused("damaged array", array([3], "float32", b"123"))
        self.assert_file_refused("damaged array", array([3], "no type", b"123"))
        self.assert_file_refused("damaged array", array([3], "float32"))
        self.assert_file_refused(self.DAMAGE, b"\x81\xa1x\xc1")
        self.assert_file_refused(self.DAMAGE, b"\x81\x91\x01\x01")
        self.assert_file_refused(self.DAMAGE, b"\x81\xa1\xff\x01")
        self.assert_file_refused(
            "tensor a: expected an array, found list", msgpack.packb({"a": [[1], [2, 3]]})
        )
        self.assert_file_refused(
            "tensor a: expected an array, found bytes", msgpack.packb({"a": b"\xff"})
        )

    def test_orbax_without_its_data(self):
        for ocdbt in (True, False):
            with self.subTest(ocdbt=ocdbt):
                folder = write_orbax(self.dir / f"orbax_{ocdbt}", flax_leaves("softmax"), ocdbt)
                for file in (
                    folder.glob("d/*") if ocdbt else folder.glob("params.wte.embedding/0.0")
                ):
                    file.unlink()
                self.assert_refused("expected a whole Orbax checkpoint, found:", folder)

    def test_orbax_without_zeros(self):
        leaves = leaves_of_step(1)
        folder = write_orbax(self.dir / "zeros", leaves, ocdbt=False, all_stored=False)
        self.assertFalse((folder / "params.wte.embedding/0.0").exists())
        np.testing.assert_array_equal(
            open_checkpoint(folder).read("wte/embedding"), leaves["wte/embedding"]
        )


if __name__ == "__main__":
    unittest.main()
