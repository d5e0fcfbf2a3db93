#!/usr/bin/env python3
"""Holds the hot kernels of the built cuda libraries to the limits of kernels.txt, by their machine code for sm_90a.

    kernel_budget.py FOLDER          FOLDER: of libpolysketch-cuda.so and libpolysketch-attention.so (build/cuda/bin). Exit
                                     status 1, with kernel, figure and limit, if a figure is above its limit; 77 if this
                                     machine cannot read machine code or the libraries have none for sm_90a
    kernel_budget.py FOLDER --print  also prints the figures
    kernel_budget.py FOLDER --lower  rewrites the limits that are above their figures

Figures are static: instructions as they stand in a loop, not as often as they run.
"""

import fnmatch
import os
import re
import sys

import sass

ARCHITECTURE = "sm_90a"
TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels.txt")
FIGURES = ("registers", "stack", "worst", "all", "divisions")
UNITS = {"registers": "registers a thread", "stack": "bytes of local memory a thread",
         "worst": "instructions per HMMA in the worst loop", "all": "instructions per HMMA in all loops",
         "divisions": "integer divisions in loops, or of 64 bits"}
SLACK = 0.05  # a figure that is lower than its limit by more than this share is an invitation to lower the limit
SKIPPED = 77
PRODUCTS = ("HMMA", "HGMMA", "IMMA")


def _operands(instruction):
    return [operand.split(".")[0].strip() for operand in instruction.operands.split(",")]


def _doubled(code, i, register):
    """Whether the last instruction before number `i` that writes a register doubles a number."""
    writer = next((code[j] for j in reversed(range(i)) if _operands(code[j])[0] == register), None)
    return writer is not None and (writer.name.startswith("IMAD.SHL") and "0x2" in _operands(writer) or
                                   re.match(r"U?SHF\.L", writer.name) is not None and "0x1" in _operands(writer))


def _divides_32(code, i):
    """A division by what is no constant multiplies the dividend by a reciprocal and takes the high half, with an addend of
    zero, unlike the step before it that refines the reciprocal. A division by a constant has the constant as an operand.
    Divisor::Quotient (kernels/cuda/divisor.cuh) multiplies twice the dividend by a reciprocal that the host has made."""
    operands = _operands(code[i])
    return (code[i].name.startswith("IMAD.HI") and operands[-1] == "RZ" and
            all(operand.startswith(("R", "UR", "P", "c[")) for operand in operands) and
            not any(_doubled(code, i, operand) for operand in operands[1:-1]))


def _divides_64(instruction):
    return instruction.name.startswith("CALL") and re.search("_(div|rem)_[su]64", instruction.operands) is not None


def divisions(kernel):
    return sum(_divides_32(kernel.code, i) for i in kernel.in_loops()) + sum(map(_divides_64, kernel.code))


def products(instruction):
    """Tensor core products in units of HMMA.16816, of a warp: HGMMA.64xNx16 of four warps is N / 8 of them in each,
    IMMA.16832 of bytes is two."""
    wide = re.match(r"HGMMA\.64x(\d+)x16\b", instruction.name)
    if wide:
        return int(wide.group(1)) // 8
    return 2 if instruction.name.startswith("IMMA.16832") else int(instruction.name.startswith("HMMA"))


def figures_of(kernel):
    loops = [(len(loop), sum(map(products, loop))) for loop in kernel.loops_with(PRODUCTS)]
    figures = {"registers": kernel.registers, "stack": kernel.stack, "divisions": divisions(kernel)}
    if loops:
        figures["worst"] = round(max(length / count for length, count in loops), 1)
        figures["all"] = round(sum(length for length, _ in loops) / sum(count for _, count in loops), 1)
    return figures


def read_table(path):
    """Rows: (line, library, {figure: limit}, pattern of kernels)."""
    rows = []
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            if not line.strip() or line.startswith("#"):
                continue
            words = line.split(None, len(FIGURES) + 1)
            limits = {name: float(word) for name, word in zip(FIGURES, words[1:]) if word != "-"}
            rows.append((number, words[0], limits, words[-1].strip()))
    return rows


def row_text(library, limits, pattern):
    columns = "".join(f"{limits[name]:>10g}" if name in limits else f"{'-':>10}" for name in FIGURES)
    return f"{library:<12}{columns}   {pattern}\n"


def measure(folder, rows):
    """The figures of each row: the largest of the kernels that it names; None if there is no such kernel."""
    kernels = {}
    for library in {library for _, library, _, _ in rows}:
        patterns = [pattern for _, of, _, pattern in rows if of == library]
        path = os.path.join(folder, f"libpolysketch-{library}.so")
        if not os.path.exists(path):
            raise sass.Missing(f"no {path}: build it first")
        kernels[library] = sass.kernels_of(path, ARCHITECTURE, lambda name, patterns=patterns: any(
            fnmatch.fnmatchcase(name, pattern) for pattern in patterns))
        if not kernels[library]:
            raise sass.Missing(f"{path} has none of these kernels for {ARCHITECTURE}")
    measured = []
    for _, library, _, pattern in rows:
        found = [figures_of(kernel) for kernel in kernels[library] if fnmatch.fnmatchcase(kernel.name, pattern)]
        measured.append({name: max(f[name] for f in found if name in f)
                         for name in FIGURES if any(name in f for f in found)} if found else None)
    return measured


def compare(rows, measured):
    """Returns what fails, and what can be lowered."""
    failures, hints = [], []
    for (_, library, limits, pattern), figures in zip(rows, measured):
        if figures is None:
            failures.append(f"{pattern}: no such kernel in libpolysketch-{library}.so: rename its row in {TABLE}")
            continue
        for name, figure in figures.items():
            limit = limits.get(name)
            if limit is None or figure > limit:
                failures.append(f"{pattern}: {figure:g} {UNITS[name]}, limit {'none' if limit is None else f'{limit:g}'}")
            elif figure < limit * (1 - SLACK):
                hints.append(f"{pattern}: {figure:g} {UNITS[name]}, limit {limit:g}: the limit can be lowered (--lower)")
    return failures, hints


def lower(path, rows, measured):
    with open(path, encoding="utf-8") as file:
        lines = file.readlines()
    for (number, library, limits, pattern), figures in zip(rows, measured):
        if figures is not None:
            lower_limits = {name: min(limit, figures[name]) for name, limit in limits.items() if name in figures}
            lines[number] = row_text(library, lower_limits, pattern)
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(lines)


def main(arguments):
    options = [argument for argument in arguments if argument.startswith("--")]
    if len(arguments) - len(options) != 1 or set(options) - {"--print", "--lower"}:
        print(__doc__, file=sys.stderr)
        return 2
    folder = next(argument for argument in arguments if not argument.startswith("--"))
    rows = read_table(TABLE)
    try:
        measured = measure(folder, rows)
    except sass.Missing as missing:
        print(f"skipped: {missing}")
        return SKIPPED
    if "--print" in options:
        print(f"{'library':<12}" + "".join(f"{name:>10}" for name in FIGURES) + "   kernel")
        for (_, library, _, pattern), figures in zip(rows, measured):
            print(row_text(library, figures or {}, pattern), end="")
    if "--lower" in options:
        lower(TABLE, rows, measured)
    failures, hints = compare(rows, measured)
    for line in hints + failures:
        print(line)
    print(f"{len(rows)} rows, {len(failures)} above their limits")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
