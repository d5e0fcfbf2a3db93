"""Makes a model folder of a Hugging Face folder and an adapter of polysketch-linearize: the same bytes on every machine."""

import argparse
import dataclasses
import json
import pathlib
import shutil

import numpy as np

from polysketch_tools import errors, safetensors
from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import read_json_object
from polysketch_tools.output_folder import DEFAULT_SHARD_BYTES, atomic_folder, write_checksums, write_tensors

# The files of an adapter. LoRA is as PEFT has it; README is that of the model.
LORA_CONFIG, LORA, FAR, FIELDS, README = "adapter_config.json", "adapter_model.safetensors", "far.safetensors", "model.json", "README.md"

# Files of the base that the folder gets as they are.
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
_PEFT = "base_model.model."  # before the name of a module
_A, _B = ".lora_A.weight", ".lora_B.weight"


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


@dataclasses.dataclass(frozen=True)
class LowRank:
    """What LoRA adds to a weight: scale b a."""

    a: np.ndarray  # [r, in]
    b: np.ndarray  # [out, r]
    scale: float

    @property
    def shape(self) -> tuple[int, ...]:
        return self.b.shape[:1] + self.a.shape[1:]

    def added_to(self, weight: np.ndarray) -> np.ndarray:
        """In float64 and in the order of the ranks: a product of a library has an order of its own on each machine."""
        total = np.zeros(weight.shape)
        for column, row in zip(self.b.T.astype(np.float64), self.a.astype(np.float64)):
            total += column[:, None] * row
        return weight.astype(np.float64) + self.scale * total


@dataclasses.dataclass(frozen=True)
class Adapter:
    changed: dict[str, LowRank]  # by the name of the weight
    added: dict[str, np.ndarray]
    fields: dict  # of config.json, beside those of the base

    @classmethod
    def read(cls, folder: pathlib.Path) -> "Adapter":
        """A folder without LoRA or without far parts has no file of them."""
        if not (folder / FIELDS).is_file():
            raise ToolError(f"{folder}: expected an adapter of polysketch-linearize, found no {FIELDS}")
        far = folder / FAR
        return cls(_read_lora(folder), safetensors.read([far]) if far.is_file() else {}, read_json_object(folder / FIELDS))


def _read_lora(folder: pathlib.Path) -> dict[str, LowRank]:
    path = folder / LORA
    if not path.is_file():
        return {}
    config = read_json_object(folder / LORA_CONFIG)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if type(rank) is not int or rank < 1 or not isinstance(alpha, (int, float)):
        raise ToolError(f"{folder / LORA_CONFIG}: expected a rank r and lora_alpha, found {rank!r:.40} and {alpha!r:.40}")
    tensors, found = safetensors.read([path]), {}
    for name, a in tensors.items():
        if not name.startswith(_PEFT) or not name.endswith((_A, _B)):
            raise ToolError(f"{path}: expected LoRA of weights, found tensor {name}")
        module = name.removesuffix(_A).removesuffix(_B)
        pair = [tensors.get(module + which) for which in (_A, _B)]
        shapes = [None if one is None else list(one.shape) for one in pair]
        if any(one is None or one.ndim != 2 for one in pair) or pair[0].shape[0] != rank or pair[1].shape[1] != rank:
            raise ToolError(f"{path}: {module}: expected matrices [{rank}, in] and [out, {rank}], found {shapes[0]} and {shapes[1]}")
        found[module.removeprefix(_PEFT) + ".weight"] = LowRank(*pair, alpha / rank)
    return found


def merge(base: pathlib.Path, folder: pathlib.Path, out: pathlib.Path, *, overwrite: bool = False) -> None:
    """Writes `out`: the base with the adapter of `folder`. Weights that change have the base's types, others that are added float32."""
    adapter, tensors, config = Adapter.read(folder), stored_tensors(base), read_json_object(base / "config.json")
    for name, change in adapter.changed.items():
        found = list(tensors[name][1].shape) if name in tensors else "none of this name"
        if found != list(change.shape):
            raise ToolError(f"{base}: expected tensor {name} {list(change.shape)}, as the adapter has it; found {found}")
    if there := sorted(adapter.added.keys() & tensors.keys()):
        raise ToolError(f"{base}: expected no tensor {there[0]}, which the adapter adds")
    stored = {name: {name: (safetensors.DTYPES[entry.dtype], entry.shape)} for name, (_, entry) in tensors.items()}
    stored |= {name: {name: (safetensors.DTYPES["F32"], tensor.shape)} for name, tensor in adapter.added.items()}

    def chunks(name: str):
        path, entry = tensors.get(name, (None, None))
        values = adapter.added[name].astype(np.float32) if entry is None else safetensors.read_tensor(path, name, entry)
        if name in adapter.changed:
            values = adapter.changed[name].added_to(values)
        if entry is None or name in adapter.changed:
            dtype = entry.dtype if entry else "F32"
            limit = 65504.0 if dtype == "F16" else float(np.finfo(np.float32).max)
            if not np.abs(values).max(initial=0) <= limit:
                raise ToolError(f"tensor {name}: expected finite values within the range of {dtype}, found others")
        yield name, values

    with atomic_folder(out, overwrite) as made:
        write_tensors(made, stored, chunks, shard_bytes=DEFAULT_SHARD_BYTES, what=f"writing {out}", form="pt")
        text = json.dumps(config | adapter.fields, indent=1, ensure_ascii=False) + "\n"
        (made / "config.json").write_text(text, encoding="utf-8")
        for path in carried_files(base):
            shutil.copyfile(path, made / path.name)
        for path, name in ((base / README, "README.teacher.md"), (folder / README, README)):
            if path.is_file():
                shutil.copyfile(path, made / name)
        write_checksums(made)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="tools/merge-adapter", description=__doc__, epilog=errors.EXIT_STATUSES)
    parser.add_argument("--base", type=pathlib.Path, required=True, metavar="FOLDER", help="the model that the adapter was made for")
    parser.add_argument("--adapter", type=pathlib.Path, required=True, metavar="FOLDER", help="OUT/adapter of polysketch-linearize")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FOLDER", help="the new model folder")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing model folder")
    args = parser.parse_args(argv)
    merge(args.base, args.adapter, args.out, overwrite=args.overwrite)


if __name__ == "__main__":
    errors.run(main)
