"""Compares the log-probabilities of every next token of a text, ours in float32 beside llama.cpp's.

llama.cpp is PyPI's llama-cpp-python, which also tokenizes the text, with float32 weights and caches and without flash attention.
Exit status: 0 if no log-probability differs by more than --limit, else 1.
"""

import argparse
import pathlib
import subprocess

import llama_cpp
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROBE = ROOT / "build" / "cpu" / "bin" / "logits-probe"


def next_logs(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The log-probability of tokens[i + 1] in row i."""
    out = np.empty(len(tokens) - 1)
    for row, token in enumerate(tokens[1:]):
        x = logits[row].astype(np.float64)
        x -= x.max()
        out[row] = x[token] - np.log(np.exp(x).sum())
    return out


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/peer_logprobs.py", description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="our model folder")
    parser.add_argument("--gguf", type=pathlib.Path, required=True, help="the same model in float32 (bench/f32_gguf.py)")
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--isa", default="avx2", help="instruction set of ours")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--limit", type=float, default=1e-3)
    args = parser.parse_args()
    peer = llama_cpp.Llama(
        str(args.gguf), n_ctx=args.window, n_batch=512, n_threads=args.threads, n_threads_batch=args.threads,
        logits_all=True, flash_attn=False, type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, verbose=False,
    )
    text = args.text.read_bytes()[: 8 * args.window * args.windows]
    ids = np.array(peer.tokenize(text, add_bos=False), np.int32)
    if len(ids) < args.window * args.windows:
        raise SystemExit(f"{args.text}: expected {args.window * args.windows} tokens, found {len(ids)}")
    differences = []
    for first in range(0, args.window * args.windows, args.window):
        tokens = ids[first : first + args.window]
        peer.reset()
        peer.eval(tokens.tolist())
        theirs = next_logs(peer.scores[: len(tokens)], tokens)
        out = subprocess.run([PROBE, args.model, args.isa, "f32", "256"], input=tokens.tobytes(), stdout=-1, check=True).stdout
        ours = next_logs(np.frombuffer(out, np.float32).reshape(len(tokens), -1), tokens)
        differences.append(np.abs(ours - theirs))
        print(f"tokens {first} to {first + len(tokens) - 1}: perplexity {np.exp(-ours.mean()):.4f}, llama.cpp "
              f"{np.exp(-theirs.mean()):.4f}; largest difference {differences[-1].max():.1e}", flush=True)
    all_ = np.concatenate(differences)
    print(f"llama-cpp-python {llama_cpp.__version__}: {len(all_)} log-probabilities, mean difference {all_.mean():.1e}, "
          f"largest {all_.max():.1e}; limit {args.limit:.0e}")
    return int(not all_.max() <= args.limit)


if __name__ == "__main__":
    raise SystemExit(main())
