"""Random matrices: polynomial sketches and Performer features, sampled with numpy.

(The sketches of the authors' checkpoints come from JAX's generator instead: see convert.py.)
"""

import numpy as np

from polysketch_tools.errors import ToolError


def sketch_scale(degree: int, r: int) -> float:
    """Returns the factor of every entry of a sketch's matrices. The forward pass multiplies by no further factor.

    Degree 2: the authors' code divides each of its two matrices by sqrt(r). Higher degrees: one factor 1/sqrt(r) for each
    product of two, that is r^(-1/4) for each of its matrices, so that E[(f(x).f(y))^2] estimates (x.y)^(2 degree).
    """
    return r**-0.5 if degree == 2 else r**-0.25


def draw_level(
    generator: np.random.Generator, kind: str, degree: int, shape: tuple[int, int, int]
) -> np.ndarray:
    """Returns one level of a sketch of `degree`: `shape` = [matrices, in, r] (docs/model-format.md)."""
    draw = {"gaussian": _gaussian, "srht": _srht}[kind]
    return draw(generator, shape) * np.float32(sketch_scale(degree, shape[2]))


def _gaussian(generator: np.random.Generator, shape) -> np.ndarray:
    return generator.standard_normal(shape, np.float32)


def _srht(generator: np.random.Generator, shape) -> np.ndarray:
    """Subsampled randomised Hadamard transforms: diag(signs) H[:, c], columns c with replacement."""
    count, size, r = shape
    if size & (size - 1):
        raise ToolError(
            f"sketch_kind srht: expected the sketched size to be a power of two, found {size}"
        )
    hadamard = hadamard_matrix(size)
    signs = generator.choice(np.float32([-1, 1]), (count, size, 1))
    columns = generator.integers(size, size=(count, r))
    return signs * np.stack([hadamard[:, c] for c in columns])


def hadamard_matrix(size: int) -> np.ndarray:
    """Walsh-Hadamard matrix of +-1, size a power of two."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def draw_performer_features(generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Returns Omega [m, d]: blocks of d orthogonal rows, each row's norm sampled as that of a Gaussian row."""
    m, d = shape
    blocks = []
    for begin in range(0, m, d):
        q, triangular = np.linalg.qr(generator.standard_normal((d, d)))
        q *= np.sign(np.diag(triangular))  # uniform over all rotations
        norms = np.linalg.norm(generator.standard_normal((d, d)), axis=1, keepdims=True)
        blocks.append((q.T * norms)[: m - begin])
    return np.concatenate(blocks).astype(np.float32)


def evaluate(levels: list[np.ndarray], x: np.ndarray) -> np.ndarray:
    """Returns f(x) [n, r] of rows x [n, d], as the server computes it from the stored matrices."""
    parts = [x] * len(levels[0])
    for level in levels:
        parts = [part @ matrix for part, matrix in zip(parts, level)]
        parts = [left * right for left, right in zip(parts[0::2], parts[1::2])]
    assert len(parts) == 1
    return parts[0]
