"""Rounds the matrices of a folder of Hugging Face for `--weights q4` of the server (docs/model-format.md)."""

import argparse
import pathlib
import shutil

import numpy as np
import tokenizers

from polysketch_tools import calibration, compensated_rounding, errors, llama_forward, output_folder
from polysketch_tools import quantize, safetensors
from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import read_json_object
from polysketch_tools.progress import Progress

_INDEX = "model.safetensors.index.json"
_KINDS = ("F32", "F16", "BF16")


class _Folder:
    """The tensors of a folder, read when they are asked for."""

    def __init__(self, folder: pathlib.Path):
        names = ["model.safetensors"]
        if not (folder / names[0]).exists() and (folder / _INDEX).exists():
            files = read_json_object(folder / _INDEX).get("weight_map")
            if not isinstance(files, dict) or not all(
                isinstance(name, str) and name == pathlib.Path(name).name for name in files.values()
            ):
                raise ToolError(f"{folder / _INDEX}: expected a weight_map of names of files")
            names = sorted(set(files.values()))
        self.entries = {
            name: (folder / file, entry)
            for file in names
            for name, entry in safetensors.read_header(folder / file).items()
        }
        for name, (path, entry) in self.entries.items():
            if entry.dtype not in _KINDS:
                raise ToolError(f"{path}: tensor {name}: expected {', '.join(_KINDS)}; found {entry.dtype}")

    def stored(self, name: str) -> np.ndarray:
        path, entry = self.entries[name]
        return safetensors.read_tensor(path, name, entry)

    def tensor(self, name: str) -> np.ndarray | None:
        if name not in self.entries:
            return None
        values = self.stored(name).astype(np.float32)
        if not np.isfinite(values).all():
            raise ToolError(f"tensor {name}: expected finite values, found NaN or infinity")
        return values


class _Pass:
    def __init__(self, folder: _Folder):
        self.rounded: dict[str, np.ndarray] = {}  # float16 [out, in], which plain rounding leaves as they are
        self._folder = folder
        total = sum(entry.size for name, (_, entry) in folder.entries.items() if _is_product(name))
        self._progress = Progress("calibrating", total)

    def product(self, names: list[str], x: np.ndarray) -> np.ndarray:
        """Rounds the joined matrices for inputs x [rows, in] and returns their product with what the server makes of them."""
        parts = []
        for name in names:
            part = self._folder.tensor(name)
            if part is None or part.ndim != 2 or part.shape[1] != x.shape[1]:
                found = "none" if part is None else list(part.shape)
                raise ToolError(f"tensor {name}: expected a matrix of {x.shape[1]} inputs, found {found}")
            parts.append(part)
        weights = np.concatenate(parts).T
        form = "Q4" if weights.size >= quantize.LEAST_Q4 else "Q8"
        if form == "Q4":
            arrays = compensated_rounding.round_q4(weights, calibration.moments(x), recoverable=True)
            weights = quantize.dequantize(form, *arrays, len(weights))
            ends = np.cumsum([len(part) for part in parts])[:-1]
            for name, part in zip(names, np.split(weights.T, ends)):
                self.rounded[name] = part.astype(np.float16)
        matrix = quantize.dequantize(form, *quantize.quantize(form, "", weights), len(weights))
        self._progress.add(sum(self._folder.entries[name][1].size for name in names))
        return calibration.product(x, matrix)


def _is_product(name: str) -> bool:
    return name.startswith("model.layers.") and name.endswith("_proj.weight")


def calibrate(
    source: pathlib.Path,
    out: pathlib.Path,
    *,
    text: pathlib.Path = calibration.DEFAULT_TEXT,
    overwrite: bool = False,
    shard_bytes: int = output_folder.DEFAULT_SHARD_BYTES,
) -> None:
    config = llama_forward.LlamaConfig.read(source / "config.json")
    folder = _Folder(source)
    tokens = _sequences(source / "tokenizer.json", text, config, folder)
    pass_ = _Pass(folder)
    llama_forward.forward(config, tokens, folder.tensor, pass_.product)
    rounded = pass_.rounded
    kinds = {name: "F16" if name in rounded else entry.dtype for name, (_, entry) in folder.entries.items()}
    stored: dict[str, output_folder.Parts] = {
        name: {name: (safetensors.DTYPES[kinds[name]], entry.shape)}
        for name, (_, entry) in folder.entries.items()
    }

    def chunks(name: str):
        yield name, rounded[name] if name in rounded else folder.stored(name)

    with output_folder.atomic_folder(out, overwrite) as folder_out:
        output_folder.write_tensors(
            folder_out, stored, chunks, shard_bytes=shard_bytes, what=f"writing {out}", form="pt"
        )
        for path in sorted(source.iterdir()):
            if path.is_file() and path.suffix != ".safetensors" and path.name not in (_INDEX, "SHA256SUMS"):
                shutil.copyfile(path, folder_out / path.name)
        output_folder.write_checksums(folder_out)


def _sequences(
    path: pathlib.Path, text: pathlib.Path, config: llama_forward.LlamaConfig, folder: _Folder
) -> np.ndarray:
    content = calibration.read_text(text)
    try:
        tokenizer = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except Exception as error:  # the library has no class of its own for its errors
        raise ToolError(f"{path}: expected a tokenizer of Hugging Face: {error}") from error
    tokens = calibration.sequences(text, tokenizer.encode(content).ids, config.longest)
    embedding = folder.entries.get("model.embed_tokens.weight")
    if embedding is not None and tokens.max() >= embedding[1].shape[0]:
        raise ToolError(
            f"{path}: expected ids below the {embedding[1].shape[0]} rows of the embedding, found {tokens.max()}"
        )
    return tokens


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="tools/convert", description=__doc__, epilog=errors.EXIT_STATUSES)
    parser.add_argument(
        "--hugging-face", type=pathlib.Path, required=True, metavar="FOLDER", help="the model folder, in F32, F16 or BF16"
    )
    parser.add_argument(
        "--calibration",
        type=pathlib.Path,
        default=calibration.DEFAULT_TEXT,
        metavar="TEXT",
        help="UTF-8 text whose activations the matrices are rounded for (default: passages of novels)",
    )
    output_folder.add_options(parser)
    args = parser.parse_args(argv)
    calibrate(args.hugging_face, args.out, text=args.calibration, **output_folder.how(args))


if __name__ == "__main__":
    errors.run(main)
