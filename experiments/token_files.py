"""Files of token ids (uint16), which polysketch-train reads."""

import lzma
import pathlib
import shutil


def unpack(packed: pathlib.Path, tokens: pathlib.Path) -> None:
    """Writes the content of the file FILE.xz whole or not at all."""
    partial = tokens.with_suffix(".part")
    with lzma.open(packed) as source, partial.open("wb") as target:
        shutil.copyfileobj(source, target)
    partial.rename(tokens)
