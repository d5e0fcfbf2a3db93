"""Writes that name their file when they fail, and folders that appear whole or not at all."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator

from safetensors import SafetensorError

from polysketch_tools.errors import ToolError


@contextlib.contextmanager
def writing(path: pathlib.Path) -> Iterator[None]:
    """Turns a failed write (a full disk, a limit, missing rights) into a ToolError that names `path`.

    An OSError of a file elsewhere (one that is read here) stays as it is. torch.save reports a full disk as RuntimeError,
    safetensors as SafetensorError.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        if isinstance(error, OSError) and error.filename and not _within(error.filename, path):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).splitlines()[0]
        free = shutil.disk_usage(_existing(path)).free
        raise ToolError(f"{path}: cannot be written: {reason} ({free / 1e6:,.0f} MB are free there)") from error


def _within(name, path: pathlib.Path) -> bool:
    return str(pathlib.Path(name).absolute()).startswith(str(path.parent.absolute()))


def _existing(path: pathlib.Path) -> pathlib.Path:
    while not path.exists():
        path = path.parent
    return path


def write_text(path: pathlib.Path, text: str) -> None:
    """Replaces a file at once: a reader sees the old text or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)


def flush_folder(folder: pathlib.Path) -> None:
    """Hands all files of a folder to the disk, so that its name can stand for its content."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
