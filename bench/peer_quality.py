"""Perplexity and KL divergence of ours and of ik_llama.cpp's formats beside float32."""

import argparse
import dataclasses
import pathlib
import re
import subprocess
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROBE = ROOT / "build" / "cpu" / "bin" / "logits-probe"
ATTENTION = ["-fa", "on"]  # of the peer: its caches have 16 bits, in float32 weights too


@dataclasses.dataclass
class Base:
    """The file that llama-perplexity writes: tokens, and log-probabilities of the second half of each window.

    A log-probability is a 16-bit integer times a scale of at most 24 / 65535 plus the smallest one: within 1.9e-4, unless it
    is smaller than that of the likeliest token by 24 or more.
    """

    tokens: np.ndarray  # [windows, context]
    logs: np.ndarray  # [windows, rows, words]

    @classmethod
    def read(cls, path: pathlib.Path) -> "Base":
        with path.open("rb") as file:
            if file.read(8) != b"_logits_":
                raise SystemExit(f"{path}: expected a file of llama-perplexity --kl-divergence-base, found another one")
            context, vocab, windows = np.fromfile(file, np.int32, 3)
            tokens = np.fromfile(file, np.int32, context * windows).reshape(windows, context)
        words, rows = (vocab + 1) // 2 * 2 + 4, context - 1 - context // 2
        offset = 8 + 4 * 3 + tokens.nbytes
        return cls(tokens, np.memmap(path, np.uint16, "r", offset, (int(windows), int(rows), int(words))))

    @property
    def first(self) -> int:
        """The first row of a window that counts."""
        return self.tokens.shape[1] // 2

    def next_logs(self, window: int) -> np.ndarray:
        """The log-probabilities of the tokens that follow the rows of a window that count."""
        rows = self.logs[window]
        scales = np.ascontiguousarray(rows[:, :4]).view(np.float32).astype(np.float64)
        following = self.tokens[window, self.first + 1 :]
        return rows[np.arange(len(rows)), 4 + following] * scales[:, 0] + scales[:, 1]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits - logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def our_logs(model: pathlib.Path, isa: str, weights: str, base: Base, window: int) -> np.ndarray:
    """The log-probabilities of the rows of a window that count, [rows, vocabulary]."""
    tokens = base.tokens[window]
    out = subprocess.run(
        [PROBE, model, isa, weights, "256"], input=tokens.tobytes(), stdout=subprocess.PIPE, check=True
    ).stdout
    logits = np.frombuffer(out, np.float32).reshape(len(tokens), -1)
    return log_softmax(logits[base.first : -1].astype(np.float64))


def measure_ours(args: argparse.Namespace, base: Base) -> None:
    """Prints the rows of ours and the largest difference of float32 from the peer's."""
    models = {weights: (args.model, weights) for weights in args.weights}
    if args.calibrated:
        models["q4, calibrated"] = (args.calibrated, "q4")
    nats, divergence = dict.fromkeys(("f32", *models), 0.0), dict.fromkeys(models, 0.0)
    rows, furthest, mean = 0, 0.0, 0.0
    for window in range(len(base.tokens)):
        following = base.tokens[window, base.first + 1 :]
        exact = our_logs(args.model, args.isa, "f32", base, window)
        index = np.arange(len(exact))
        distance = np.abs(exact[index, following] - base.next_logs(window))
        furthest, mean = max(furthest, distance.max()), mean + distance.sum()
        nats["f32"] -= exact[index, following].sum()
        for name, (model, weights) in models.items():
            logs = our_logs(model, args.isa, weights, base, window)
            nats[name] -= logs[index, following].sum()
            divergence[name] += (np.exp(exact) * (exact - logs)).sum()
        rows += len(exact)
    print(f"log-probabilities of {rows} tokens in float32, ours beside the peer's: mean difference {mean / rows:.1e}, largest {furthest:.1e}")
    for name, sum_of_nats in nats.items():
        divergent = f"{divergence[name] / rows:.5f}" if name in divergence else ""
        print(f"| ours, {name} | {np.exp(sum_of_nats / rows):.4f} | {divergent} |", flush=True)


def existing(path: str) -> pathlib.Path:
    return pathlib.Path(path).resolve(strict=True)  # the peer runs in another folder, where it writes llama.log


def measure_peer(args: argparse.Namespace, base: pathlib.Path, model: pathlib.Path) -> None:
    command = [args.perplexity, "-m", model, "-c", str(args.context), "-b", str(args.context), "-t", str(args.threads)]
    command += [*ATTENTION, "--kl-divergence-base", base, "--kl-divergence"]
    out = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout
    found = [re.search(rf"{name} *: *([0-9.]+)", out) for name in (r"Mean PPL\(Q\)", r"Mean +KLD")]
    if None in found:
        raise SystemExit(f"{args.perplexity}: expected Mean PPL(Q) and Mean KLD, found:\n{out[-1000:]}")
    perplexity, divergence = (float(match[1]) for match in found)
    print(f"| ik_llama.cpp, {model.stem} ({model.stat().st_size:,} bytes) | {perplexity:.4f} | {divergence:.5f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=existing, required=True, help="our model folder, in float32")
    parser.add_argument("--calibrated", type=existing, help="a folder that tools/convert --hugging-face has made of --model")
    parser.add_argument("--gguf", type=existing, required=True, help="the same model as a GGUF file in float32 (bench/f32_gguf.py)")
    parser.add_argument("--peer-models", type=existing, nargs="*", default=[], help="GGUF files quantised from it")
    parser.add_argument("--perplexity", type=existing, required=True, help="llama-perplexity of ik_llama.cpp")
    parser.add_argument("--text", type=existing, required=True)
    parser.add_argument("--context", type=int, default=1024, help="tokens of a window, the second half of which counts")
    parser.add_argument("--windows", type=int, default=32)
    parser.add_argument("--weights", nargs="*", default=["bf16", "q8", "q4"], help="formats of ours")
    parser.add_argument("--isa", default="avx512vnni", help="instruction set of ours")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "base"
        command = [args.perplexity, "-m", args.gguf, "-f", args.text, "-c", args.context, "-b", args.context, "-t", args.threads]
        command += [*ATTENTION, "--chunks", args.windows, "--kl-divergence-base", path]
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder)
        base = Base.read(path)
        print(f"{base.tokens.size:,} tokens in {len(base.tokens)} windows; the second half of each counts")
        print("| weights | perplexity | KL divergence from float32, nats |\n|---|---|---|")
        measure_ours(args, base)
        for model in args.peer_models:
            measure_peer(args, path, model)


if __name__ == "__main__":
    main()
