"""Attention whose weights are squares of polynomials by its definition, in float64: tests/data/polynomial_square.

The authors' code has no such kind, so nothing of it can be recorded. degreeP.safetensors holds inputs (F32) of the
attention function alone: the normed query and key, and value, [batch, heads, tokens, width]; coefficients
[heads, P + 1], alpha [1] and beta [1]. From these out (F64) is made, over all pairs and without a state:

    out_t = sum_s w[t,s] v_s / (1 + sum_s w[t,s]), s <= t
    w[t,s] = P(x)^2, P(x) = sum_i a_i x^i, x = (q_t.k_s + alpha) / beta
"""

import pathlib

import numpy as np

from polysketch_tools import safetensors

DEGREES = (1, 2, 3, 8)
_HEADS, _TOKENS, _WIDTH = 2, 53, 8  # three blocks of 16 and a part
_ALPHA, _BETA = 0.75, 6.0


def attend(rows: dict[str, np.ndarray]) -> np.ndarray:
    """Returns out of float64 rows, as the quadratic sum over all pairs."""
    x = (rows["query"] @ rows["key"].swapaxes(-1, -2) + rows["alpha"]) / rows["beta"]
    of_head = rows["coefficients"][:, :, None, None]
    polynomial = sum(of_head[:, i] * x**i for i in range(of_head.shape[1]))
    weights = np.tril(polynomial**2)
    return weights @ rows["value"] / (1 + weights.sum(-1, keepdims=True))


def make_case(degree: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    shape = (1, _HEADS, _TOKENS, _WIDTH)
    rows = {name: generator.standard_normal(shape) for name in ("query", "key", "value")}
    # One head with the coefficients of 1 + x + ... + x^p, one with others.
    rows["coefficients"] = np.stack([np.ones(degree + 1), generator.standard_normal(degree + 1)])
    rows |= {"alpha": np.array([_ALPHA]), "beta": np.array([_BETA])}
    rows = {name: array.astype(np.float32) for name, array in rows.items()}
    return rows | {"out": attend({name: array.astype(np.float64) for name, array in rows.items()})}


def make_polynomial_square(out: pathlib.Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for degree in DEGREES:
        case = make_case(degree, np.random.default_rng(degree))
        tensors = {name: case[name] for name in sorted(case)}
        safetensors.write(out / f"degree{degree}.safetensors", tensors)
