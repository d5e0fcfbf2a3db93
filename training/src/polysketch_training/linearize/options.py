"""The options of polysketch-linearize."""

import argparse
import dataclasses
import pathlib

import torch

from polysketch_tools import errors
from polysketch_tools.errors import ToolError
from polysketch_training.linearize.distillation import TARGETS, Recipe
from polysketch_training.linearize.far import KINDS as FAR_KINDS
from polysketch_training.linearize.products import PRECISIONS, resolve
from polysketch_training.linearize.scaling import Scaling, scaled_length, scales_attention, scaling_argument
from polysketch_training.linearize.transfer import FarRecipe
from polysketch_training.linearize.windows import KINDS, Window
from polysketch_training.train_options import natural, positive

STAGES = ("sensitivity", "transfer", "teacher", "distillation", "evaluation")
AUTO, NONE = "auto", "none"
_ENGINE_BLOCK, _FAR_STEP, _MOST_FAR = 64, 16, 128  # what the server reads: windows with far parts, their sizes
# Defaults, of which a teacher that was trained for fewer tokens has its own length: what windows of 512 tokens lose shows in them.
_LENGTHS, _SAMPLE_LENGTHS, _EVALUATION_LENGTHS = (4096,), (2048,), (1024, 2048)

_DESCRIPTION = """\
Makes a pretrained transformer one whose layers, but for some, attend to a window and the first tokens, and to what a far part of constant
size keeps of the others, so that their memory does not grow, and distills it from itself. OUT/model is a folder that polysketch-server
reads, OUT/report.md says what was kept and lost.

The same command continues a run that was interrupted or killed, and ends in the same bytes."""


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="polysketch-linearize",
        description=_DESCRIPTION,
        epilog=errors.EXIT_STATUSES + " 130 leaves what is done.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument(
        "--from",
        dest="source",
        type=pathlib.Path,
        required=True,
        metavar="FOLDER",
        help="the teacher: a Hugging Face folder, or a GGUF file, which is converted into OUT/teacher",
    )
    result.add_argument("--out", type=pathlib.Path, required=True, metavar="FOLDER", help="the folder of the run")
    _add_text(result.add_argument_group("text"))
    _add_layers(result.add_argument_group("layers"))
    _add_far(result.add_argument_group("far parts"))
    _add_distillation(result.add_argument_group("distillation"))
    _add_samples(result.add_argument_group("samples"))
    _add_run(result.add_argument_group("run"))
    return result


def _add_text(group) -> None:
    group.add_argument(
        "--text",
        type=pathlib.Path,
        nargs="+",
        default=[],
        metavar="PATH",
        help="UTF-8 files, and folders of them; the end of each is held out (default: passages of novels that the tools contain)",
    )


def _add_layers(group) -> None:
    group.add_argument(
        "--layers",
        default=AUTO,
        metavar="auto|none|LIST",
        help="layers that stay full, as 7,8,14. auto: the fewest ones within --max-recall-loss (default auto)",
    )
    group.add_argument(
        "--max-recall-loss",
        type=float,
        default=0.5,
        metavar="NATS",
        help="auto: what an answer may cost more than with all layers full, before training (default 0.5)",
    )
    group.add_argument("--window", type=positive, default=512, metavar="W", help="tokens of a window (default 512)")
    group.add_argument(
        "--window-kind", choices=KINDS, default=KINDS[0], help="blocks: the own block of W tokens and the one before; sliding: the last W"
    )
    group.add_argument("--sinks", type=natural, default=4, metavar="N", help="first tokens that every window has (default 4)")
    group.add_argument(
        "--rope-scaling",
        type=scaling_argument,
        metavar="KIND:X",
        help="the model reads X times the teacher's length with RoPE scaled as llama3, linear or yarn, in all layers (default: the teacher's)",
    )


def _add_far(group) -> None:
    group.add_argument(
        "--far",
        choices=(NONE, *FAR_KINDS),
        default=NONE,
        help="what layers with a window keep of older tokens; affine_square: squares of products of affine maps; linear: products of elu + 1"
        " of affine maps; learned_sketch: squares of products of affine maps of sketches by a network (default none)",
    )
    group.add_argument("--far-size", type=positive, default=32, metavar="R", help="rows of a map, a multiple of 16 up to 128 (default 32)")
    group.add_argument(
        "--far-length",
        type=positive,
        metavar="N",
        help="from token N on the weight of a far part shrinks as N / position (default: the longest of --lengths)",
    )
    group.add_argument("--far-decay-gate", action="store_true", help="far parts forget: a gate of the layer's input says how much at each token")
    group.add_argument("--far-steps", type=positive, default=30, metavar="N", help="steps of attention transfer (default 30)")
    group.add_argument("--far-learning-rate", type=float, default=1e-2, metavar="X", help="of attention transfer (default 0.01)")
    group.add_argument("--no-control", action="store_true", help="no second distillation, of the same model without far parts")


def _add_distillation(group) -> None:
    group.add_argument("--steps", type=natural, default=40, metavar="N", help="steps of the optimizer; 0: no training (default 40)")
    group.add_argument("--tokens-per-step", type=positive, default=4096, metavar="N", help="default 4096")
    group.add_argument("--lengths", type=positives, metavar="N,...", help=f"a step draws one (default {_default(_LENGTHS)})")
    group.add_argument(
        "--recall-share", type=float, default=0.6, metavar="X", help="share of the sequences with a recall task in the text (default 0.6)"
    )
    group.add_argument("--rank", type=positive, default=8, metavar="R", help="of LoRA (default 8)")
    group.add_argument(
        "--targets", default="q,k,v,o", metavar="NAME,...", help=f"matrices with LoRA, of {', '.join(TARGETS)} (default q,k,v,o)"
    )
    group.add_argument("--learning-rate", type=float, default=1e-3, metavar="X", help="default 0.001")
    group.add_argument("--seed", type=natural, default=0, metavar="N", help="of the sequences and of LoRA (default 0)")


def _add_samples(group) -> None:
    group.add_argument(
        "--sample-length",
        type=positive,
        metavar="N",
        help=f"tokens of a sample of sensitivity and distillation (default {_default(_SAMPLE_LENGTHS)})",
    )
    group.add_argument("--sample-texts", type=positive, default=2, metavar="N", help="samples of text (default 2)")
    group.add_argument("--sample-prompts", type=positive, default=3, metavar="N", help="recall prompts (default 3)")
    group.add_argument("--evaluation-lengths", type=positives, metavar="N,...", help=f"default {_default(_EVALUATION_LENGTHS)}")
    group.add_argument("--evaluation-texts", type=positive, default=4, metavar="N", help="for each length (default 4)")
    group.add_argument("--evaluation-prompts", type=positive, default=6, metavar="N", help="for each length (default 6)")


def _add_run(group) -> None:
    group.add_argument("--dry-run", action="store_true", help="print the disk, memory and time that the run will need, and write nothing")
    group.add_argument("--stop-after", choices=STAGES, default=STAGES[-1], help="the last stage; the same command without it goes on")
    group.add_argument("--save-every", type=positive, default=5, metavar="N", help="steps between saved states (default 5)")
    group.add_argument("--measure-every", type=positive, metavar="N", help="steps between measurements (default: an eighth of the steps)")
    group.add_argument("--minutes", type=float, metavar="X", help="stop the distillation with a saved state after this time")
    group.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU where there is one (default auto)")
    group.add_argument(
        "--precision",
        choices=("auto", *PRECISIONS),
        default="auto",
        help="of products in training; auto: bf16 on a GPU, f32 on a CPU (default auto)",
    )
    group.add_argument("--threads", type=positive, metavar="N", help="threads of the CPU (default: torch's)")


def _default(lengths: tuple[int, ...]) -> str:
    return ",".join(map(str, lengths)) + ", at most the teacher's length"


def positives(text: str) -> tuple[int, ...]:
    return tuple(sorted({positive(part) for part in text.split(",")}))


@dataclasses.dataclass(frozen=True)
class Samples:
    """How many samples there are, and their tokens."""

    lengths: tuple[int, ...]
    texts: int
    prompts: int

    @property
    def held_out(self) -> int:
        """Tokens of held-out text that they need."""
        return self.texts * max(self.lengths) + 1

    @property
    def tokens(self) -> int:
        return sum(self.lengths) * (self.texts + self.prompts)

    @property
    def text_tokens(self) -> int:
        return sum(self.lengths) * self.texts


@dataclasses.dataclass(frozen=True)
class Options:
    window: Window
    layers: tuple[int, ...] | None  # that stay full; None: auto
    max_recall_loss: float
    recipe: Recipe
    samples: Samples  # of sensitivity and distillation
    evaluation: Samples
    measure_every: int
    far: FarRecipe | None
    control: bool  # the same distillation without far parts, beside that with them
    scaling: Scaling | None


def options_of(args: argparse.Namespace, config: dict, device: torch.device) -> Options:
    """Checks the options beside config.json of the teacher."""
    trained = config["max_position_embeddings"]

    def within(lengths: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted({min(length, trained) for length in lengths}))

    recipe = Recipe(
        steps=args.steps,
        tokens=args.tokens_per_step,
        lengths=args.lengths or within(_LENGTHS),
        recall_share=args.recall_share,
        rank=args.rank,
        targets=tuple(args.targets.split(",")),
        learning_rate=args.learning_rate,
        seed=args.seed,
        precision=resolve(args.precision, device),
    )
    _check_recipe(recipe)
    samples = Samples((args.sample_length,) if args.sample_length else within(_SAMPLE_LENGTHS), args.sample_texts, args.sample_prompts)
    evaluation = Samples(args.evaluation_lengths or within(_EVALUATION_LENGTHS), args.evaluation_texts, args.evaluation_prompts)
    for option, lengths, positions, whose in (
        ("--lengths", recipe.lengths, trained, "teacher"),
        ("--sample-length", samples.lengths, trained, "teacher"),
        ("--evaluation-lengths", evaluation.lengths, scaled_length(config, args.rope_scaling), "model"),
    ):
        if max(lengths) > positions:
            raise ToolError(f"{option}: expected at most the {positions} positions of the {whose}, found {max(lengths)}")
    if not args.max_recall_loss >= 0:
        raise ToolError(f"--max-recall-loss: expected a number from 0, found {args.max_recall_loss}")
    return Options(
        window=Window(args.window, args.window_kind, args.sinks),
        layers=_layers(args.layers, config["num_hidden_layers"]),
        max_recall_loss=args.max_recall_loss,
        recipe=recipe,
        samples=samples,
        evaluation=evaluation,
        measure_every=args.measure_every or max(1, args.steps // 8),
        far=_far(args, config, recipe, samples),
        control=args.far != NONE and not args.no_control,
        scaling=args.rope_scaling,
    )


def _far(args: argparse.Namespace, config: dict, recipe: Recipe, samples: Samples) -> FarRecipe | None:
    if args.far == NONE:
        if args.far_decay_gate:
            raise ToolError("--far-decay-gate: expected --far, found none")
        return None
    if args.far_size % _FAR_STEP or args.far_size > _MOST_FAR:
        raise ToolError(f"--far-size: expected a multiple of {_FAR_STEP} up to {_MOST_FAR}, found {args.far_size}")
    if args.window_kind != "blocks":
        raise ToolError(f"--far {args.far}: expected --window-kind blocks, found {args.window_kind}")
    if scales_attention(config, args.rope_scaling):
        raise ToolError(f"--far {args.far}: expected another RoPE than YaRN, whose scale of attention far parts do not have")
    if args.window % _ENGINE_BLOCK:
        raise ToolError(f"--far {args.far}: expected a --window that is a multiple of {_ENGINE_BLOCK}, found {args.window}")
    if not args.far_learning_rate > 0:
        raise ToolError(f"--far-learning-rate: expected a number above 0, found {args.far_learning_rate}")
    near = 2 * args.window
    for option, lengths in (("--lengths", recipe.lengths), ("--sample-length", samples.lengths)):
        if min(lengths) <= near:
            raise ToolError(f"{option}: expected more than the {near} tokens of two blocks, which have no far part; found {min(lengths)}")
    length = args.far_length or max(recipe.lengths)
    return FarRecipe(args.far, args.far_size, length, args.far_steps, args.far_learning_rate, args.far_decay_gate)


def _layers(text: str, count: int) -> tuple[int, ...] | None:
    if text == AUTO:
        return None
    if text == "none":
        return ()
    try:
        layers = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise ToolError(f"--layers: expected auto, none or numbers of layers, as 7,8,14; found {text!r:.80}") from error
    if layers[0] < 0 or layers[-1] >= count:
        raise ToolError(f"--layers: expected layers 0 to {count - 1} of the teacher, found {layers[0] if layers[0] < 0 else layers[-1]}")
    return tuple(layers)


def _check_recipe(recipe: Recipe) -> None:
    for length in recipe.lengths:
        if recipe.tokens % length:
            raise ToolError(f"--lengths: expected divisors of --tokens-per-step {recipe.tokens}, found {length}")
        if length < 16:
            raise ToolError(f"--lengths: expected at least 16, found {length}")
    if not 0 <= recipe.recall_share <= 1:
        raise ToolError(f"--recall-share: expected a number from 0 to 1, found {recipe.recall_share}")
    if not recipe.learning_rate > 0:
        raise ToolError(f"--learning-rate: expected a number above 0, found {recipe.learning_rate}")
    for target in recipe.targets:
        if target not in TARGETS:
            raise ToolError(f"--targets: expected some of {', '.join(TARGETS)}, found {target!r:.40}")
