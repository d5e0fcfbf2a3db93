"""Runs llama-batched-bench, which llama.cpp and ik_llama.cpp build, and reads the table that it prints."""

import pathlib
import subprocess
import tempfile

_STEP_TOKENS = 512  # of a prefill step, as ours


def command(
    program: pathlib.Path, model: pathlib.Path, options: list[str], context: int, batches: list[int],
    decode_tokens: int, threads: int, shared_prompt: bool = True,
) -> list[str]:
    """The command line that measures a prefill of `context` tokens and decoding after it, for each batch.

    With `shared_prompt` the sequences of a batch have the prompt in common, whose keys and values are stored and read once: that
    costs the program least. Otherwise each has a prompt of its own. A prompt has at least one token.
    """
    prompt = max(context, 1)
    cells = prompt * (1 if shared_prompt else max(batches)) + max(batches) * decode_tokens + 16
    program, model = (pathlib.Path(path).resolve() for path in (program, model))  # `measure` runs it in another folder
    result = [program, "-m", model, "-c", cells, "-b", 2048, "-ub", _STEP_TOKENS, "-t", threads, "-tb", threads]
    result += ["-npp", prompt, "-ntg", decode_tokens, "-npl", ",".join(map(str, batches))]
    result += [*(["-pps"] if shared_prompt else []), *options]
    return [str(part) for part in result]


def parse(text: str) -> list[dict[str, float]]:
    """The rows of the table, by the names of its columns. Text around the table is skipped."""
    rows, names = [], None
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.strip().startswith("|"):
            continue
        if "S_PP t/s" in cells and "S_TG t/s" in cells:
            names = cells
        elif names is not None and not set(line) <= set("|-: "):
            if len(cells) != len(names):
                raise ValueError(f"expected {len(names)} columns, found: {line}")
            rows.append({name: float(cell) for name, cell in zip(names, cells)})
    return rows


def measure(arguments: list[str], batches: list[int]) -> tuple[float, dict[int, float]]:
    """Runs a command. Returns tokens a second of the prefill, and of decoding by batch."""
    with tempfile.TemporaryDirectory() as folder:  # ik_llama.cpp writes llama.log where it runs
        done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
    rows = {int(row["B"]): row for row in parse(done.stdout)} if done.returncode == 0 else {}
    if missing := [batch for batch in batches if batch not in rows]:
        raise SystemExit(
            f"{arguments[0]}: status {done.returncode}, no rows for batches {missing}; its last lines:\n"
            + "\n".join(done.stdout.splitlines()[-10:])
        )
    return rows[batches[0]]["S_PP t/s"], {batch: rows[batch]["S_TG t/s"] for batch in batches}
