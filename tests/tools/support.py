"""What the tests of the tools share: paths, and checkpoints as Flax programs write them."""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
SHARED = pathlib.Path(os.environ.get("POLYSKETCH_SHARED", ROOT.parent / "shared"))
GOLDENS = ROOT / "tests/data/goldens"
DEMO = ROOT / "models/demo"

import msgpack  # noqa: E402
import numpy as np  # noqa: E402

from polysketch_tools import flax_names, make_random, safetensors  # noqa: E402
from polysketch_tools.model_config import ModelConfig, tensor_shapes  # noqa: E402


class ToolTest(unittest.TestCase):
    """Runs in a temporary folder, self.dir, with stderr (progress) kept away."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.stderr = io.StringIO()
        redirect = contextlib.redirect_stderr(self.stderr)
        redirect.__enter__()
        self.addCleanup(redirect.__exit__, None, None, None)

    def assert_made_as_kept(self, path: pathlib.Path) -> None:
        """The file of this name in self.dir has the tensors of `path`, a file of the tree."""
        made, kept = (safetensors.read([p]) for p in (self.dir / path.name, path))
        self.assertEqual(made.keys(), kept.keys())
        for name, array in made.items():
            # Sums of up to 53 terms of numpy's products, whose order depends on the machine.
            np.testing.assert_allclose(kept[name], array, rtol=1e-12, atol=1e-13, err_msg=name)

    def write_json(self, name: str, value) -> pathlib.Path:
        path = self.dir / name
        path.write_text(json.dumps(value))
        return path


def flax_leaves(case: str) -> dict[str, np.ndarray]:
    """The parameters of a golden case as the Flax checkpoint held them: "Block_0/ln_1/scale" -> array."""
    tensors = safetensors.read([GOLDENS / case / "model.safetensors"])
    return {
        flax_names.flax_path(name): array
        for name, array in tensors.items()
        if flax_names.drawn_layer(name) is None
    }


def random_leaves(config: ModelConfig) -> dict[str, np.ndarray]:
    """Random parameters as a Flax checkpoint holds them. The logits are of order 1, as those of a trained model."""
    values = make_random.random_values(config, 1)
    leaves = {
        flax_names.flax_path(name): np.concatenate(list(values(name, shape)))
        for name, shape in tensor_shapes(config).items()
        if flax_names.drawn_layer(name) is None
    }
    leaves["wte/embedding"] *= 10
    return leaves


def tree_of(leaves: dict) -> dict:
    tree = {}
    for path, value in leaves.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = value
    return tree


def pack_array(array: np.ndarray) -> msgpack.ExtType:
    """flax.serialization's extension type 1."""
    return msgpack.ExtType(
        1, msgpack.packb((array.shape, array.dtype.name, array.tobytes()), use_bin_type=True)
    )


def write_msgpack(
    path: pathlib.Path, leaves: dict, wrap=lambda params: {"params": params}
) -> pathlib.Path:
    """A file as flax.serialization.to_bytes writes it. Leaves that are no arrays are packed as they are."""
    packed = {
        name: pack_array(leaf) if isinstance(leaf, np.ndarray) else leaf
        for name, leaf in leaves.items()
    }
    path.write_bytes(msgpack.packb(wrap(tree_of(packed)), use_bin_type=True, strict_types=True))
    return path


def write_orbax(
    folder: pathlib.Path, leaves: dict[str, np.ndarray], ocdbt: bool, all_stored: bool = True
) -> pathlib.Path:
    """A folder as Orbax's StandardCheckpointer writes it. all_stored: chunks of zeros too, as newer versions do."""
    import tensorstore

    tree_metadata = {}
    folder.mkdir(parents=True)
    for name, array in leaves.items():
        keys = ["params", *name.split("/")]
        path = ".".join(keys)
        store = (
            {"driver": "ocdbt", "base": f"file://{folder}", "path": path}
            if ocdbt
            else {"driver": "file", "path": f"{folder}/{path}"}
        )
        tensorstore.open(
            {
                "driver": "zarr",
                "kvstore": store,
                "metadata": {"compressor": None},
                "store_data_equal_to_fill_value": all_stored,
            },
            create=True,
            dtype=array.dtype.name,
            fill_value=0,
            shape=array.shape,
        ).result().write(array).result()
        tree_metadata[str(tuple(keys))] = {
            "key_metadata": [{"key": key, "key_type": 2} for key in keys]
        }
    (folder / "_METADATA").write_text(
        json.dumps(
            {
                "tree_metadata": tree_metadata,
                "use_zarr3": False,
                "store_array_data_equal_to_fill_value": all_stored,
            }
        )
    )
    return folder


def transformer_config(case: str) -> dict:
    """The authors' TransformerConfig of a golden case."""
    ours = json.loads((GOLDENS / case / "config.json").read_text())
    names = (
        "attention",
        "vocab_size",
        "emb_dim",
        "num_heads",
        "num_layers",
        "context_length",
        "grain_size",
    )
    config = {name: ours[name] for name in names}
    return config | {
        "dropout_rate": 0.0,
        "power": ours.get("power", 4),
        "sketch_size": ours.get("sketch_size", 8),
        "checkpoint_attention": False,
        "sketch_seed": 3 if case == "random_sketch" else None,
    }
