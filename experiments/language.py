"""Runs that train a language model on tokens and measure its perplexity by torch and as served: experiments/kinds and sketches."""

import argparse
import math
import pathlib
import tempfile

import configs
import numpy as np
import suite
import token_files
import torch
import training_log
from serving import Client, serving

from polysketch_training import train_command
from polysketch_training.model import PolysketchModel
from polysketch_training.server_tensors import load_folder

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOKENIZER = ROOT / "models/demo/tokenizer.model"
_TEXT = ROOT / "docs"  # of a quick run
CURVE_STEPS = 10  # of a point of the curve of losses
SAME_DIGITS = 5e-5  # relative difference of perplexities that agree in four digits


def main(script: str) -> None:
    """An experiment of this kind: what its plan lists."""
    suite.main(script, expand=expand, measure=measure, summary=summary, prepare=prepare, add_options=add_options)


def add_options(parser: argparse.ArgumentParser) -> None:
    shared = ROOT.parent / "shared"
    packed = shared / "training/train.bin.xz"
    parser.add_argument("--tokens", type=pathlib.Path, default=packed, help="training tokens: ids of the tokenizer of models/demo")
    parser.add_argument("--evaluation", type=pathlib.Path, default=shared / "data/eval.bin", help="unseen tokens")


def expand(plan: dict) -> dict[str, dict]:
    """The runs MODEL-LENGTH-SEED of a plan. `seeds` of a model lists those of a length that has others than 1."""
    runs = {}
    for model, part in plan["models"].items():
        for length, options in plan["lengths"].items():
            for seed in part.get("seeds", {}).get(length, [1]):
                runs[f"{model}-{length}-{seed}"] = {
                    "model": model,
                    "shape": plan["shape"],
                    "kind": part["kind"],
                    "length": int(length),
                    "options": plan["options"] | options,
                    "seed": seed,
                    "evaluated_tokens": plan["evaluated_tokens"],
                }
    return runs


def prepare(plan: dict, args: argparse.Namespace) -> None:
    """Puts the training tokens into the folder of the runs: those of --tokens, or in a quick run those of the documents."""
    tokens = training_tokens(args)
    if tokens.exists():
        return
    if args.quick:
        import sentencepiece

        processor = sentencepiece.SentencePieceProcessor(model_file=str(TOKENIZER))
        texts = [path.read_text() for path in sorted(_TEXT.glob("*.md"))]
        np.concatenate([[processor.bos_id(), *processor.encode(text)] for text in texts]).astype(np.uint16).tofile(tokens)
    else:
        token_files.unpack(args.tokens, tokens)


def training_tokens(args: argparse.Namespace) -> pathlib.Path:
    return args.runs / "train.bin"


def unseen_tokens(args: argparse.Namespace) -> np.ndarray:
    """The tokens of --evaluation, mapped; in a quick run those of the documents."""
    path = training_tokens(args) if args.quick else args.evaluation
    if not path.is_file():
        raise SystemExit(f"--evaluation: expected a file of token ids, found no {path}")
    return np.memmap(path, np.uint16, mode="r")


def measure(run: dict, folder: pathlib.Path, args: argparse.Namespace) -> dict:
    model = _train(run, folder, args)
    rows = evenly_spaced(unseen_tokens(args), run["evaluated_tokens"] // run["length"], run["length"])
    ours = torch_nats(load_folder(model), rows)
    with tempfile.TemporaryDirectory() as name, serving(args.bin, model, pathlib.Path(name), args.threads) as address:
        served = served_nats(Client(args.bin, address, pathlib.Path(name)), rows)
    curve = training_log.means(training_log.losses(folder), CURVE_STEPS)
    found = {"torch": _perplexity(ours), "served": _perplexity(served), "served_nats": [round(nats, 5) for nats in served]}
    return found | {"training_nats": curve, "training_nats_steps": CURVE_STEPS}


def _train(run: dict, folder: pathlib.Path, args: argparse.Namespace) -> pathlib.Path:
    """Returns the model folder, from an earlier process or trained now."""
    if (folder / "model").exists():
        return folder / "model"
    config = folder.with_suffix(".config.json")
    config.write_text(configs.config_of(run["shape"], run["kind"], context_length=run["length"]).to_json())
    options = {"--tokens": training_tokens(args), "--tokenizer": TOKENIZER, "--config": config, "--out": folder}
    options |= {"--sequences": "packed", "--length": run["length"], "--seed": run["seed"], "--threads": args.threads}
    options |= run["options"]
    train_command.command(["--cpu", *(str(word) for pair in options.items() for word in pair)])
    return folder / "model"


def evenly_spaced(ids: np.ndarray, rows: int, length: int) -> np.ndarray:
    """Returns rows [rows, length] of tokens, the first at their start and the last at their end."""
    if len(ids) < length:
        raise SystemExit(f"--evaluation: expected at least {length} tokens, found {len(ids)}")
    starts = [i * (len(ids) - length) // max(1, rows - 1) for i in range(rows)]
    return np.stack([ids[start : start + length] for start in starts]).astype(np.int64)


def torch_nats(model: PolysketchModel, rows: np.ndarray) -> list[float]:
    """Returns the mean loss of each row by the torch module, in float32."""
    with torch.no_grad():
        return [float(model(row[None, :-1], targets=row[None, 1:]).loss) for row in torch.from_numpy(rows)]


def served_nats(client: Client, rows: np.ndarray) -> list[float]:
    """The same by a server: each row is a text of its own."""
    return [-float(np.mean(client.score(row)["logprobs"])) for row in rows]


def _perplexity(nats: list[float]) -> dict:
    """nats: the mean of the rows; standard_error: of that mean, if rows are independent."""
    error = float(np.std(nats, ddof=1)) / math.sqrt(len(nats)) if len(nats) > 1 else None
    return {"perplexity": math.exp(np.mean(nats)), "nats": float(np.mean(nats)), "standard_error": error}


def equal(result: dict) -> bool:
    """Whether the two perplexities agree in four digits."""
    return abs(result["served"]["perplexity"] / result["torch"]["perplexity"] - 1) < SAME_DIGITS


def summary(result: dict) -> str:
    ours, served = (result[name]["perplexity"] for name in ("torch", "served"))
    return f"perplexity {served:.4f} served, {ours:.4f} by torch" + ("" if equal(result) else ", which DIFFER")
