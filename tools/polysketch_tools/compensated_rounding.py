"""4-bit rounding that a product's inputs feel least: GPTQ (Frantar et al., arXiv 2210.17323) with the groups of q4.

Rows of a matrix are rounded in order. The error of a row is compensated in the rows that are still to be rounded, so that
the squared error of the product over the sample's inputs, the trace of E^T H E with H = X^T X, stays small.
"""

import ml_dtypes
import numpy as np

from polysketch_tools import quantize

_DAMPING = 0.01  # of the mean of H's diagonal, added to the diagonal


def round_q4(
    weights: np.ndarray, moments: np.ndarray, *, recoverable: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the arrays of quantize.quantize("Q4", ...) for weights [in, out] and moments H [in, in].

    recoverable: a matrix of float16 can hold the rounded values, and quantize.quantize makes the same values of them again.
    """
    rows, cols = weights.shape
    groups = -(-rows // quantize.GROUP)
    left = weights.astype(np.float32)  # a copy, in which errors are compensated
    factor = _inverse_factor(moments)
    integers = np.zeros((groups, quantize.GROUP, cols), np.float32)
    scales = np.zeros((groups, cols), ml_dtypes.bfloat16)
    for group in range(groups):
        begin = group * quantize.GROUP
        end = min(begin + quantize.GROUP, rows)
        block = factor[begin:end, begin:end]
        scales[group] = _best_scales(left[begin:end], block, recoverable)
        rounded, errors = _round_group(left[begin:end], block, scales[group])
        integers[group, : end - begin] = rounded
        left[end:] -= factor[begin:end, end:].T @ errors
    return quantize.pack_q4(integers), scales


def _inverse_factor(moments: np.ndarray) -> np.ndarray:
    """Returns the upper triangular U with U^T U = H^-1, H damped."""
    damped = moments.astype(np.float64)
    diagonal = np.diag(damped).copy()
    # An input that is always zero has no say in the others.
    diagonal = np.where(diagonal > 0, diagonal + _DAMPING * diagonal.mean(), 1)
    np.fill_diagonal(damped, diagonal)
    return np.linalg.cholesky(np.linalg.inv(damped)).T.astype(np.float32)


def _best_scales(weights: np.ndarray, factor: np.ndarray, recoverable: bool) -> np.ndarray:
    """Returns for each column the candidate of quantize.CANDIDATES whose compensated error is least."""
    largest = np.take_along_axis(weights, np.abs(weights).argmax(axis=0)[None], axis=0)[0]
    best = np.zeros(len(largest), ml_dtypes.bfloat16)
    least = np.full(len(largest), np.inf)
    for c in quantize.CANDIDATES:
        candidate = (-largest / np.float32(c)).astype(ml_dtypes.bfloat16)
        if recoverable:  # 8 bits of a scale and 3 of an integer are a float16, unless it is subnormal
            candidate = candidate.astype(np.float16).astype(ml_dtypes.bfloat16)
        integers, errors = _round_group(weights, factor, candidate)
        error = np.square(errors).sum(axis=0)
        if recoverable:  # plain rounding finds a scale by its largest integer: -8, or 7 of either sign
            error[np.abs(integers).max(axis=0) < 7] = np.inf
        better = error < least
        least[better] = error[better]
        best[better] = candidate[better]
    return best


def _round_group(
    weights: np.ndarray, factor: np.ndarray, scales: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rounds the rows of one group in order. Returns the integers, and each row's error over its diagonal of `factor`."""
    left = weights.copy()
    integers, errors = np.empty_like(left), np.empty_like(left)
    wide = scales.astype(np.float32)
    inverse = np.zeros_like(wide)
    np.divide(np.float32(1), wide, out=inverse, where=wide != 0)
    for i in range(len(left)):
        integers[i] = np.clip(np.rint(left[i] * inverse), -8, 7)
        errors[i] = (left[i] - integers[i] * wide) / factor[i, i]
        left[i + 1 :] -= factor[i, i + 1 :, None] * errors[i]
    return integers, errors
