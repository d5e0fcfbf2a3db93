"""Small versions of two tasks of RULER (arXiv 2404.06654), in held-out text: tracking of variables through assignments, and all
values of a key."""

import numpy as np

from polysketch_training.linearize.tasks import answered_line, asked, spread

HOPS = 2  # assignments of one variable to another in a chain
CHAINS = 2
VALUES = 4  # of a key
_VARIABLES = "alpha bravo delta gamma kappa lambda omega sigma theta zeta".split()
_KEYS = "Amelia Boris Clara Daniel Edith Felix Greta Hugo".split()


def _number(rng):
    return "".join(map(str, rng.integers(0, 10, 5)))


def _line(tokenizer, text):
    return tokenizer.encode(f"\n\n{text}\n\n", add_special_tokens=False)


def _variables(rng, tokenizer):
    """Facts of all chains in the order of assignments, questions, and the fact that each question is about."""
    names = rng.permutation(_VARIABLES)[: CHAINS * (HOPS + 1)].reshape(CHAINS, HOPS + 1)
    values = [_number(rng) for _ in range(CHAINS)]
    facts = [_line(tokenizer, f"VAR {chain[0]} = {value}.") for chain, value in zip(names, values)]
    facts += [_line(tokenizer, f"VAR {chain[hop]} = VAR {chain[hop - 1]}.") for hop in range(1, HOPS + 1) for chain in names]
    questions = [answered_line(tokenizer, f"The number that VAR {chain[-1]} stands for is", value, ".") for chain, value in zip(names, values)]
    return facts, questions, list(range(CHAINS))


def _values(rng, tokenizer):
    name, values = rng.choice(_KEYS), [_number(rng) for _ in range(VALUES)]
    facts = [_line(tokenizer, f"One of the magic numbers of {name} is {value}.") for value in values]
    said = [", ".join(values[:i]) + ", " if i else "" for i in range(VALUES)]
    questions = [answered_line(tokenizer, f"The magic numbers of {name} are {before}".strip(), value, ".") for before, value in zip(said, values)]
    return facts, questions, list(range(VALUES))


TASKS = {"variables": _variables, "values": _values}


def ruler_prompt(tokenizer, text, task, length, seed, prefix):
    """A Prompt (polysketch_training.linearize.tasks) of at most `length` tokens."""
    rng = np.random.default_rng([seed, length, 100 + list(TASKS).index(task)])
    facts, questions, about = TASKS[task](rng, tokenizer)
    used = len(prefix) + sum(map(len, facts)) + sum(len(ids) for ids, _, _ in questions)
    ids, places = spread(rng, text, facts, length - used, prefix)
    return asked(task, ids, [(question, places[fact]) for question, fact in zip(questions, about)])
