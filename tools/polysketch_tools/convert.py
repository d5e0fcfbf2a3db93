"""Converts a checkpoint of the authors' Flax code, a GGUF file (--gguf FILE) or a folder of Hugging Face (--hugging-face FOLDER,
for --weights q4) into a model folder (docs/model-format.md)."""

import argparse
import pathlib

import numpy as np

from polysketch_tools import (
    calibrate_hugging_face,
    calibration,
    checkpoints,
    convert_gguf,
    errors,
    flax_names,
    jax_random,
    model_folder,
    output_folder,
)
from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import (
    ATTENTION_KINDS,
    ModelConfig,
    read_json_object,
    tensor_shapes,
    used_fields,
)
from polysketch_tools.tokenizer import apply_tokenizer

# Fields of TransformerConfig, num_features of Performer, and what polynomials with coefficients have: of every kind, of
# some kinds, and those that only training reads.
_REQUIRED = ("attention", "vocab_size", "emb_dim", "num_heads", "num_layers", "context_length")
_OF_KINDS = ("power", "sketch_size", "grain_size", "num_features")
OF_COEFFICIENTS = ("alpha", "beta", "head_coefficients", "learned_coefficients")
_TRAINING_ONLY = ("dropout_rate", "checkpoint_attention")
_KNOWN = {*_REQUIRED, *_OF_KINDS, *OF_COEFFICIENTS, *_TRAINING_ONLY, "sketch_seed", "sketch_key"}


def read_transformer_config(path: pathlib.Path) -> tuple[ModelConfig, np.ndarray | None]:
    """Returns the authors' TransformerConfig as a ModelConfig, and the key of its random sketches (uint32 [2]) or None."""
    fields = read_json_object(path)
    if unknown := fields.keys() - _KNOWN:
        raise ToolError(f'{path}: unknown field "{sorted(unknown)[0]}"')
    # None is the default of every field that some kind does not need.
    fields = {name: value for name, value in fields.items() if value is not None}
    for name in _REQUIRED:
        if name not in fields:
            raise ToolError(f'{path}: field "{name}": missing')
    kind = fields["attention"]
    if kind not in ATTENTION_KINDS:
        raise ToolError(
            f"{path}: field \"attention\": expected one of {', '.join(ATTENTION_KINDS)}; found {kind!r}"
        )
    config = ModelConfig(**{name: fields[name] for name in _REQUIRED})
    if config.is_random:
        fields.setdefault("power", 4)  # the authors' code does not pass `power` on to these kinds
    used = used_fields(kind)
    for name in _OF_KINDS:
        if name in used and name not in fields:
            raise ToolError(f'{path}: field "{name}": missing (attention {kind} needs it)')
        if name in used or name == "grain_size":
            setattr(config, name, _integer(fields.get(name)))
    for name in OF_COEFFICIENTS if config.has_coefficients else ():
        setattr(config, name, fields.get(name))
    if config.is_mixed:
        config.near_power = 4  # the authors' code does not pass `power` on to the mixed kinds
    if config.is_random:
        config.sketch_kind = "gaussian"
        if config.power != 4:
            raise ToolError(
                f'{path}: field "power": expected 4, the only degree for which the authors\' code draws'
                f" sketches; found {config.power!r}"
            )
    try:
        config.check()
    except ToolError as error:
        raise ToolError(f"{path}: {error}") from error
    return config, _sketch_key(fields, path) if config.is_random else None


def _integer(value):
    # The type of `power` is float in TransformerConfig.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _sketch_key(fields: dict, path: pathlib.Path) -> np.ndarray:
    seed, key = fields.get("sketch_seed"), fields.get("sketch_key")
    if key is not None:
        if not (
            isinstance(key, list)
            and len(key) == 2
            and all(type(k) is int and 0 <= k < 1 << 32 for k in key)
        ):
            raise ToolError(
                f'{path}: field "sketch_key": expected two 32-bit integers, found {key!r}'
            )
        return np.array(key, np.uint32)
    if type(seed) is not int or not 0 <= seed < 1 << 32:
        raise ToolError(
            f'{path}: field "sketch_seed": expected an integer in [0, 2^32), from which the checkpoint\'s'
            f" sketches were drawn; found {seed!r}"
        )
    return jax_random.prng_key(seed)


def draw_sketch(key: np.ndarray, layer: int, shape: tuple[int, int, int]) -> np.ndarray:
    """Returns the sketch of one layer as the authors' code samples it: [2, d, r], each a normal divided by sqrt(r)."""
    count, d, r = shape
    # XLA divides by a scalar by multiplying by its reciprocal.
    scale = np.float32(1) / np.sqrt(np.float32(r))
    return np.stack(
        [
            jax_random.normal(k, (d, r)) * scale
            for k in jax_random.split(jax_random.fold_in(key, layer), count)
        ]
    )


def convert(
    checkpoint: pathlib.Path,
    config_path: pathlib.Path,
    tokenizer: pathlib.Path | None,
    out: pathlib.Path,
    *,
    dtype: str = "F32",
    step: int | None = None,
    add_bos: bool | None = None,
    overwrite: bool = False,
    shard_bytes: int = model_folder.DEFAULT_SHARD_BYTES,
    calibration_text: pathlib.Path | None = None,
) -> None:
    """calibration_text: the text that 4-bit matrices are calibrated with, which needs a tokenizer; None: plain rounding."""
    config, key = read_transformer_config(config_path)
    if tokenizer is not None:
        apply_tokenizer(config, tokenizer, add_bos)
    tokens = None
    if calibration_text is not None:
        tokens = calibration.read_sequences(config, tokenizer, calibration_text)
    parameters = checkpoints.open_checkpoint(checkpoint, step)
    shapes = tensor_shapes(config)
    parameters.check(
        {
            flax_names.flax_path(name): shape
            for name, shape in shapes.items()
            if flax_names.drawn_layer(name) is None
        }
    )

    def values(name, shape):
        layer = flax_names.drawn_layer(name)
        yield (
            parameters.read(flax_names.flax_path(name))
            if layer is None
            else draw_sketch(key, layer, shape)
        )

    model_folder.write_model(
        out,
        config,
        dtype,
        values,
        shard_bytes=shard_bytes,
        tokenizer=tokenizer,
        overwrite=overwrite,
        tokens=tokens,
    )


def _calibration_text(args: argparse.Namespace, parser: argparse.ArgumentParser):
    """Returns the file of --calibration, or None for plain rounding."""
    calibration.check_option(args, parser)
    text = calibration.text_of(args)
    if text is not None and args.tokenizer is None:
        parser.error("--dtype q4 needs --tokenizer for its calibration, or --calibration none")
    return text


def main(argv: list[str]) -> None:
    names = {argument.split("=")[0] for argument in argv}
    if "--gguf" in names:
        return convert_gguf.main(argv)
    if "--hugging-face" in names:
        return calibrate_hugging_face.main(argv)
    parser = argparse.ArgumentParser(
        prog="tools/convert",
        description=__doc__,
        epilog=f"--gguf FILE and --hugging-face FOLDER have options of their own: tools/convert --gguf FILE --help. {errors.EXIT_STATUSES}",
    )
    parser.add_argument(
        "--checkpoint",
        type=pathlib.Path,
        required=True,
        help="msgpack, safetensors or PyTorch file, Orbax folder, or folder of numbered steps (CheckpointManager)",
    )
    parser.add_argument(
        "--step",
        type=int,
        help="step below the checkpoint folder (default: the newest complete one)",
    )
    parser.add_argument(
        "--config", type=pathlib.Path, required=True, help="the authors' TransformerConfig as JSON"
    )
    parser.add_argument(
        "--tokenizer",
        type=pathlib.Path,
        help="SentencePiece model; without one the server takes token ids only",
    )
    output_folder.add_options(parser, model_folder.STORAGE_DTYPES, "f32", "; q8 and q4: docs/model-format.md")
    calibration.add_option(parser)
    parser.add_argument(
        "--add-bos",
        action=argparse.BooleanOptionalAction,
        help="whether text prompts begin with BOS (default: if the tokenizer has one)",
    )
    args = parser.parse_args(argv)
    if args.add_bos is not None and args.tokenizer is None:
        parser.error("--add-bos and --no-add-bos need --tokenizer")
    convert(
        args.checkpoint,
        args.config,
        args.tokenizer,
        args.out,
        dtype=args.dtype.upper(),
        step=args.step,
        add_bos=args.add_bos,
        calibration_text=_calibration_text(args, parser),
        **output_folder.how(args),
    )


if __name__ == "__main__":
    errors.run(main)
