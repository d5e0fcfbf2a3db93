"""Collects the texts that the linearized models of models/adapters are made and measured with: OUT/train, for polysketch-linearize --text,
and OUT/held-out, for bench/hybrid --text, of which nothing is in OUT/train.

    .venv-training/bin/python bench/hybrid_texts.py OUT

Novels are token files of models/demo (experiments/decay_gate has the same); the rest is of this tree, of Python's library and of
Debian's packages."""

import argparse
import gzip
import lzma
import pathlib
import subprocess
from argparse import __file__ as argparse_file
from subprocess import __file__ as subprocess_file

import numpy as np
import sentencepiece
from pydoc_data import topics

ROOT = pathlib.Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
BOOK = 1  # the token that every book begins with
BOOKS, BOOK_TOKENS = 24, 16000  # of training: the first tokens of books at even distances
NOVEL = "The House of the Dead"
LENGTH = 150_000  # characters of a held-out text
SOURCES, SOURCES_LENGTH = ("engine/*.cc", "engine/*.h"), 1_000_000  # characters
LIBRARY = pathlib.Path(argparse_file).parent
MODULES, MODULE_LENGTH = 100, 15_000  # of Python's library: files at even distances, the first characters of each
NEWS, NEWS_LENGTH = 60, 15_000  # of Debian's packages: the same


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path, metavar="OUT")
    parser.add_argument("--novels", type=pathlib.Path, default=SHARED / "training/train.bin.xz", help="tokens (uint16) of training, xz")
    parser.add_argument("--unseen-novels", type=pathlib.Path, default=SHARED / "data/eval.bin", help="tokens (uint16) of other books")
    parser.add_argument("--git-notes", type=pathlib.Path, default=pathlib.Path("/usr/share/doc/git/RelNotes"))
    parser.add_argument("--packages", type=pathlib.Path, default=pathlib.Path("/usr/share/doc"), help="NEWS.gz of Debian's packages")
    return parser.parse_args()


def books(tokens):
    """The tokens of each book, without the first."""
    return np.split(tokens, np.flatnonzero(tokens == BOOK))[1:]


def tracked(*patterns):
    """The text of files of the tree, by name."""
    names = subprocess.run(["git", "ls-files", *patterns], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return "\n\n".join((ROOT / name).read_text(encoding="utf-8") for name in sorted(names))


def evenly(items, count):
    """`count` of the items, at even distances; all, if they are fewer."""
    return items if len(items) <= count else [items[len(items) * i // count] for i in range(count)]


def starts(paths, count, length):
    """The first characters of `count` of the files."""
    contents = (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes() for path in evenly(paths, count))
    return "\n\n".join(content.decode("utf-8", "replace")[:length] for content in contents)


def training(options, processor):
    with lzma.open(options.novels) as file:
        found = books(np.frombuffer(file.read(), np.uint16))
    chosen = evenly(found, BOOKS)
    held_out_files = (pathlib.Path(argparse_file), pathlib.Path(subprocess_file))
    modules = [path for path in sorted(LIBRARY.glob("*.py")) + sorted(LIBRARY.glob("[a-o]*/*.py")) if path not in held_out_files]
    modules = [path for path in modules if path.stat().st_size >= MODULE_LENGTH and "test" not in path.parts]
    news = sorted({path.resolve() for path in options.packages.glob("*/NEWS.gz")})
    return {
        **{f"novel-{i:02}": processor.decode(book[1 : 1 + BOOK_TOKENS].tolist()) for i, book in enumerate(chosen)},
        "documents": tracked("*.md"),
        "cpp": tracked(*SOURCES)[:SOURCES_LENGTH],
        "python": starts(modules, MODULES, MODULE_LENGTH),
        "news": starts(news, NEWS, NEWS_LENGTH),
    }


def held_out(options, processor):
    texts = (processor.decode(book[1:].tolist()) for book in books(np.fromfile(options.unseen_novels, np.uint16)))
    novel = next(text for text in texts if text.startswith(f"Title: {NOVEL}"))
    notes = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted(options.git_notes.glob("2.*.0.txt")))
    return {
        "novel": novel[:LENGTH],
        "manual": "\n\n".join(topics.topics.values())[:LENGTH],
        "notes": notes[:LENGTH],
        "code": "".join(pathlib.Path(name).read_text(encoding="utf-8") for name in (argparse_file, subprocess_file)),
    }


def main():
    options = parse()
    processor = sentencepiece.SentencePieceProcessor(model_file=str(ROOT / "models/demo/tokenizer.model"))
    for part, make in (("train", training), ("held-out", held_out)):
        folder = options.out / part
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in make(options, processor).items():
            (folder / f"{name}.txt").write_text(text, encoding="utf-8")
            print(f"{folder / name}.txt: {len(text):,} characters")


if __name__ == "__main__":
    main()
