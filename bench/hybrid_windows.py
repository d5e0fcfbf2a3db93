"""What windows cost a pretrained transformer before training, by their size: bench/hybrid_windows.py --text GENRE=FILE... --layers LIST.

Prints a row for all layers full and one for each --window KIND:W with the layers of --layers full: of each text the nats a token up to
2,048 tokens and beyond, less those of the teacher; of recall prompts in the first text answers / tokens of answers / nats an answer.
"""

import argparse
import pathlib

import numpy as np
import torch

from polysketch_training.linearize.decoder import Decoder, load_tokenizer
from polysketch_training.linearize.samples import make_samples, mean, score
from polysketch_training.linearize.texts import prefix_of
from polysketch_training.linearize.windows import Window

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS, FIRST, BLOCK = 4096, 2048, 512
TEXT, FILLER = slice(20_000, 60_000), slice(60_000, 150_000)  # characters of a file: its sample, and what prompts are made of


def parse():
    def text(value):
        genre, _, path = value.partition("=")
        return genre, pathlib.Path(path)

    def window(value):
        kind, _, size = value.partition(":")
        return Window(int(size), kind, 4)

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/smollm2")
    parser.add_argument("--text", type=text, action="append", required=True, metavar="GENRE=FILE")
    parser.add_argument("--layers", type=lambda value: {int(part) for part in value.split(",")}, required=True, metavar="LIST")
    parser.add_argument("--window", type=window, action="append", required=True, metavar="KIND:W", help="blocks or sliding, and tokens")
    parser.add_argument("--prompts", type=int, default=6, help="of up to eight facts (default 6)")
    return parser.parse_args()


def losses(decoder, ids):
    """Nats a token up to FIRST tokens, and beyond."""
    hidden, targets = decoder.hidden(ids), torch.as_tensor(ids[1:], dtype=torch.int64)
    nats = [
        torch.nn.functional.cross_entropy(hidden[at : at + BLOCK][: len(part)] @ decoder.head.T, part, reduction="none")
        for at, part in zip(range(0, len(targets), BLOCK), targets.split(BLOCK))
    ]
    nats = torch.cat(nats)
    return np.array([nats[:FIRST].mean().item(), nats[FIRST:].mean().item()])


def main():
    options = parse()
    tokenizer = load_tokenizer(options.model)
    prefix, texts = prefix_of(tokenizer), {}
    for genre, path in options.text:
        ids = tokenizer.encode(path.read_text(encoding="utf-8")[TEXT], add_special_tokens=False)
        texts[genre] = np.array([*prefix, *ids], np.int32)[:TOKENS]
    filler = tokenizer.encode(options.text[0][1].read_text(encoding="utf-8")[FILLER], add_special_tokens=False)
    prompts = make_samples(tokenizer, np.array(filler, np.int32), TOKENS, texts=0, prompts=options.prompts, seed=7, prefix=prefix)
    decoder = Decoder(options.model, torch.device("cpu"), options.window[0])

    def measure():
        with torch.no_grad():
            return [losses(decoder, ids) for ids in texts.values()], mean([score(decoder, decoder.hidden(one.ids), one) for one in prompts])

    teacher, recall = measure()
    cells = [f"{first:.3f}, {rest:.3f}" for first, rest in teacher]
    print("| windows |", " | ".join(texts), "| recall |\n|---|" + "---|" * (len(texts) + 1))
    print("| none |", " | ".join(cells), f"| {recall['exact']:.2f} / {recall['tokens']:.2f} / {recall['nats']:.2f} |", flush=True)
    for decoder.window in options.window:
        decoder.set_windows(set(range(decoder.count)) - options.layers)
        found, recall = measure()
        cells = [f"{first:+.3f}, {rest:+.3f}" for first, rest in np.array(found) - teacher]
        row = f"| {decoder.window.kind}, {decoder.window.size} |"
        print(row, " | ".join(cells), f"| {recall['exact']:.2f} / {recall['tokens']:.2f} / {recall['nats']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
