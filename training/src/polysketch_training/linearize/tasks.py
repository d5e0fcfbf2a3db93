"""Recall: facts that lie in a text, and questions about them after it. Prompts of evaluation have other forms, names and words than
training."""

import dataclasses

import numpy as np

from polysketch_tools.errors import ToolError

_QUESTION_SHARE = 2  # facts and questions take at most 1 / 2 of a prompt
_FACTS = (8, 4, 2, 1)  # of a prompt: the first number that fits

_TRAIN_NAMES = (
    "Alan Beth Carl Dora Evan Fay Gus Hana Ivan June Kurt Lena Milo Nora Otto Paula Quinn Rosa Sven Tara apple river stone cloud"
    " silver tiger garden winter lamp ocean"
).split()
_TRAIN_WORDS = (
    "apple river stone cloud silver tiger garden winter lamp ocean copper falcon marble forest candle bridge violin desert harbor"
    " meadow"
).split()
_TRAIN_FORMS = (
    "The password for {name} is {value}.",
    "{name} has ticket number {value}.",
    "{name} = {value}",
    "Note: {name} lives at house {value}.",
    "{name}: {value}",
    "The value stored under {name} was {value}.",
)

_NAMES = "Amelia Boris Clara Daniel Edith Felix Greta Hugo Irene Jonas Klara Leo Marta Nina Oskar Petra".split()
_WORDS = (
    "anchor basket carpet dragon engine feather guitar hammer island jacket kettle ladder mirror needle orange pillow ribbon saddle"
    " temple umbrella velvet wagon yellow zipper"
).split()
_OTHERS = "Adrian Bella Conrad Diana Emil Flora Gustav Helen Isaac Julia Konrad Laura Martin Olga Peter Sophie".split()

# Kind of a held-out prompt -> text before the answer, after it, and the words of an answer.
FORMS = {
    "codes": ("The secret code of {name} is", ".", None),
    "words": ("What {name} keeps in the drawer is the", ".", _WORDS),
    "names": ("The first visitor of {name} was called", ".", _OTHERS),
}


@dataclasses.dataclass
class Prompt:
    kind: str
    ids: np.ndarray  # int32
    answers: list[tuple[int, int, int]]  # begin and end in ids, and tokens between the fact and its question


def _digits(rng: np.random.Generator, least: int, most: int) -> str:
    return "".join(map(str, rng.integers(0, 10, int(rng.integers(least, most + 1)))))


def answered_line(tokenizer, before: str, answer: str, after: str) -> tuple[list[int], int, int]:
    """The ids of a line, tokenized as a whole, and which of them spell the answer."""
    text = f"\n\n{before} {answer}{after}\n\n"
    begin = len(f"\n\n{before} ")
    end = begin + len(answer)
    found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    inside = [i for i, (a, b) in enumerate(found["offset_mapping"]) if a < end and b > begin]
    if not inside:
        raise ToolError(f"expected a tokenizer that tells where in a text a token lies, found none of {answer!r}")
    return found["input_ids"], inside[0], inside[-1] + 1


def prompt(tokenizer, text: np.ndarray, kind: str, length: int, seed: int, prefix: list[int]) -> Prompt:
    """A held-out prompt of exactly `length` tokens: text with facts at even distances, then a question about each."""
    before, after, words = FORMS[kind]
    for count in _FACTS:
        rng = np.random.default_rng([seed, length, list(FORMS).index(kind)])
        names = rng.permutation(_NAMES)[:count]
        answers = [_digits(rng, 5, 5) if words is None else str(rng.choice(words)) for _ in names]
        lines = [answered_line(tokenizer, before.format(name=name), answer, after) for name, answer in zip(names, answers)]
        used = 2 * sum(len(ids) for ids, _, _ in lines) + len(prefix)
        if used * _QUESTION_SHARE <= length:
            break
    else:
        raise ToolError(f"expected room for a fact and a question in half of {length} tokens, found that they take {used}; longer samples")
    ids, places = spread(rng, text, [line for line, _, _ in lines], length - used, prefix)
    return asked(kind, ids, [(lines[i], places[i]) for i in rng.permutation(count)])


def spread(rng: np.random.Generator, text: np.ndarray, facts: list[list[int]], filler: int, prefix: list[int]) -> tuple[list[int], list[int]]:
    """`filler` tokens in a row of the text with the facts at even distances, the last at the end; and where each fact begins."""
    start = int(rng.integers(0, len(text) - filler))
    ids, places = list(prefix), []
    for i, fact in enumerate(facts):
        ids += text[start + filler * i // len(facts) : start + filler * (i + 1) // len(facts)].tolist()
        places.append(len(ids))
        ids += fact
    return ids, places


def asked(kind: str, ids: list[int], questions: list[tuple[tuple[list[int], int, int], int]]) -> Prompt:
    """The prompt of `ids` and the questions after them: of each its line (answered_line) and where its fact begins."""
    ids, answers = list(ids), []
    for (line, begin, end), place in questions:
        answers.append((len(ids) + begin, len(ids) + end, len(ids) - place))
        ids += line
    return Prompt(kind, np.array(ids, np.int32), answers)


def training_sequence(rng: np.random.Generator, tokenizer, text: np.ndarray, length: int, share: float, prefix: list[int]) -> np.ndarray:
    """Text of `length` tokens; with probability `share` a recall task is in it: passages that return, or facts and questions."""
    start = int(rng.integers(0, len(text) - length))
    ids = text[start : start + length].copy()
    draw = rng.random()
    if draw < share / 2:
        _repeat_passages(rng, ids)
    elif draw < share:
        _ask(rng, tokenizer, ids)
    ids[: len(prefix)] = prefix
    return ids


def _repeat_passages(rng: np.random.Generator, ids: np.ndarray) -> None:
    n = len(ids)
    for _ in range(int(rng.integers(1, 3))):
        size = int(rng.integers(n // 16 + 1, n // 4 + 1))
        first = int(rng.integers(0, n - 2 * size + 1))
        again = int(rng.integers(first + size, n - size + 1))
        ids[again : again + size] = ids[first : first + size]


def _ask(rng: np.random.Generator, tokenizer, ids: np.ndarray) -> None:
    form = _TRAIN_FORMS[int(rng.integers(len(_TRAIN_FORMS)))]
    lines, used = [], 0
    for name in rng.permutation(_TRAIN_NAMES)[: int(rng.integers(4, 15))]:
        value = _digits(rng, 3, 6) if rng.random() < 0.7 else " ".join(rng.choice(_TRAIN_WORDS, 2))
        line = tokenizer.encode("\n" + form.format(name=name, value=value) + "\n", add_special_tokens=False)
        if (used + 2 * len(line)) * _QUESTION_SHARE > len(ids):
            break
        used += 2 * len(line)
        lines.append(line)
    questions = [token for i in rng.permutation(len(lines)) for token in lines[i]]
    end = len(ids) - len(questions)
    for i, line in enumerate(lines):  # each in a part of its own
        low, high = end * i // len(lines), end * (i + 1) // len(lines) - len(line)
        at = int(rng.integers(low, high + 1))
        ids[at : at + len(line)] = line
    if questions:
        ids[end:] = questions
