"""Plants a fact in a long text, asks for it at depths to 1,048,576 tokens, and measures whether a served model has kept it.

    experiments/run needle RUNS [--quick] [--only PATTERN] [--evaluation FILE]

Nothing is trained: plan.json names model folders. results/NAME.json is what was measured of one model, depth and seed. The same
command continues after a kill. Processes have the scheduling class of idle time (SCHED_IDLE), unless it is a quick run."""

import pathlib
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import language
import suite
from serving import Client, serving
from texts import make_texts


def expand(plan: dict) -> dict[str, dict]:
    """The runs MODEL-DEPTH-SEED of a plan, short texts first."""
    return {
        f"{name}-{depth}-{seed}": {"model": name, "folder": folder, "depth": int(depth), "seed": seed, "candidates": plan["candidates"]}
        for depth, seeds in plan["seeds_of_depths"].items()
        for name, folder in plan["models"].items()
        for seed in range(1, seeds + 1)
    }


def measure(run: dict, folder: pathlib.Path, args) -> dict:
    model = language.ROOT / run["folder"]
    texts = make_texts(model / "tokenizer.model", language.unseen_tokens(args), run["depth"], run["seed"], run["candidates"])
    with tempfile.TemporaryDirectory() as name, serving(args.bin, model, pathlib.Path(name), args.threads) as address:
        client = Client(args.bin, address, pathlib.Path(name))
        found, control = (candidate_scores(client, text, texts.candidates) for text in (texts.with_fact, texts.without_fact))
    gains = [with_fact - without for with_fact, without in zip(found, control)]
    others = [gain for i, gain in enumerate(gains) if i != texts.right]
    return {
        "gain": gains[texts.right] - sum(others) / len(others),
        "retrieved": gains[texts.right] > max(others),
        "right": texts.right,
        "with_fact": found,
        "without_fact": control,
    }


def candidate_scores(client: Client, text: list[int], candidates: list[list[int]]) -> list[float]:
    """Returns log p of each candidate after the text, which the server reads once, as a session."""
    session = client.run("session", "create").strip()
    client.run("session", "append", session, "--prompt-tokens", client.token_file(text))
    found = [client.score(candidate, "--session", session)["logprob_sum"] for candidate in candidates]
    client.run("session", "delete", session)
    return found


def summary(result: dict) -> str:
    return f"gain {result['gain']:+.3f} nats, {'retrieved' if result['retrieved'] else 'not retrieved'}"


if __name__ == "__main__":
    suite.main(
        __file__,
        expand=expand,
        measure=measure,
        summary=summary,
        prepare=lambda plan, args: language.prepare(plan, args) if args.quick else None,
        add_options=language.add_options,
    )
