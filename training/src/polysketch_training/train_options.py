"""The options of polysketch-train, and the settings that they make of a preset."""

import argparse
import dataclasses
import pathlib

from polysketch_tools import errors
from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import ModelConfig, read_model_config
from polysketch_training.attention import block_of
from polysketch_training.presets import PRESETS, Preset, Recipe

_DESCRIPTION = """\
Trains a PolySketchFormer on text and writes a folder that polysketch-server reads: OUT/model.

The same command continues a run that was interrupted or killed: from its newest checkpoint, with the same losses.
Several processes: torchrun --standalone --nproc-per-node 2 -m polysketch_training.train_command OPTIONS."""


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="polysketch-train",
        description=_DESCRIPTION,
        epilog=errors.EXIT_STATUSES + " 130 leaves a checkpoint.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_data(result.add_argument_group("data"))
    _add_model(result.add_argument_group("model"))
    _add_recipe(result.add_argument_group("recipe (default: of the preset; a run is continued with the same values)"))
    _add_run(result.add_argument_group("run"))
    return result


def _add_data(group) -> None:
    source = group.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--text", type=pathlib.Path, nargs="+", metavar="PATH", help="UTF-8 files, and folders of them; a file is a document"
    )
    source.add_argument(
        "--tokens",
        type=pathlib.Path,
        metavar="FILE",
        help="token ids instead of text: little-endian uint16 (uint32 beyond 65,536 pieces), BOS before each document;"
        " needs --tokenizer",
    )
    group.add_argument("--include", metavar="GLOB", default="*", help="which files of the folders are text (default *)")
    group.add_argument(
        "--tokenizer", type=pathlib.Path, metavar="FILE", help="SentencePiece model (default: one is trained on the text)"
    )
    group.add_argument(
        "--vocab-size",
        type=positive,
        metavar="N",
        help="pieces of the trained tokenizer (default: of the preset; a short text gives fewer)",
    )


def _add_model(group) -> None:
    group.add_argument("--preset", choices=sorted(PRESETS), default="demo", help="shape and recipe (default demo)")
    group.add_argument(
        "--config", type=pathlib.Path, metavar="FILE", help="another shape or attention kind: config.json of a model folder, or of a kind"
        " without one (docs/training.md)"
    )
    group.add_argument(
        "--init", type=pathlib.Path, metavar="FOLDER", help="start from the weights of this model folder, of the same shape"
    )
    group.add_argument(
        "--sketch-seed",
        type=natural,
        metavar="N",
        help="random kinds: draw the sketches as the authors' code does from PRNGKey(N); their format needs it",
    )
    group.add_argument(
        "--decay-gate", action="store_true", help="a gate that lets earlier tokens fade (recurrent kinds)"
    )
    group.add_argument(
        "--no-sinusoids", dest="sinusoids", action="store_false", help="no sinusoidal positions in the embedding: RoPE alone"
    )


def _add_recipe(group) -> None:
    group.add_argument("--steps", type=positive, metavar="N", help="steps of the optimizer")
    group.add_argument("--warmup-steps", type=natural, metavar="N", help="steps of linear warm-up; then half a cosine")
    group.add_argument("--learning-rate", type=float, metavar="X", help="the rate at the end of the warm-up")
    group.add_argument("--batch", type=positive, metavar="N", help="rows of a pass in each process")
    group.add_argument("--accumulate", type=positive, metavar="N", help="passes of a step")
    group.add_argument("--length", type=positive, metavar="N", help="tokens of a row in a pass")
    group.add_argument(
        "--sequences",
        choices=("packed", "streamed"),
        help="packed: each row is a new sequence. streamed: rows go on through the text with the state carried, the gradient"
        " cut at the start of each pass (recurrent kinds)",
    )
    group.add_argument("--stream-chunks", type=positive, metavar="N", help="streamed: mean passes until a row starts anew")
    group.add_argument(
        "--max-offset", type=natural, metavar="N", help="three of ten rows start at a random position up to N (0: none)"
    )
    group.add_argument("--weight-decay", type=float, metavar="X", help="of AdamW (0: Adam)")
    group.add_argument("--clip", type=float, metavar="X", help="the largest norm of the gradient")
    group.add_argument("--near-scale", type=float, metavar="X", help="mixed kinds: where the scales of the near norms start (1)")
    group.add_argument(
        "--balance-parts",
        action="store_true",
        default=None,
        help="mixed kinds: the far part starts at a scale that gives it the mean weight of the near part, which --near-scale sets",
    )
    group.add_argument("--seed", type=natural, metavar="N", help="of weights and batches")


def _add_run(group) -> None:
    group.add_argument("--out", type=pathlib.Path, required=True, metavar="DIR", help="the folder of the run")
    group.add_argument("--save-every", type=positive, default=500, metavar="N", help="steps between checkpoints (default 500)")
    group.add_argument("--keep", type=positive, default=2, metavar="N", help="checkpoints that are kept (default 2)")
    group.add_argument("--minutes", type=float, metavar="X", help="stop with a checkpoint after this time")
    group.add_argument(
        "--precision", choices=("auto", "f32", "bf16"), default="auto", help="auto: bf16 on a GPU, f32 on a CPU (default auto)"
    )
    group.add_argument(
        "--attention",
        choices=("torch", "library"),
        default="torch",
        help="library: libpolysketch-attention.so, named by POLYSKETCH_ATTENTION_LIBRARY",
    )
    group.add_argument(
        "--compile",
        action="store_true",
        help="TorchInductor compiles the layers: fewer kernels and bytes around attention, other roundings; the first steps take minutes",
    )
    group.add_argument("--cpu", action="store_true", help="use no GPU")
    group.add_argument("--threads", type=positive, metavar="N", help="threads of the CPU (default: torch's)")


def preset_of(args: argparse.Namespace) -> Preset:
    """Returns the preset with the options' values. The vocabulary is that of the preset or the config."""
    preset = PRESETS[args.preset]
    config = read_model_config(args.config) if args.config else preset.config
    if args.vocab_size:
        config = dataclasses.replace(config, vocab_size=args.vocab_size)
    if args.length:
        config = dataclasses.replace(config, context_length=args.length)
    if args.decay_gate:
        config = dataclasses.replace(config, decay_gate=True)
    if not args.sinusoids:
        config = dataclasses.replace(config, sinusoidal_positions=False)
    names = [field.name for field in dataclasses.fields(Recipe)]
    given = {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}
    recipe = dataclasses.replace(preset.recipe, **given)
    if args.steps and args.warmup_steps is None:
        # A shorter run keeps the warm-up's share.
        share = preset.recipe.warmup_steps / preset.recipe.steps
        recipe = dataclasses.replace(recipe, warmup_steps=min(preset.recipe.warmup_steps, max(1, round(share * args.steps))))
    _check(config, recipe, args)
    return Preset(config, recipe)


def _check(config: ModelConfig, recipe: Recipe, args) -> None:
    if not config.is_recurrent and recipe.sequences == "streamed":
        raise ToolError(f"--sequences streamed: expected a recurrent kind, found {config.attention}; use --sequences packed")
    if not config.is_recurrent and config.decay_gate:
        raise ToolError(f"--decay-gate: expected a recurrent kind, found {config.attention}")
    if args.sketch_seed is not None and not config.is_random:
        raise ToolError(f"--sketch-seed: expected random_sketch or random_sketch_mixed, found {config.attention}")
    if recipe.sequences == "streamed" and recipe.length % block_of(config):
        block = block_of(config)
        raise ToolError(f"--length: expected a multiple of the block ({block}) for streamed rows, found {recipe.length}")
    if args.tokens and not args.tokenizer:
        raise ToolError("--tokens: expected --tokenizer beside it, the tokenizer that made the tokens")
    if not recipe.near_scale > 0:
        raise ToolError(f"--near-scale: expected a number above 0, found {recipe.near_scale}")
    for name, value in (("--near-scale", args.near_scale), ("--balance-parts", args.balance_parts)):
        if value is not None and (not config.is_mixed or args.init):
            found = f"--init {args.init}" if config.is_mixed else config.attention
            raise ToolError(f"{name}: expected a new model of a mixed kind, found {found}")
    if not recipe.learning_rate > 0:
        raise ToolError(f"--learning-rate: expected a number above 0, found {recipe.learning_rate}")


def natural(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected an integer from 0, found {text}")
    return value


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer from 1, found {text}")
    return value
