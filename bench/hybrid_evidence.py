"""Measures linearized models and controls beside their teacher, in the same server and weights format: loss by genre and depth,
recall by form and distance, two tasks of RULER, instructions followed in a chat, bytes of a state, prefill and decode by context.
Writes OUT/results.json, OUT/results.md and, with more than the teacher, the picture OUT/results.svg. The same command continues: what
is in results.json is not measured again."""

import argparse
import hashlib
import itertools
import json
import math
import pathlib
import statistics
import subprocess

import harness
import hybrid_instructions
import hybrid_picture
import hybrid_ruler
import numpy as np
from hybrid_picture import BLOCK

from polysketch_training.linearize.decoder import load_tokenizer
from polysketch_training.linearize.tasks import FORMS, prompt
from polysketch_training.linearize.texts import prefix_of

FIRST = 2048  # tokens of a window that are the shallow ones
DEPTHS = (0, FIRST, 8192, 16384, 32768, 65536)  # a row of the table is what lies between two
GIB = 1 << 30
PRODUCTS = ("hybrid", "polysketch")  # of scripts/get-model


def pair(text):
    name, _, value = text.partition("=")
    if not value:
        raise argparse.ArgumentTypeError(f"expected NAME=PATH, found {text!r}")
    return name, pathlib.Path(value)


def numbers(text):
    return [int(part) for part in text.split(",")]


def parse():
    parser = argparse.ArgumentParser(prog="bench/hybrid", description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path, default=harness.ROOT / "build/cpu/bin", help="folder of the programs")
    parser.add_argument("--teacher", type=pathlib.Path, default=harness.ROOT / "models/smollm2")
    parser.add_argument("--model", type=pair, action="append", metavar="NAME=FOLDER",
                        help="default hybrid=models/smollm2-hybrid and polysketch=models/smollm2-polysketch; repeatable")
    parser.add_argument("--text", type=pair, action="append", required=True, metavar="GENRE=FILE",
                        help="text that training did not see; recall prompts are made of the first; repeatable")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FOLDER")
    parser.add_argument("--stages", default="loss,recall,instructions,speed", metavar="LIST")
    parser.add_argument("--weights", default="bf16", help="of all but speed (default bf16)")
    parser.add_argument("--windows", type=int, default=2, help="of each genre (default 2)")
    parser.add_argument("--window", type=int, default=8192, help="tokens of a window of text (default 8192)")
    parser.add_argument("--recall", type=numbers, default=[1024, 4096], metavar="N,...", help="tokens of prompts (default 1024,4096)")
    parser.add_argument("--prompts", type=int, default=4, help="of each form and length, of up to eight questions (default 4)")
    parser.add_argument("--contexts", type=numbers, default=[512, 2048, 8192, 32768], metavar="N,...",
                        help="of prefill and decode (default 512,2048,8192,32768)")
    parser.add_argument("--decode-contexts", type=numbers, default=[131072], metavar="N,...",
                        help="of decode alone, from states of random values (default 131072)")
    parser.add_argument("--speed-models", metavar="NAME,...", help="whose prefill and decode are measured (default all)")
    parser.add_argument("--speed-weights", default="q8", help="of prefill and decode (default q8)")
    parser.add_argument("--batch", type=int, default=8, help="of decode, beside one sequence (default 8)")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    products = [(name, harness.ROOT / f"models/smollm2-{name}") for name in PRODUCTS]
    options.model = dict([("teacher", options.teacher), *(options.model or products)])
    options.text = dict(options.text)
    options.speed_models = options.speed_models.split(",") if options.speed_models else list(options.model)
    if unknown := set(options.speed_models) - set(options.model):
        parser.error(f"--speed-models: expected some of {', '.join(options.model)}, found {', '.join(sorted(unknown))}")
    return options


class Results:
    """Measurements by stage, model and name, in a file."""

    def __init__(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "results.json"
        known = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.all = {stage: known.get(stage, {}) for stage in ("about", "loss", "recall", "instructions", "speed")}

    def claim(self, what, found):
        """Texts or models by name: what the folder was measured with goes on with it."""
        known = self.all["about"].setdefault(what, {})
        for name, value in found.items():
            if known.setdefault(name, value) != value:
                raise SystemExit(f"{self._path}: was measured with {what} {name} {known[name]}, found {value}: another --out")

    def measure(self, stage, model, name, function):
        found = self.all[stage].setdefault(model, {})
        if name not in found:
            found[name] = function()
            self.save()
            print(stage, model, name, {key: value for key, value in found[name].items() if not isinstance(value, list)}, flush=True)

    def save(self):
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.all, indent=1) + "\n")
        temporary.replace(self._path)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def score(server, ids):
    """Nats of ids[1:], and whether each is the likeliest token."""
    result = server.call("score", "--prompt-tokens=-", stdin=" ".join(map(str, ids)))
    return -np.array(result["logprobs"]), np.array(result["greedy"])


def losses(server, ids):
    """Means of blocks of the depths below and from FIRST on."""
    nats, _ = score(server, ids)

    def blocks(part):
        return [float(part[at : at + BLOCK].mean()) for at in range(0, len(part), BLOCK)]

    return {"first": blocks(nats[: FIRST - 1]), "rest": blocks(nats[FIRST - 1 :])}


def answers(server, made):
    """Nats, tokens, likeliest tokens and distance of each answer of a prompt."""
    nats, greedy = score(server, made.ids.tolist())
    rows = [(begin - 1, end - 1, distance) for begin, end, distance in made.answers]  # no value of the first token
    return {"answers": [[float(nats[a:b].sum()), b - a, int(greedy[a:b].sum()), distance] for a, b, distance in rows]}


def texts_of(options, tokenizer):
    found = {}
    for genre, path in options.text.items():
        ids = np.array(tokenizer.encode(path.read_text(encoding="utf-8"), add_special_tokens=False), np.int32)
        if len(ids) < options.windows * options.window:
            raise SystemExit(f"{path}: expected {options.windows * options.window} tokens, found {len(ids)}")
        found[genre] = ids
    return found


def qualities(options, results):
    tokenizer = load_tokenizer(options.teacher)
    prefix, texts = prefix_of(tokenizer), texts_of(options, tokenizer)
    filler = next(iter(texts.values()))
    for model, folder in options.model.items():
        server_options = argparse.Namespace(bin=options.bin, model=folder, server_flag=[])
        with harness.Server(server_options, f"--weights={options.weights}", f"--threads={options.threads}") as server:
            if "loss" in options.stages:
                room = options.window - len(prefix)
                for genre, ids in texts.items():
                    for i in range(options.windows):
                        at = (len(ids) - room) * i // max(options.windows - 1, 1)
                        window = [*prefix, *ids[at : at + room].tolist()]
                        results.measure("loss", model, f"{genre} {i}", lambda window=window: losses(server, window))
            if "recall" in options.stages:
                kinds = dict.fromkeys(FORMS, prompt) | dict.fromkeys(hybrid_ruler.TASKS, hybrid_ruler.ruler_prompt)
                for length, kind, i in itertools.product(options.recall, kinds, range(options.prompts)):
                    made = kinds[kind](tokenizer, filler, kind, length, 7000 + i, prefix)
                    results.measure("recall", model, f"{length} {kind} {i}", lambda made=made: answers(server, made))
            if "instructions" in options.stages:
                for name in hybrid_instructions.INSTRUCTIONS:
                    results.measure("instructions", model, name, lambda name=name: hybrid_instructions.follow(server, name))


def speeds(options, results):
    """The models by turns at each context."""
    both = ["--stages", "prefill,decode", "--batches", options.batch]
    decode = ["--stages", "decode", "--batches", "none", "--random-states"]
    for context, stages in [(context, both) for context in options.contexts] + [(context, decode) for context in options.decode_contexts]:
        for model in options.speed_models:
            folder = options.model[model]
            command = [options.bin / "polysketch-bench", "--model", folder, "--weights", options.speed_weights, "--threads", options.threads,
                       *stages, "--prefill", context, "--decode", context, "--repeats", 1, "--own-caches", "--json"]

            def run(command=command):
                environment = harness.environment(options.bin)
                out = subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE, env=environment).stdout
                rows = json.loads(out)["results"]
                kept = {f"{row['stage']} {row['batch']}": row["tokens_per_s"] for row in rows}
                decode = next(row for row in rows if row["stage"] == "decode")
                return kept | {name: decode[name] for name in ("state_bytes", "weights", "state", "threads")}

            results.measure("speed", model, str(context), run)


def table(head, rows):
    return "\n".join(["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]) + "\n"


def loss_table(found):
    """Nats a token of the teacher; of the others the difference, with the standard error of differences of blocks."""
    models, rows = [name for name in found if name != "teacher"], []
    genres = list(dict.fromkeys(name.rsplit(" ", 1)[0] for name in found["teacher"]))
    for low, high in itertools.pairwise(depth // BLOCK for depth in DEPTHS):
        for genre in genres:
            windows = {model: [value for name, value in values.items() if name.rsplit(" ", 1)[0] == genre] for model, values in found.items()}
            blocks = {model: np.array([x for v in values for x in (v["first"] + v["rest"])[low:high]]) for model, values in windows.items()}
            if len(blocks["teacher"]) == 0:
                continue
            row = [genre, f"{low * BLOCK:,} to {high * BLOCK:,}", f"{blocks['teacher'].mean():.3f}"]
            for model in models:
                lost = blocks[model] - blocks["teacher"]
                row.append(f"{lost.mean():+.4f} +- {lost.std(ddof=1) / math.sqrt(len(lost)):.4f}")
            rows.append(row)
    return table(["genre", "tokens before", "teacher", *models], rows)


def recall_rows(values, length, kind):
    return [one for name, value in values.items() if name.startswith(f"{length} {kind} ") for one in value["answers"]]


def recall_table(found):
    rows = []
    for length, kind in dict.fromkeys(tuple(name.split()[:2]) for name in found["teacher"]):
        row = [f"{int(length):,}", kind, str(len(recall_rows(found["teacher"], length, kind)))]
        for values in found.values():
            own = recall_rows(values, length, kind)
            exact = statistics.mean(right == tokens for _, tokens, right, _ in own)
            tokens = sum(right for _, _, right, _ in own) / sum(count for _, count, _, _ in own)
            row.append(f"{exact:.2f} / {tokens:.2f} / {statistics.mean(nats for nats, *_ in own):.2f}")
        rows.append(row)
    return table(["tokens", "form", "answers", *found], rows)


def distance_table(found):
    """Answers by the share of the prompt between fact and question."""
    rows = []
    for length in dict.fromkeys(name.split()[0] for name in found["teacher"]):
        for low in (0.0, 0.25, 0.5, 0.75):
            row = [f"{int(length):,}", f"{low:.0%} to {low + 0.25:.0%}"]
            for values in found.values():
                own = [one for kind in FORMS for one in recall_rows(values, length, kind) if low <= one[3] / int(length) < low + 0.25]
                exact = statistics.mean(right == tokens for _, tokens, right, _ in own) if own else math.nan
                row.append(f"{exact:.2f} of {len(own)}")
            rows.append(row)
    return table(["tokens", "distance", *found], rows)


def instruction_table(found):
    def share(rows):
        return f"{sum(row['followed'] for row in rows)} of {sum(row['asked'] for row in rows)}"

    rows = [[name, *(share([values[name]]) for values in found.values())] for name in found["teacher"]]
    return table(["instruction", *found], [*rows, ["all", *(share(values.values()) for values in found.values())]])


def speed_table(found):
    rows, names = [], []
    for context in sorted({context for values in found.values() for context in values}, key=int):
        teacher = found.get("teacher", {}).get(context)
        for model, values in found.items():
            if context not in values:
                continue
            own = values[context]
            names = names or [name for name in own if name.startswith(("prefill", "decode"))]

            def speed(name, own=own, teacher=teacher):
                if name not in own:
                    return ""
                return f"{own[name]:,.0f}" + (f" ({own[name] / teacher[name]:.2f})" if teacher else "")

            speeds = [speed(name) for name in names]
            rows.append([f"{int(context):,}", model, *speeds, f"{own['state_bytes']:,}", f"{GIB // own['state_bytes']:,}"])
    batches = [name.replace("prefill 1", "prefill").replace("decode ", "decode, batch ") for name in names]
    return table(["context", "model", *(f"{name}, tokens/s" for name in batches), "bytes of a state", "states in 1 GiB"], rows)


def report(results):
    made = []
    for stage, title, tables in (
        ("loss", "Loss, nats a token; others less the teacher, +- the standard error over blocks of 512 tokens", [loss_table]),
        ("recall", "Recall: answers / tokens of answers / nats an answer", [recall_table, distance_table]),
        ("instructions", "Instructions: answers that follow", [instruction_table]),
        ("speed", "Speed, in parentheses the share of the teacher's", [speed_table]),
    ):
        if results[stage]:
            made += [f"{title}:\n", *(make(results[stage]) for make in tables)]
    return "\n".join(made)


def main():
    options = parse()
    results = Results(options.out)
    results.claim("texts", {genre: [path.name, sha256(path)] for genre, path in options.text.items()})
    results.claim("models", {name: sha256(path / "SHA256SUMS") for name, path in options.model.items()})
    results.claim("weights", {"loss and recall": options.weights})
    if {"loss", "recall", "instructions"} & set(options.stages.split(",")):
        qualities(options, results)
    if "speed" in options.stages:
        speeds(options, results)
    results.save()
    text = report(results.all)
    (options.out / "results.md").write_text(text)
    if linearized := [name for name in options.model if name != "teacher"]:
        hybrid_picture.draw(results.all, linearized).write(options.out / "results.svg")
    print(text)


if __name__ == "__main__":
    main()
