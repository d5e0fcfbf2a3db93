"""Compares polysketch-bench with llama.cpp: see bench/peer."""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import time

import gguf
import llama_cpp
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCH = ROOT / "build" / "cpu" / "bin" / "polysketch-bench"
DECODE_TOKENS = 64


def hidden_size(width: int) -> int:
    return 8 * width // 3 // 8 * 8


def write_peer_model(path: pathlib.Path, config: dict, kind: gguf.GGMLQuantizationType) -> None:
    """Writes a llama model of the same shape as `config`, with random weights and matrices in `kind`."""
    width, layers, vocab = config["emb_dim"], config["num_layers"], config["vocab_size"]
    hidden, heads = hidden_size(width), config["num_heads"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(1 << 20)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("llama")
    special = ["<unk>", "<s>", "</s>"]
    writer.add_token_list(special + [f"t{i}" for i in range(3, vocab)])
    writer.add_token_scores([0.0] * vocab)
    writer.add_token_types([2, 3, 3] + [1] * (vocab - 3))
    rng = np.random.default_rng(0)

    def matrix(name: str, out: int, into: int) -> None:
        weights = rng.standard_normal((out, into), np.float32) * np.float32(into**-0.5)
        writer.add_tensor(name, gguf.quants.quantize(weights, kind), raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(width, np.float32))

    matrix("token_embd.weight", vocab, width)
    norm("output_norm.weight")
    for i in range(layers):
        norm(f"blk.{i}.attn_norm.weight")
        for part in ("q", "k", "v", "output"):
            matrix(f"blk.{i}.attn_{part}.weight", width, width)
        norm(f"blk.{i}.ffn_norm.weight")
        matrix(f"blk.{i}.ffn_gate.weight", hidden, width)
        matrix(f"blk.{i}.ffn_up.weight", hidden, width)
        matrix(f"blk.{i}.ffn_down.weight", width, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Peer:
    def __init__(self, path: pathlib.Path, context: int, threads: int):
        self._llama = llama_cpp.Llama(
            str(path),
            n_ctx=context + DECODE_TOKENS + 8,
            n_batch=512,
            n_threads=threads,
            n_threads_batch=threads,
            verbose=False,
        )
        self._tokens = np.random.default_rng(1).integers(3, 32000, context).tolist()

    def measure(self) -> tuple[float, float]:
        """Returns tokens a second of a prefill of the whole context, and of the decoding after it."""
        self._llama.reset()
        start = time.perf_counter()
        self._llama.eval(self._tokens)
        prefill = len(self._tokens) / (time.perf_counter() - start)
        start = time.perf_counter()
        for token in self._tokens[:DECODE_TOKENS]:
            self._llama.eval([token])
        return prefill, DECODE_TOKENS / (time.perf_counter() - start)


def measure_ours(args, context: int) -> tuple[float, float]:
    command = [BENCH, "--model", args.model, "--weights", args.weights, "--threads", args.threads]
    command += ["--prefill", context, "--decode", context, "--batches", "none", "--repeats", 1]
    out = subprocess.run([str(part) for part in [*command, "--json"]], check=True, stdout=-1).stdout
    rows = {row["stage"]: row["tokens_per_s"] for row in json.loads(out)["results"]}
    return rows["prefill"], rows["decode"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/peer", description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="our model folder")
    parser.add_argument("--weights", choices=("q8", "q4", "bf16"), default="q8")
    parser.add_argument("--contexts", default="512,4096,32768")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, help="JSON of every measurement")
    args = parser.parse_args()
    config = json.loads((args.model / "config.json").read_text())
    kinds = gguf.GGMLQuantizationType
    kind = {"q8": kinds.Q8_0, "q4": kinds.Q4_0, "bf16": kinds.BF16}[args.weights]
    peer_model = ROOT / ".deps" / "peer" / f"peer-{config['emb_dim']}-{kind.name}.gguf"
    if not peer_model.exists():
        write_peer_model(peer_model, config, kind)
    rows = []
    print(f"llama-cpp-python {llama_cpp.__version__}, {kind.name}; ours {args.weights}; by turns")
    for context in (int(part) for part in args.contexts.split(",")):
        peer = Peer(peer_model, context, args.threads)
        turns = [(measure_ours(args, context), peer.measure()) for _ in range(args.repeats)]
        for i, stage in enumerate(("prefill", "decode")):
            ours = statistics.median(turn[0][i] for turn in turns)
            theirs = statistics.median(turn[1][i] for turn in turns)
            rows.append(
                {"stage": stage, "context": context, "polysketch": ours, "llama_cpp": theirs}
            )
            print(
                f"{stage:8} {context:8} ours {ours:9.1f} llama.cpp {theirs:9.1f} tokens/s,"
                f" ratio {ours / theirs:6.2f}"
            )
            sys.stdout.flush()
    if args.out:
        args.out.write_text(json.dumps({"weights": args.weights, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
