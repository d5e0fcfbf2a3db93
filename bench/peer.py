"""Compares polysketch-bench with llama.cpp: see bench/peer."""

import argparse
import json
import os
import pathlib
import shlex
import statistics
import subprocess
import time

import batched_bench
import gguf
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


def random_peer_model(args: argparse.Namespace) -> pathlib.Path:
    """The file of the shape of --model in the peers' format of --weights, which is made once."""
    config = json.loads((args.model / "config.json").read_text())
    kinds = gguf.GGMLQuantizationType
    kind = {"q8": kinds.Q8_0, "q4": kinds.Q4_0, "bf16": kinds.BF16}[args.weights]
    path = ROOT / ".deps" / "peer" / f"peer-{config['emb_dim']}-{kind.name}.gguf"
    if not path.exists():
        write_peer_model(path, config, kind)
    return path


class Package:
    """llama.cpp of PyPI's llama-cpp-python, whose Llama has one sequence."""

    name = "llama.cpp"

    def __init__(self, path: pathlib.Path, threads: int):
        import llama_cpp  # takes ten minutes to build, and --llama needs none

        self._llama_cpp, self._path, self._threads = llama_cpp, path, threads
        self.version = f"llama-cpp-python {llama_cpp.__version__}"

    def measure(self, context: int, batches: list[int]) -> tuple[float, dict[int, float]]:
        llama = self._llama_cpp.Llama(
            str(self._path),
            n_ctx=context + DECODE_TOKENS + 8,
            n_batch=512,
            n_threads=self._threads,
            n_threads_batch=self._threads,
            verbose=False,
        )
        tokens = np.random.default_rng(1).integers(3, 32000, max(context, DECODE_TOKENS)).tolist()
        start = time.perf_counter()
        llama.eval(tokens[: max(context, 1)])
        prefill = max(context, 1) / (time.perf_counter() - start)
        start = time.perf_counter()
        for token in tokens[:DECODE_TOKENS]:
            llama.eval([token])
        return prefill, {1: DECODE_TOKENS / (time.perf_counter() - start)}


class Program:
    """A llama-batched-bench."""

    def __init__(self, name: str, program: pathlib.Path, options: str, path: pathlib.Path, args: argparse.Namespace):
        self.name, self.version = name, f"{name}: {program} {options}"
        self._program, self._options, self._path = program, shlex.split(options), path
        self._threads, self._shared_prompt = args.threads, not args.own_prompts

    def measure(self, context: int, batches: list[int]) -> tuple[float, dict[int, float]]:
        command = batched_bench.command(
            self._program, self._path, self._options, context, batches, DECODE_TOKENS, self._threads,
            self._shared_prompt,
        )
        return batched_bench.measure(command, batches)


class Ours:
    name = "polysketch"

    def __init__(self, args):
        self._command = [BENCH, "--model", args.model, "--weights", args.weights, "--threads", args.threads]
        self._command += ["--state-format", args.state_format, "--repeats", 1, "--json"]
        self._command += ["--decode-blocks", args.decode_blocks] + ["--own-caches"] * args.own_prompts
        isa = os.environ.get("POLYSKETCH_ISA")
        self.version = f"ours: {args.weights}, states {args.state_format}{isa and f', {isa}' or ''}"

    def measure(self, context: int, batches: list[int]) -> tuple[float, dict[int, float]]:
        more = ",".join(str(batch) for batch in batches if batch > 1) or "none"
        tokens = max(context, 1)
        command = [*self._command, "--prefill", tokens, "--decode", tokens, "--batches", more]
        out = subprocess.run([str(part) for part in command], check=True, stdout=-1).stdout
        rows = json.loads(out)["results"]
        speeds = {(row["stage"], row["batch"]): row["tokens_per_s"] for row in rows}
        return speeds["prefill", 1], {batch: speeds["decode", batch] for batch in batches}


def compare(programs: list, context: int, batches: list[int], repeats: int) -> list[dict]:
    """Measures by turns. Returns a row for the prefill and for decoding with each batch: medians by program."""
    turns = {program.name: [] for program in programs}
    for turn in range(repeats):
        for program in programs if turn % 2 == 0 else programs[::-1]:
            turns[program.name].append(program.measure(context, batches))
    rows = []
    if context > 0:
        row = {"stage": "prefill", "context": context, "batch": 1}
        rows.append(row | {name: statistics.median(t[0] for t in all_) for name, all_ in turns.items()})
    for batch in batches:
        row = {"stage": "decode", "context": context, "batch": batch}
        for name, all_ in turns.items():
            if speeds := [t[1][batch] for t in all_ if batch in t[1]]:
                row[name] = statistics.median(speeds)
        rows.append(row)
    return rows


def line(row: dict, names: list[str]) -> str:
    """A line of a Markdown table: tokens a second, and those of ours over each peer's."""
    cells = [row["stage"], f"{row['context']:,}", str(row["batch"])]
    cells += [f"{row[name]:.0f}" if name in row else "" for name in names]
    cells += [f"{row[names[0]] / row[name]:.2f}" if name in row else "" for name in names[1:]]
    return "| " + " | ".join(cells) + " |"


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/peer", description=__doc__)
    parser.add_argument("--model", type=pathlib.Path, required=True, help="our model folder")
    parser.add_argument("--weights", choices=("q8", "q4", "bf16"), default="q8")
    parser.add_argument("--state-format", default="auto", help="of ours")
    parser.add_argument("--contexts", default="0,512,4096,32768")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--decode-blocks", type=int, default=3, help="of ours, in a turn (default: %(default)s)")
    parser.add_argument("--peer-model", type=pathlib.Path, metavar="GGUF",
                        help="what the peers measure in place of a model with random weights: a file in their format of --weights")
    parser.add_argument("--llama", type=pathlib.Path, metavar="PATH",
                        help="llama-batched-bench of llama.cpp, or none; without it PyPI's package, for one sequence only")
    parser.add_argument("--llama-options", help="further options of it (default: -fa on, and without --own-prompts -kvu)")
    parser.add_argument("--ik", type=pathlib.Path, metavar="PATH",
                        help="llama-batched-bench of ik_llama.cpp, which is measured too")
    parser.add_argument("--ik-options", default="-fa 1 -rtr", help="further options of it (default: %(default)s)")
    parser.add_argument("--own-prompts", action="store_true",
                        help="the sequences of a batch have a prompt each; otherwise they share the cache of one, on both sides")
    parser.add_argument("--out", type=pathlib.Path, help="JSON of every row")
    args = parser.parse_args()
    if args.llama_options is None:  # one cache for all sequences is what shares a prompt, and is read by each
        args.llama_options = "-fa on" if args.own_prompts else "-fa on -kvu"
    return args


def main() -> None:
    args = read_arguments()
    peer_model = args.peer_model or random_peer_model(args)
    programs = [Ours(args)]
    if args.llama == pathlib.Path("none"):
        if not args.ik:
            raise SystemExit("bench/peer: expected --ik PATH with --llama none, found no peer")
    elif args.llama:
        programs.append(Program("llama.cpp", args.llama, args.llama_options, peer_model, args))
    else:
        programs.append(Package(peer_model, args.threads))
    if args.ik:
        programs.append(Program("ik_llama.cpp", args.ik, args.ik_options, peer_model, args))
    print(f"{'; '.join(program.version for program in programs)}; peers: {peer_model.name}; by turns")
    names = [program.name for program in programs]
    head = ["stage", "context", "batch", *names, *(f"ratio to {name}" for name in names[1:])]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|", flush=True)
    rows = []
    batches = [int(part) for part in args.batches.split(",")]
    for context in (int(part) for part in args.contexts.split(",")):
        for row in compare(programs, context, batches, args.repeats):
            rows.append(row)
            print(line(row, names), flush=True)
    if args.out:
        args.out.write_text(json.dumps({"weights": args.weights, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
