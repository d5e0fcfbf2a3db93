"""Tokens of a text on disk: a flat array that training maps into memory, and where its documents begin."""

import dataclasses
import hashlib
import itertools
import json
import os
import pathlib

import numpy as np
import sentencepiece
from tqdm import tqdm

from polysketch_tools.errors import ToolError
from polysketch_training.disk import write_text, writing
from polysketch_training.text_files import read_pieces

_PIECES = 8  # pieces of text that are tokenized at once
_SUMMED_BYTES = 1 << 20


@dataclasses.dataclass
class Tokens:
    ids: np.ndarray  # mapped: uint16, or uint32 beyond 65,536 pieces
    documents: np.ndarray  # int64: the index of the first token of each document


def write_tokens(files: list[pathlib.Path], tokenizer: pathlib.Path, folder: pathlib.Path, *, quiet: bool = False) -> None:
    """Tokenizes files into folder/tokens.bin and documents.bin; tokens.json, written last, says from what.

    A file is a document: BOS, its text, EOS, as far as the tokenizer has them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    processor = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer))
    dtype, path, starts, count = _dtype(processor.piece_size()), folder / "tokens.bin", [], 0
    total = sum(file.stat().st_size for file in files)
    bar = tqdm(total=total, desc="tokenizing", unit="B", unit_scale=True, mininterval=0.5, disable=quiet)
    with bar, writing(path), open(path, "wb") as out:
        for file in files:
            starts.append(count)
            count += _write(out, dtype, [processor.bos_id()])
            pieces = read_pieces(file)
            while group := list(itertools.islice(pieces, _PIECES)):
                for ids in processor.encode(group, num_threads=os.cpu_count()):
                    count += _write(out, dtype, ids)
                bar.update(sum(len(piece.encode()) for piece in group))
            count += _write(out, dtype, [processor.eos_id()])
    with writing(folder / "documents.bin"):
        np.array(starts, np.int64).tofile(folder / "documents.bin")
    write_text(folder / "tokens.json", json.dumps(_sources(files, count), indent=1) + "\n")


def _write(out, dtype, ids: list[int]) -> int:
    """Writes ids; -1 stands for a piece that the tokenizer does not have."""
    ids = np.array([i for i in ids if i >= 0], dtype)
    out.write(ids.tobytes())
    return len(ids)


def _dtype(vocab_size: int):
    return np.uint16 if vocab_size <= 1 << 16 else np.uint32


def _sources(files, count: int) -> dict:
    return {"tokens": count, "files": [[str(file.resolve()), file.stat().st_size] for file in files]}


def are_written(files: list[pathlib.Path], folder: pathlib.Path) -> bool:
    """Returns whether the folder has the tokens of these files. Tokens of other files are an error."""
    found = _read_sources(folder)
    if found is None:
        return False
    if "files" not in found:
        raise ToolError(f"{folder}: expected --tokens as before, found --text; use another --out for another text")
    if found != _sources(files, found["tokens"]):
        raise ToolError(
            f"{folder}: expected the tokens of the same files as before ({len(found['files'])} files), found"
            f" {len(files)} files or other sizes; use another --out for another text"
        )
    return True


def claim_token_file(path: pathlib.Path, folder: pathlib.Path) -> None:
    """Notes in the folder which file of token ids a run reads, or checks that it is the same one, wherever it lies.

    A file is known by its size and a checksum of its first megabyte: it may have many gigabytes.
    """
    with open(path, "rb") as file:
        first = hashlib.sha256(file.read(_SUMMED_BYTES)).hexdigest()
    source = {"bytes": path.stat().st_size, "sha256_of_first_megabyte": first}
    found = _read_sources(folder)
    if found is None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "tokens.json", json.dumps(source, indent=1) + "\n")
    elif found != source:
        before = f"a file of {found['bytes']} bytes" if "bytes" in found else "--text"
        raise ToolError(
            f"{folder}: expected the tokens of {before}, as before; found others in {path}"
            f" ({source['bytes']} bytes); use another --out for them"
        )


def _read_sources(folder: pathlib.Path) -> dict | None:
    try:
        return json.loads((folder / "tokens.json").read_text())
    except FileNotFoundError:
        return None


def open_tokens(folder: pathlib.Path, vocab_size: int) -> Tokens:
    """Maps what write_tokens wrote."""
    documents = np.fromfile(folder / "documents.bin", np.int64)
    return Tokens(_map(folder / "tokens.bin", vocab_size), documents)


def open_token_file(path: pathlib.Path, vocab_size: int, bos_id: int) -> Tokens:
    """Maps a file of token ids (little-endian uint16, or uint32 beyond 65,536 pieces). Documents begin with BOS."""
    if not path.is_file():
        raise ToolError(f"{path}: expected a file of token ids, found none")
    ids = _map(path, vocab_size)
    largest = max(int(part.max()) for part in np.array_split(ids, -(-len(ids) // (1 << 24))))
    if largest >= vocab_size:
        raise ToolError(f"{path}: expected token ids below {vocab_size} (the tokenizer's pieces), found {largest}")
    return Tokens(ids, np.flatnonzero(ids == bos_id).astype(np.int64))


def _map(path: pathlib.Path, vocab_size: int) -> np.ndarray:
    dtype = np.dtype(_dtype(vocab_size))
    size = path.stat().st_size
    if size == 0 or size % dtype.itemsize:
        raise ToolError(f"{path}: expected token ids of {dtype.itemsize} bytes, found {size} bytes")
    return np.memmap(path, dtype, mode="r")
