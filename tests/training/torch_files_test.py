"""tools/convert reads the files of torch.save with the authors' names, and runs no code of them."""

import os
import pathlib
import pickle
import unittest

import numpy as np
import torch

import support
from train_support import TrainTest

from polysketch_tools import safetensors
from polysketch_tools.checkpoints import open_checkpoint
from polysketch_tools.convert import convert
from polysketch_tools.errors import ToolError
from polysketch_training.export import export_model
from polysketch_training.server_tensors import server_tensors


class RunsCode:
    """A pickle of this object creates a file when it is loaded."""

    def __init__(self, path: pathlib.Path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class TorchFilesTest(TrainTest):
    def exported(self) -> tuple[dict[str, np.ndarray], pathlib.Path]:
        """The parameters of a model by the authors' names, and their config."""
        model = support.small_model("learned_sketch_mixed", dtype=torch.float32)
        export_model(model, self.dir / "flax", tokenizer=None, form="flax")
        self.expected = server_tensors(model)
        parameters = open_checkpoint(self.dir / "flax/ckpt.msgpack")
        return {name: parameters.read(name) for name in parameters._shapes}, self.dir / "flax/config.json"

    def test_every_form(self):
        leaves, config = self.exported()
        tensors = {name: torch.from_numpy(array.copy()) for name, array in leaves.items()}
        dotted = {name.replace("/", "."): tensor for name, tensor in tensors.items()}
        forms = {
            "flat.bin": (tensors, {}),
            "dotted.bin": (dotted, {}),
            "old.bin": (tensors, {"_use_new_zipfile_serialization": False}),
            "state.pt": ({"params": dotted, "step": torch.tensor(3)}, {}),
        }
        for name, (tree, options) in forms.items():
            with self.subTest(name):
                torch.save(tree, self.dir / name, **options)
                convert(self.dir / name, config, None, self.dir / f"{name}.out")
                found = safetensors.read([self.dir / f"{name}.out/model.safetensors"])
                self.assertEqual(found.keys(), self.expected.keys())
                for tensor, array in self.expected.items():
                    np.testing.assert_array_equal(found[tensor], array, tensor)

    def test_bfloat16(self):
        want = torch.randn(5, 3).bfloat16()
        torch.save({"wte/embedding": want}, self.dir / "half.bin")
        found = open_checkpoint(self.dir / "half.bin").read("wte/embedding")
        self.assertTrue(torch.equal(torch.from_numpy(found), want.float()))

    def test_code_is_not_run(self):
        created = self.dir / "created"
        path = self.dir / "bad.bin"
        for write in (
            lambda: torch.save({"wte/embedding": RunsCode(created)}, path),
            lambda: torch.save({"wte/embedding": RunsCode(created)}, path, _use_new_zipfile_serialization=False),
            lambda: path.write_bytes(pickle.dumps({"wte/embedding": RunsCode(created)}, 2)),
        ):
            write()
            with self.assertRaisesRegex(ToolError, "bad.bin: expected tensors of torch.save, found: "):
                open_checkpoint(path)
            self.assertFalse(created.exists())
        pickle.loads(path.read_bytes())  # it would have
        self.assertTrue(created.exists())

    def test_refusals(self):
        path = self.dir / "file.bin"
        for value, message in (
            ([torch.ones(2)], "expected a dict of tensors, found list"),
            ({"a": {"b": 3}}, "a/b: expected a tensor, found int"),
        ):
            torch.save(value, path)
            with self.assertRaisesRegex(ToolError, message):
                open_checkpoint(path)
        torch.save({"a": torch.ones(2, dtype=torch.int32)}, path)
        with self.assertRaisesRegex(ToolError, "tensor a: expected a float type, found int32"):
            open_checkpoint(path).read("a")
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with self.assertRaisesRegex(ToolError, "file.bin: "):
            open_checkpoint(path)


if __name__ == "__main__":
    unittest.main()
