"""Writes the linearized model as a folder that polysketch-server reads, with everything of the teacher's that is not a weight."""

import pathlib
import shutil

import numpy as np
import torch

from polysketch_tools import safetensors
from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import read_json_object
from polysketch_tools.output_folder import DEFAULT_SHARD_BYTES, atomic_folder, write_checksums, write_tensors
from polysketch_training.linearize.decoder import json_text, read_config

# Files of the teacher that the folder gets as they are.
_CARRIED = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
_LEGAL = ("LICENSE", "LICENCE", "NOTICE", "COPYING", "USE_POLICY")  # names that begin so
_INDEX = "model.safetensors.index.json"


def weight_files(folder: pathlib.Path) -> list[pathlib.Path]:
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    if not (folder / _INDEX).is_file():
        raise ToolError(f"{folder}: expected model.safetensors or {_INDEX}, found neither")
    names = read_json_object(folder / _INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) and pathlib.PurePath(name).name == name for name in names.values()):
        raise ToolError(f'{folder / _INDEX}: field "weight_map": expected names of files in the folder')
    return [folder / name for name in sorted(set(names.values()))]


def stored_tensors(folder: pathlib.Path) -> dict[str, tuple[pathlib.Path, safetensors.Entry]]:
    """The tensors of a folder by name, each with its file."""
    found = {}
    for path in weight_files(folder):
        for name, entry in safetensors.read_header(path).items():
            if entry.dtype not in ("F32", "F16", "BF16"):
                raise ToolError(f"{path}: tensor {name}: expected F32, F16 or BF16, found {entry.dtype}")
            found[name] = (path, entry)
    return found


def carried_files(folder: pathlib.Path) -> list[pathlib.Path]:
    legal = [path for path in sorted(folder.iterdir()) if path.name.upper().startswith(_LEGAL) and path.is_file()]
    return [folder / name for name in _CARRIED if (folder / name).is_file()] + legal


def write_model(
    out: pathlib.Path, teacher: pathlib.Path, changed: dict[str, torch.Tensor], added: dict[str, torch.Tensor], fields: dict, about: str
) -> None:
    """changed: the weights that differ from the teacher's; they get its types. added: in float32. fields: of config.json. about: of
    README.md."""
    tensors = stored_tensors(teacher)
    if missing := sorted(changed.keys() - tensors.keys()):
        raise ToolError(f"{teacher}: expected tensor {missing[0]}, found none of this name")
    stored = {name: {name: (safetensors.DTYPES[entry.dtype], entry.shape)} for name, (_, entry) in tensors.items()}
    stored |= {name: {name: (safetensors.DTYPES["F32"], tuple(tensor.shape))} for name, tensor in added.items()}
    new = changed | added

    def chunks(name: str):
        path, entry = tensors.get(name, (None, None))
        if name not in new:
            yield name, safetensors.read_tensor(path, name, entry)
            return
        dtype = entry.dtype if entry else "F32"
        values = new[name].detach().float().cpu().numpy()
        limit = 65504.0 if dtype == "F16" else float(np.finfo(np.float32).max)
        if not np.abs(values).max(initial=0) <= limit:
            raise ToolError(f"tensor {name}: expected finite values within the range of {dtype}, found others")
        yield name, values

    with atomic_folder(out, overwrite=True) as folder:
        write_tensors(folder, stored, chunks, shard_bytes=DEFAULT_SHARD_BYTES, what=f"writing {out}", form="pt")
        (folder / "config.json").write_text(json_text(read_config(teacher) | fields), encoding="utf-8")
        for path in carried_files(teacher):
            shutil.copyfile(path, folder / path.name)
        if (teacher / "README.md").is_file():
            shutil.copyfile(teacher / "README.md", folder / "README.teacher.md")
        (folder / "README.md").write_text(about, encoding="utf-8")
        write_checksums(folder)
