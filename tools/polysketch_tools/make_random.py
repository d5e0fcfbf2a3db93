"""Makes a model folder with random weights, for benchmarks and tests: any attention kind, any size."""

import argparse
import dataclasses
import pathlib
import zlib
from collections.abc import Iterator

import numpy as np

from polysketch_tools import errors, model_folder, output_folder, sketches
from polysketch_tools.model_config import ModelConfig, read_model_config
from polysketch_tools.tokenizer import apply_tokenizer


def _paper(num_layers: int, emb_dim: int) -> ModelConfig:
    return ModelConfig(
        attention="learned_sketch_mixed",
        vocab_size=32000,
        emb_dim=emb_dim,
        num_heads=emb_dim // 64,
        num_layers=num_layers,
        context_length=32768,
        grain_size=256,
        near_power=4,
        sketch_size=32,
    )


PRESETS = {"paper-110m": _paper(12, 768), "paper-730m": _paper(24, 1536)}

_CHUNK_VALUES = 1 << 22  # 16 MB of float32: the maximum that is in memory at once


def random_values(config: ModelConfig, seed: int):
    """Returns values(name, shape) for write_model. A tensor's values depend on the seed, its name and its shape alone."""

    def values(name: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        generator = np.random.Generator(np.random.PCG64([seed, zlib.crc32(name.encode())]))
        if name.endswith(".omega"):
            yield sketches.draw_performer_features(generator, shape)
        elif ".sketch.level" in name:
            yield sketches.draw_level(generator, config.sketch_kind, config.power // 2, shape)
        else:
            mean, deviation = _moments(config, name, shape)
            rows = max(1, _CHUNK_VALUES // int(np.prod(shape[1:], dtype=np.int64)))
            for begin in range(0, shape[0], rows):
                chunk = generator.standard_normal(
                    (min(rows, shape[0] - begin), *shape[1:]), np.float32
                )
                chunk *= np.float32(deviation)
                chunk += np.float32(mean)
                yield chunk

    return values


def _moments(config: ModelConfig, name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Returns mean and standard deviation of a tensor's values, such that activations stay of order 1 at any depth."""
    if name == "embedding.weight":
        return (
            0.0,
            0.02,
        )  # logits of order 0.02 sqrt(emb_dim): a flat distribution, as of an untrained model
    if name.endswith((".scale", ".attn.coefficients")):
        return 1.0, 0.1
    if name.endswith(".attn.gate.bias"):
        return 9.0, 1.5  # the middle of what training starts with: e^9 tokens until 1 / e of a weight is left
    if len(shape) == 1:
        return 0.0, 0.1
    deviation = shape[0] ** -0.5
    if name.endswith((".attn.out.weight", ".mlp.down.weight")):
        deviation *= (2 * config.num_layers) ** -0.5  # 2 num_layers of these add to the residual stream
    return 0.0, deviation


def make_random(
    config: ModelConfig,
    out: pathlib.Path,
    *,
    dtype: str = "BF16",
    seed: int = 0,
    tokenizer: pathlib.Path | None = None,
    add_bos: bool | None = None,
    overwrite: bool = False,
    shard_bytes: int = model_folder.DEFAULT_SHARD_BYTES
) -> None:
    if tokenizer is not None:
        apply_tokenizer(config, tokenizer, add_bos)
    model_folder.write_model(
        out,
        config,
        dtype,
        random_values(config, seed),
        shard_bytes=shard_bytes,
        tokenizer=tokenizer,
        overwrite=overwrite,
    )


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="tools/make-random", description=__doc__, epilog=errors.EXIT_STATUSES
    )
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--preset", choices=sorted(PRESETS))
    model.add_argument(
        "--config", type=pathlib.Path, help="a config.json as docs/model-format.md describes it"
    )
    parser.add_argument(
        "--tokenizer",
        type=pathlib.Path,
        help="SentencePiece model with as many pieces as vocab_size",
    )
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    output_folder.add_options(parser, model_folder.STORAGE_DTYPES, "bf16")
    parser.add_argument(
        "--decay-gate", action="store_true", help="a model with a decay gate (recurrent kinds)"
    )
    parser.add_argument(
        "--no-sinusoids",
        dest="sinusoids",
        action="store_false",
        help="a model whose embedding has no sinusoidal positions (RoPE alone)",
    )
    args = parser.parse_args(argv)
    if args.seed < 0:
        parser.error("--seed: expected an integer from 0")
    config = PRESETS[args.preset] if args.preset else read_model_config(args.config)
    if args.decay_gate:
        config = dataclasses.replace(config, decay_gate=True)
        config.check()
    if not args.sinusoids:
        config = dataclasses.replace(config, sinusoidal_positions=False)
    make_random(
        config,
        args.out,
        dtype=args.dtype.upper(),
        seed=args.seed,
        tokenizer=args.tokenizer,
        **output_folder.how(args),
    )


if __name__ == "__main__":
    errors.run(main)
