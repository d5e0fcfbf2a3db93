"""Trains models with learned and random sketches of several sizes, and measures perplexity by torch and as served.

    experiments/run sketches RUNS [--quick] [--only PATTERN] [--tokens FILE.xz] [--evaluation FILE]

RUNS/NAME is the run folder of polysketch-train, RUNS/NAME.log its output, results/NAME.json what was measured. The same command
continues after a kill. Processes have the scheduling class of idle time (SCHED_IDLE), unless it is a quick run."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
import language

if __name__ == "__main__":
    language.main(__file__)
