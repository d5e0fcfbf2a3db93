"""Exports a run of polysketch-train to a folder that polysketch-server reads, or to a checkpoint of the authors' code."""

import argparse
import pathlib

from polysketch_tools import calibration, errors
from polysketch_tools.errors import ToolError
from polysketch_tools.model_folder import STORAGE_DTYPES
from polysketch_training.export import FORMATS, export_model, load_run


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="polysketch-export", description=__doc__, epilog=errors.EXIT_STATUSES)
    parser.add_argument(
        "run",
        type=pathlib.Path,
        help="the --out of polysketch-train (its newest checkpoint is exported), or one of its checkpoints",
    )
    parser.add_argument("--out", type=pathlib.Path, required=True, help="the new folder")
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="server",
        help="server: a model folder (docs/model-format.md). flax: ckpt.msgpack and config.json, which the authors' code and"
        " tools/convert read (default server)",
    )
    parser.add_argument("--dtype", choices=STORAGE_DTYPES, default="f32", help="storage of the tensors (default f32)")
    calibration.add_option(parser)
    parser.add_argument("--overwrite", action="store_true", help="replace an existing model folder")
    args = parser.parse_args(argv)
    calibration.check_option(args, parser)
    return args


def _calibration_text(args: argparse.Namespace, tokenizer: pathlib.Path | None) -> pathlib.Path | None:
    """Returns the file of --calibration, or None for plain rounding."""
    text = calibration.text_of(args)
    if text is not None and tokenizer is None:
        raise ToolError(f"{args.run}: --dtype q4 needs a run with a tokenizer for its calibration, or --calibration none")
    return text


def command(argv: list[str]) -> None:
    args = parse(argv)
    model, settings, folder = load_run(args.run)
    tokenizer = folder.tokenizer if folder.tokenizer.exists() else None
    export_model(
        model,
        args.out,
        tokenizer=tokenizer,
        form=args.format,
        dtype=args.dtype,
        calibration_text=_calibration_text(args, tokenizer),
        sketch_seed=settings.sketch_seed,
        overwrite=args.overwrite,
    )


def main() -> None:
    errors.run(command)


if __name__ == "__main__":
    main()
