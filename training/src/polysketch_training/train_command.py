"""polysketch-train: from text to a folder that polysketch-server reads."""

import argparse
import copy
import dataclasses
import pathlib
import shutil
import sys

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from polysketch_tools import errors
from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import read_model_config
from polysketch_tools.tokenizer import apply_tokenizer
from polysketch_training import text_files, token_file
from polysketch_training.attention import block_of
from polysketch_training.batches import Batches
from polysketch_training.disk import writing
from polysketch_training.export import export_model
from polysketch_training.flax_checkpoint import draw_sketches
from polysketch_training.initial_scales import set_initial_scales
from polysketch_training.model import PolysketchModel
from polysketch_training.presets import Preset
from polysketch_training.run_folder import RunFolder, Settings
from polysketch_training.server_tensors import load_server_tensors, read_folder_tensors
from polysketch_training.tokenizer_training import train_tokenizer
from polysketch_training.train_options import parser, preset_of
from polysketch_training.trainer import Trainer, make_accelerator

_INTERRUPTED = 130


def command(argv: list[str]) -> None:
    args = parser().parse_args(argv)
    preset = preset_of(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    on_cpu = args.cpu or not torch.cuda.is_available()
    precision = args.precision
    if precision == "auto":
        precision = "f32" if on_cpu else "bf16"
    accelerator = make_accelerator(preset.recipe, precision, on_cpu)
    folder = RunFolder(args.out)
    with accelerator.main_process_first():
        preset = _prepare(args, preset, folder, quiet=not accelerator.is_main_process)
        settings = Settings(preset.config, preset.recipe, precision, args.sketch_seed)
        folder.claim(settings)
    model = _make_model(args, settings, folder.tokenizer)
    trainer = _make_trainer(args, settings, model, folder, accelerator)
    trainer.resume()
    _say(accelerator, _summary(model, settings, trainer))
    if not trainer.train(minutes=args.minutes):
        _say(accelerator, f"stopped after step {trainer.done}; the same command continues")
        if trainer.interrupted:
            sys.exit(_INTERRUPTED)
        return
    if accelerator.is_main_process:
        _finish(accelerator.unwrap_model(model), settings, folder)


def _say(accelerator: Accelerator, text: str) -> None:
    if accelerator.is_main_process:
        print(text, file=sys.stderr, flush=True)


def _prepare(args: argparse.Namespace, preset: Preset, folder: RunFolder, quiet: bool) -> Preset:
    """Puts tokenizer and tokens into the folder, unless they are there. Returns the preset with the tokenizer's sizes."""
    with writing(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
    files = text_files.find_files(args.text, args.include) if args.text else []
    _prepare_tokenizer(args, preset, folder, files)
    config = copy.copy(preset.config)
    config.vocab_size = _pieces(folder.tokenizer)
    apply_tokenizer(config, folder.tokenizer, None)
    if files and not token_file.are_written(files, folder.tokens):
        token_file.write_tokens(files, folder.tokenizer, folder.tokens, quiet=quiet)
    return dataclasses.replace(preset, config=config)


def _prepare_tokenizer(args, preset: Preset, folder: RunFolder, files: list[pathlib.Path]) -> None:
    if args.tokenizer is not None:
        if not args.tokenizer.is_file():
            raise ToolError(f"{args.tokenizer}: expected a SentencePiece model, found no file")
        if folder.tokenizer.exists():
            if folder.tokenizer.read_bytes() != args.tokenizer.read_bytes():
                raise ToolError(f"{folder.path} holds a run with another tokenizer than {args.tokenizer}; use another --out")
            return
        with writing(folder.tokenizer):
            shutil.copyfile(args.tokenizer, folder.tokenizer)
    elif not folder.tokenizer.exists():
        wanted = preset.config.vocab_size
        print(f"training a tokenizer of {wanted} pieces", file=sys.stderr, flush=True)
        found = train_tokenizer(files, wanted, folder.tokenizer)
        if found < wanted:
            print(f"the text gives {found} pieces, not {wanted}", file=sys.stderr, flush=True)


def _pieces(tokenizer: pathlib.Path) -> int:
    import sentencepiece

    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(tokenizer)).piece_size()
    except (RuntimeError, OSError) as error:
        raise ToolError(f"{tokenizer}: expected a SentencePiece model, found damage") from error


def _make_model(args, settings: Settings, tokenizer: pathlib.Path) -> PolysketchModel:
    set_seed(settings.recipe.seed)
    model = PolysketchModel(settings.config, seed=settings.recipe.seed)
    if settings.sketch_seed is not None:
        for layer, sketch in zip(model.layers, draw_sketches(settings.config, settings.sketch_seed)):
            layer.attn.sketch.level0.copy_(torch.from_numpy(np.array(sketch)))
    if settings.config.is_mixed:
        set_initial_scales(model, settings.recipe.near_scale, settings.recipe.balance_parts)
    if args.init:
        _check_init_tokenizer(args.init, tokenizer)
        tensors = read_folder_tensors(args.init, read_model_config(args.init / "config.json"))
        # A gate that the folder does not have starts as it is drawn.
        gates = {name: t.detach().numpy().T if t.dim() == 2 else t.detach().numpy()
                 for name, t in model.named_parameters() if ".attn.gate." in name}  # fmt: skip
        load_server_tensors(model, gates | tensors)
    model.use_attention(args.attention)
    if args.compile:
        model.compile_layers()
    return model


def _check_init_tokenizer(init: pathlib.Path, tokenizer: pathlib.Path) -> None:
    """Weights mean something for the ids of their own tokenizer alone. A folder without one says nothing."""
    own = init / "tokenizer.model"
    if own.is_file() and own.read_bytes() != tokenizer.read_bytes():
        raise ToolError(f"--init {init}: expected its tokenizer (--tokenizer {own}), found another one")


def _make_trainer(args, settings: Settings, model, folder: RunFolder, accelerator: Accelerator) -> Trainer:
    config, recipe = settings.config, settings.recipe
    if args.tokens:
        tokens = token_file.open_token_file(args.tokens, config.vocab_size, config.bos_id)
        if accelerator.is_main_process:
            token_file.claim_token_file(args.tokens, folder.tokens)
    else:
        tokens = token_file.open_tokens(folder.tokens, config.vocab_size)
    batches = Batches(tokens, recipe, block_of(config), accelerator.process_index)
    return Trainer(model, batches, recipe, accelerator, folder.path, save_every=args.save_every, keep=args.keep)


def _summary(model: PolysketchModel, settings: Settings, trainer: Trainer) -> str:
    count = sum(parameter.numel() for parameter in model.parameters())
    text = f"{settings.config.attention}, {count / 1e6:.1f} M parameters, {settings.precision}"
    return text + (f"; continues after step {trainer.done}" if trainer.done else "")


def _finish(model: PolysketchModel, settings: Settings, folder: RunFolder) -> None:
    if not settings.config.is_served:
        print(f"{settings.config.attention} is not served: no model folder is written", file=sys.stderr, flush=True)
        return
    export_model(model, folder.model, tokenizer=folder.tokenizer, overwrite=True)
    print(f"{folder.model}: polysketch-server --model {folder.model} serves it", file=sys.stderr)


def main() -> None:
    errors.run(command)


if __name__ == "__main__":
    main()
