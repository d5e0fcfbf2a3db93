"""Writes a model as a checkpoint of the authors' Flax code: msgpack with their names, and their TransformerConfig."""

import json
import pathlib

import msgpack
import numpy as np

from polysketch_tools import flax_names, jax_random
from polysketch_tools.convert import OF_COEFFICIENTS, draw_sketch
from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import ModelConfig
from polysketch_training.disk import writing

_EXT_NDARRAY = 1  # of flax.serialization
_MAX_CHUNK_BYTES = 1 << 30  # flax.serialization divides larger arrays


def write_flax_checkpoint(
    folder: pathlib.Path, config: ModelConfig, tensors: dict[str, np.ndarray], sketch_seed: int | None
) -> None:
    """Writes ckpt.msgpack and config.json (what tools/convert reads). tensors: the server's layout, float32.

    Random sketches are not in such a checkpoint: it holds the seed from which they were drawn.
    """
    for name in tensors:
        if ".attn.gate." in name:
            raise ToolError("a model with a decay gate: the authors' code has no gate; expected --format server")
    if not config.sinusoidal_positions:
        raise ToolError("a model without sinusoidal positions: the authors' code adds them; expected --format server")
    if config.is_random:
        _check_sketches(config, tensors, sketch_seed)
    leaves = {flax_names.flax_path(name): a for name, a in tensors.items() if flax_names.drawn_layer(name) is None}
    with writing(folder / "ckpt.msgpack"):
        data = msgpack.packb({"params": _tree(leaves)}, default=_pack, strict_types=True)
        (folder / "ckpt.msgpack").write_bytes(data)
    with writing(folder / "config.json"):
        (folder / "config.json").write_text(json.dumps(_transformer_config(config, sketch_seed), indent=1) + "\n")


def _check_sketches(config: ModelConfig, tensors, sketch_seed: int | None) -> None:
    if sketch_seed is None:
        raise ToolError(
            f"{config.attention}: expected sketches that were drawn from a seed of JAX (--sketch-seed of polysketch-train);"
            " found others, which a checkpoint of the authors' code cannot hold"
        )
    for layer, sketch in enumerate(draw_sketches(config, sketch_seed)):
        if not np.array_equal(tensors[f"layers.{layer}.attn.sketch.level0"], sketch):
            raise ToolError(f"layer {layer}: expected the sketch of PRNGKey({sketch_seed}), found another one")


def draw_sketches(config: ModelConfig, sketch_seed: int) -> list[np.ndarray]:
    """Returns the sketch of each layer [2, d, r], as the authors' code draws it from PRNGKey(sketch_seed)."""
    if config.power != 4 or config.sketch_kind != "gaussian":
        raise ToolError(
            "sketch seed: expected power 4 and gaussian sketches, which alone the authors' code draws;"
            f" found power {config.power}, {config.sketch_kind}"
        )
    key, shape = jax_random.prng_key(sketch_seed), (2, config.head_dim, config.sketch_size)
    return [draw_sketch(key, layer, shape) for layer in range(config.num_layers)]


def _transformer_config(config: ModelConfig, sketch_seed: int | None) -> dict:
    names = ("vocab_size", "emb_dim", "num_heads", "num_layers", "context_length", "attention", "sketch_size", "grain_size")
    fields = {name: getattr(config, name) for name in names}
    fields |= {"power": config.power or 4, "dropout_rate": 0.0, "checkpoint_attention": False}
    if config.num_features is not None:
        fields["num_features"] = config.num_features
    coefficients = {name: getattr(config, name) for name in OF_COEFFICIENTS}
    fields |= {name: value for name, value in coefficients.items() if value is not None}
    return fields | {"sketch_seed": sketch_seed if config.is_random else None}


def _tree(leaves: dict[str, np.ndarray]) -> dict:
    tree = {}
    for path, leaf in leaves.items():
        *parents, last = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = _chunked(leaf) if leaf.nbytes > _MAX_CHUNK_BYTES else leaf
    return tree


def _chunked(array: np.ndarray) -> dict:
    def numbered(values):
        return {str(i): value for i, value in enumerate(values)}

    step = _MAX_CHUNK_BYTES // array.itemsize
    flat = array.reshape(-1)
    chunks = [flat[begin : begin + step] for begin in range(0, flat.size, step)]
    return {"__msgpack_chunked_array__": True, "shape": numbered(array.shape), "chunks": numbered(chunks)}


def _pack(value):
    if not isinstance(value, np.ndarray):
        raise TypeError(f"expected an array, found {type(value).__name__}")
    return msgpack.ExtType(_EXT_NDARRAY, msgpack.packb((value.shape, value.dtype.name, value.tobytes()), use_bin_type=True))
