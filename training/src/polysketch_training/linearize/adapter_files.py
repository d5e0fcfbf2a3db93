"""The adapter of a run, of which polysketch_tools.adapter makes the model: what distillation changed, in bfloat16."""

import json
import pathlib

import safetensors.torch

from polysketch_tools import adapter
from polysketch_training.disk import write_text, writing
from polysketch_training.linearize.decoder import Decoder, json_text
from polysketch_training.linearize.transfer import write_tensors


def save_lora(adapted, folder: pathlib.Path, base: str) -> None:
    """As PEFT reads it. PEFT writes names in the order of a set; here they are sorted: the same run, the same bytes."""
    with writing(folder):
        adapted.save_pretrained(folder)
    path = folder / adapter.LORA_CONFIG
    config = {name: sorted(value) if isinstance(value, list) else value for name, value in json.loads(path.read_text()).items()}
    write_text(path, json.dumps(config | {"base_model_name_or_path": base}, indent=1, sort_keys=True) + "\n")
    tensors = safetensors.torch.load_file(folder / adapter.LORA)
    write_tensors(folder / adapter.LORA, {name: tensor.bfloat16() for name, tensor in tensors.items()})


def save_rest(decoder: Decoder, folder: pathlib.Path, fields: dict, about: str) -> None:
    """Far parts, the fields of config.json and README.md."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if decoder.far:
        far = {name: tensor for i, part in decoder.far.items() for name, tensor in part.tensors(i).items()}
        write_tensors(folder / adapter.FAR, {name: tensor.bfloat16() for name, tensor in far.items()})
    write_text(folder / adapter.FIELDS, json_text(fields))
    write_text(folder / adapter.README, about)
