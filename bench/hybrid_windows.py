"""What windows cost a pretrained transformer before training, by their size: bench/hybrid_windows.py --text GENRE=FILE... --layers LIST.

Prints a row for all layers full and one for each --window KIND:W with the layers of --layers full: of each text the nats a token up to
2,048 tokens and beyond, less those of the teacher; of recall prompts in the first text answers / tokens of answers / nats an answer.
"""

import argparse
import pathlib

import harness
import numpy as np
import torch
from hybrid_evidence import FIRST, numbers, pair

from polysketch_training.linearize.decoder import Decoder, load_tokenizer
from polysketch_training.linearize.samples import make_samples, mean, score
from polysketch_training.linearize.scores import text_loss
from polysketch_training.linearize.texts import prefix_of
from polysketch_training.linearize.windows import Window

TOKENS = 4096
TEXT, FILLER = slice(20_000, 60_000), slice(60_000, 150_000)  # characters of a file: its sample, and what prompts are made of


def window(text):
    kind, _, size = text.partition(":")
    return Window(int(size), kind, 4)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=harness.ROOT / "models/smollm2")
    parser.add_argument("--text", type=pair, action="append", required=True, metavar="GENRE=FILE")
    parser.add_argument("--layers", type=numbers, required=True, metavar="LIST")
    parser.add_argument("--window", type=window, action="append", required=True, metavar="KIND:W", help="blocks or sliding, and tokens")
    parser.add_argument("--prompts", type=int, default=6, help="of up to eight facts (default 6)")
    return parser.parse_args()


def losses(decoder, ids):
    """Nats a token up to FIRST tokens, and beyond."""
    hidden = decoder.hidden(ids)
    return text_loss(decoder, hidden, ids[: FIRST + 1]), text_loss(decoder, hidden[FIRST:], ids[FIRST:])


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

    @torch.no_grad()
    def row(name, teacher, sign):
        """Prints the row of the layers that have windows now, and returns its losses [texts, 2]."""
        found = np.array([losses(decoder, ids) for ids in texts.values()])
        recall = mean([score(decoder, decoder.hidden(one.ids), one) for one in prompts])
        cells = [f"{first:{sign}.3f}, {rest:{sign}.3f}" for first, rest in found - teacher]
        print(f"| {name} | {' | '.join(cells)} | {recall['exact']:.2f} / {recall['tokens']:.2f} / {recall['nats']:.2f} |", flush=True)
        return found

    print("| windows |", " | ".join(texts), "| recall |\n|---|" + "---|" * (len(texts) + 1))
    teacher = row("none", 0.0, "")
    for decoder.window in options.window:
        decoder.set_windows(set(range(decoder.count)) - set(options.layers))
        row(f"{decoder.window.kind}, {decoder.window.size}", teacher, "+")


if __name__ == "__main__":
    main()
