"""Writes a trained model for the server, or for the authors' code."""

import copy
import pathlib
import shutil

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file

from polysketch_tools import calibration, model_folder
from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import ModelConfig
from polysketch_tools.tokenizer import apply_tokenizer
from polysketch_training.checkpoints import newest
from polysketch_training.disk import writing
from polysketch_training.flax_checkpoint import write_flax_checkpoint
from polysketch_training.model import PolysketchModel
from polysketch_training.run_folder import RunFolder, Settings
from polysketch_training.server_tensors import server_tensors

FORMATS = ("server", "flax")


def export_model(
    model: PolysketchModel,
    out: pathlib.Path,
    *,
    tokenizer: pathlib.Path | None,
    form: str = "server",
    dtype: str = "f32",
    calibration_text: pathlib.Path | None = None,
    sketch_seed: int | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a model folder of the server (docs/model-format.md), or ckpt.msgpack with the authors' config.json.

    calibration_text: the UTF-8 text for whose activations q4 is rounded; needs a tokenizer. ToolError: the server does not have
    this kind."""
    model.config.check_served()
    config, tensors = copy.copy(model.config), server_tensors(model)
    if tokenizer is not None:
        apply_tokenizer(config, tokenizer, None)
    if form == "server":
        tokens = None if calibration_text is None else calibration.read_sequences(config, tokenizer, calibration_text)
        _write_server_folder(out, config, tensors, tokenizer, dtype, tokens, overwrite)
        return
    if dtype != "f32":
        raise ToolError(f"--format flax: expected --dtype f32, found {dtype}")
    with model_folder.atomic_folder(out, overwrite) as folder:
        write_flax_checkpoint(folder, config, tensors, sketch_seed)
        if tokenizer is not None:
            with writing(folder / "tokenizer.model"):
                shutil.copyfile(tokenizer, folder / "tokenizer.model")


def _write_server_folder(out, config: ModelConfig, tensors: dict[str, np.ndarray], tokenizer, dtype, tokens, overwrite) -> None:
    def values(name, shape):
        assert tensors[name].shape == shape, name
        yield tensors[name]

    with writing(out):
        model_folder.write_model(
            out,
            config,
            dtype.upper(),
            values,
            shard_bytes=model_folder.DEFAULT_SHARD_BYTES,
            tokenizer=tokenizer,
            overwrite=overwrite,
            tokens=tokens,
        )


def load_run(path: pathlib.Path) -> tuple[PolysketchModel, Settings, RunFolder]:
    """Reads the newest checkpoint of a run, or the one that `path` names (RUN/checkpoints/step-N)."""
    is_run = (path / "run.json").exists()
    folder = RunFolder(path if is_run else path.parent.parent)
    settings = folder.read_settings()
    checkpoint = newest(folder.checkpoints) if is_run else path
    if settings is None or checkpoint is None or not checkpoint.is_dir():
        raise ToolError(f"{path}: expected the --out of polysketch-train with a checkpoint, or a checkpoint in it; found none")
    model = PolysketchModel(settings.config)
    weights = checkpoint / "model.safetensors"
    try:
        tensors = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise ToolError(f"{weights}: expected the weights of a checkpoint, found damage: {error}") from error
    # DistributedDataParallel puts its own name before every other.
    model.load_state_dict({name.removeprefix("module."): tensor for name, tensor in tensors.items()})
    return model, settings, folder
