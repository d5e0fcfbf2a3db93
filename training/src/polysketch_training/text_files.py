"""Text from files and folders, in pieces. What is empty, binary or not UTF-8 is an error that names file and place."""

import pathlib
from collections.abc import Iterator

from polysketch_tools.errors import ToolError
from polysketch_tools.file_kinds import MSGPACK, describe

_PIECE_BYTES = 1 << 20


def find_files(paths: list[pathlib.Path], pattern: str = "*") -> list[pathlib.Path]:
    """Returns the files among `paths` and, of folders, all files below them that match `pattern` and are not hidden."""
    files = []
    for path in paths:
        if not path.exists():
            raise ToolError(f"{path}: no such file or folder")
        if path.is_dir():
            found = sorted(file for file in path.rglob(pattern) if file.is_file() and not _hidden(file, path))
            if not found:
                raise ToolError(f"{path}: expected files of text that match {pattern}, found none")
            files += found
        else:
            files.append(path)
    for file in files:
        if file.stat().st_size == 0:
            raise ToolError(f"{file}: expected text, found an empty file")
    return files


def _hidden(file: pathlib.Path, root: pathlib.Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)


def read_pieces(path: pathlib.Path) -> Iterator[str]:
    """Yields the text of a file in pieces of about a megabyte that end at ends of lines."""
    with open(path, "rb") as file:
        rest, offset = b"", 0
        while block := file.read(_PIECE_BYTES):
            if b"\0" in block:
                at = offset + len(rest) + block.index(b"\0")
                raise ToolError(f"{path}: expected UTF-8 text, found {_kind(path, 'a binary file')} (a zero byte at {at})")
            whole, newline, after = (rest + block).rpartition(b"\n")
            if newline:
                yield _decode(path, whole + newline, offset)
                offset += len(whole) + 1
            rest = after
        if rest:
            yield _decode(path, rest, offset)


# describe() takes these for a file whose first bytes look like text, like nothing it knows, or like a map of msgpack.
_GUESSES = ("a text file", "a JSON file", "a file of an unknown format", MSGPACK)


def _kind(path: pathlib.Path, otherwise: str) -> str:
    found = describe(path)
    return otherwise if found in _GUESSES else found


def _decode(path: pathlib.Path, data: bytes, offset: int) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        place = f"byte 0x{data[error.start]:02x} at {offset + error.start}"
        raise ToolError(f"{path}: expected UTF-8 text, found {_kind(path, 'other bytes')} ({place})") from error
