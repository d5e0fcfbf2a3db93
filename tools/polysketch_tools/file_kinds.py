"""Names the format of a file or folder by its content, for errors about a file of another format."""

import json
import pathlib
import pickle
import struct
import zipfile

from polysketch_tools.safetensors import MAX_HEADER_BYTES

MSGPACK = "a msgpack file"
SAFETENSORS = "a safetensors file"
TORCH = "a PyTorch file"
OLD_TORCH = "a Python pickle, as older versions of PyTorch write it"
SENTENCEPIECE = "a SentencePiece model"

_HEAD_BYTES = 4096
_MAX_NAMES = 5

_SIGNATURES = (
    (b"GGUF", "a GGUF file"),
    (b"ggml", "a GGML file"),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy file"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\xfd7zXZ\x00", "an xz file"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard file"),
    (b"BZh", "a bzip2 file"),
    (b"version https://git-lfs", "a Git LFS pointer: the file itself was not downloaded"),
)


def describe(path: pathlib.Path) -> str:
    """Returns the format with its article: "a GGUF file", "an empty folder"."""
    if path.is_dir():
        return _describe_folder(path)
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        return "an empty file"
    for signature, name in _SIGNATURES:
        if head.startswith(signature):
            return name
    if head.startswith(b"PK\x03\x04"):
        return _describe_zip(path)
    if _is_safetensors(head):
        return SAFETENSORS
    if head[257:262] == b"ustar":
        return "a tar archive"
    # A pickle of protocol 2 or later. In msgpack these bytes are an empty map, followed by more.
    if head[0] == 0x80 and 2 <= int.from_bytes(head[1:2]) <= pickle.HIGHEST_PROTOCOL:
        return OLD_TORCH
    # Flax writes a map at the top.
    if 0x80 <= head[0] <= 0x8F or head[0] in (0xDE, 0xDF):
        return MSGPACK
    if head[0] == 0x0A and b"<unk>" in head:
        return SENTENCEPIECE
    return _describe_text(head)


def _describe_zip(path: pathlib.Path) -> str:
    try:
        names = zipfile.ZipFile(path).namelist()
    except zipfile.BadZipFile:
        return "a damaged zip archive"
    if any(name.endswith("data.pkl") for name in names):
        return TORCH
    if names and all(name.endswith(".npy") for name in names):
        return "a NumPy archive (.npz)"
    return "a zip archive"


def _is_safetensors(head: bytes) -> bool:
    if len(head) < 9 or head[8:9] != b"{":
        return False
    return 2 <= struct.unpack_from("<Q", head)[0] <= MAX_HEADER_BYTES


def _describe_text(head: bytes) -> str:
    try:
        # The head may end within a character.
        text = head.decode() if len(head) < _HEAD_BYTES else head[:-4].decode(errors="ignore")
    except UnicodeDecodeError:
        text = ""
    if not text or any(not (c.isprintable() or c.isspace()) for c in text):
        return "a file of an unknown format"
    return "a JSON file" if text.lstrip().startswith(("{", "[")) else "a text file"


def _describe_folder(path: pathlib.Path) -> str:
    names = sorted(entry.name for entry in path.iterdir())
    if not names:
        return "an empty folder"
    if _is_model_folder(path):
        return "a model folder, which polysketch-server reads as it is"
    return "a folder with " + listed(names)


def _is_model_folder(path: pathlib.Path) -> bool:
    try:
        config = json.loads((path / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("architecture") == "polysketchformer"


def listed(names: list[str]) -> str:
    """Returns the first names, and the number of the others."""
    text = ", ".join(names[:_MAX_NAMES])
    return text if len(names) <= _MAX_NAMES else f"{text} and {len(names) - _MAX_NAMES} more"
