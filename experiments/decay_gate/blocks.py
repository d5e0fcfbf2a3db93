"""Means by depth of the losses of blocks of consecutive tokens, with standard errors."""

import math

BLOCK = 512
EDGES = (0, 4096, 16384, 65536, 131072, 196608, 393216)


def mean(values: list[float]) -> dict:
    """The mean, and its standard error if the values are independent."""
    average = sum(values) / len(values)
    variance = sum((x - average) ** 2 for x in values) / max(1, len(values) - 1)
    error = math.sqrt(variance / len(values)) if len(values) > 1 else None
    return {"mean": average, "standard_error": error}


def bounds(texts: list[dict]) -> list[tuple[int, int]]:
    """The buckets of depth that the texts reach."""
    depth = len(texts[0]["deep"]) * BLOCK
    return [(begin, end) for begin, end in zip(EDGES, EDGES[1:]) if end <= depth]


def values(texts: list[dict], column: str, begin: int, end: int) -> list[float]:
    """The blocks of all texts between two depths."""
    return [x for text in texts for x in text[column][begin // BLOCK : end // BLOCK]]


def buckets(texts: list[dict]) -> list[dict]:
    result = []
    for begin, end in bounds(texts):
        deep, fresh = (values(texts, column, begin, end) for column in ("deep", "fresh"))
        difference = mean([x - y for x, y in zip(deep, fresh)])
        result.append({"begin": begin, "end": end, "deep": mean(deep), "fresh": mean(fresh), "difference": difference})
    return result
