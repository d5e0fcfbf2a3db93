"""Attention with a decay gate by its definition, in float64: tests/data/decay_gate.

The authors' code has no gate, so nothing of it can be recorded. KIND.safetensors holds inputs (F32) [batch, heads, tokens,
width] of an attention function alone: query, key, value, in mixed query_near and key_near, and gate, the x W + b of each
token (width 1). log_decay_exact (F64) is log sigmoid(gate), log_decay (F32) its rounding, from which out (F64) is made:

    out_t = sum_s w[t,s] e^(G_t - G_s) v_s / (c + sum_s w[t,s] e^(G_t - G_s)), s <= t, G_t = sum of log_decay up to t

w[t,s] as docs/attention.md defines it, over all pairs and without a state. `block` is I32 [1].
"""

import pathlib

import numpy as np

from polysketch_tools import safetensors

_HEADS, _TOKENS, _WIDTH, _BLOCK = 2, 53, 8, 16  # three full blocks and a part
# mixed: learned_sketch_mixed, random_sketch_mixed; squared: the unmixed sketches; features: linear, performer.
FORMS = {"mixed": 1.0, "squared": 1.0, "features": np.float64(np.float32(1e-6))}  # and their c


def attend(form: str, rows: dict[str, np.ndarray]) -> np.ndarray:
    """Returns out of float64 rows, as the quadratic sum over all pairs."""
    t, s = np.arange(_TOKENS)[:, None], np.arange(_TOKENS)
    weights = rows["query"] @ rows["key"].swapaxes(-1, -2)
    if form != "features":
        weights = weights**2
    if form == "mixed":
        near = (rows["query_near"] @ rows["key_near"].swapaxes(-1, -2)) ** 4
        weights = np.where(t // _BLOCK == s // _BLOCK, near, weights)
    passed = np.cumsum(rows["log_decay"][..., 0], axis=-1)
    exponent = passed[..., :, None] - passed[..., None, :]
    weights = np.where(s <= t, weights * np.exp(np.where(s <= t, exponent, 0)), 0)
    return weights @ rows["value"] / (FORMS[form] + weights.sum(-1, keepdims=True))


def make_case(form: str, generator: np.random.Generator) -> dict[str, np.ndarray]:
    def normal(width: int, scale: float = 1.0) -> np.ndarray:
        values = generator.standard_normal((1, _HEADS, _TOKENS, width)) * scale
        return values.astype(np.float32)

    names = ("query", "key") + (("query_near", "key_near") if form == "mixed" else ())
    rows = {name: normal(_WIDTH, _WIDTH**-0.25) for name in names}
    if form == "features":
        rows = {name: np.abs(array) for name, array in rows.items()}
    rows["value"] = normal(_WIDTH)
    # One head that keeps most of a block, one that fades within a few tokens and forgets at once now and then.
    gate = normal(1) * np.float32(2) + np.array([5, 1], np.float32)[:, None, None]
    gate[:, 1, 10::17] = -15
    exact = -np.logaddexp(0, -gate.astype(np.float64))
    rows |= {"gate": gate, "log_decay": exact.astype(np.float32)}
    out = attend(form, {name: array.astype(np.float64) for name, array in rows.items()})
    return rows | {"log_decay_exact": exact, "out": out, "block": np.array([_BLOCK], np.int32)}


def make_decay_gate(out: pathlib.Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for seed, form in enumerate(FORMS):
        case = make_case(form, np.random.default_rng(seed))
        tensors = {name: case[name] for name in sorted(case)}
        safetensors.write(out / f"{form}.safetensors", tensors)
