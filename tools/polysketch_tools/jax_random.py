"""The part of jax.random that samples the authors' sketches, bit for bit, in numpy.

threefry2x32 with jax_threefry_partitionable = True (JAX's default): bit i of an array is a function of the key and i
alone. normal() is sqrt(2) erf_inv(u) in float32; erf_inv's last bit depends on the order and fusing of its operations, so
_log1p and _erf_inv repeat what XLA compiles for a CPU with FMA (jax 0.10.2; every fused multiply-add is _fma here).
"""

import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _threefry2x32(key, x0, x1):
    """The threefry2x32 block cipher, 20 rounds, on uint32 arrays."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    with np.errstate(over="ignore"):
        x0 = x0 + schedule[0]
        x1 = x1 + schedule[1]
        for group in range(5):
            for rotation in _ROTATIONS[group % 2]:
                x0 = x0 + x1
                x1 = ((x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))) ^ x0
            x0 = x0 + schedule[(group + 1) % 3]
            x1 = x1 + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def prng_key(seed: int) -> np.ndarray:
    """jax.random.PRNGKey: uint32 [2]. As in JAX without 64-bit types, a seed beyond 32 bits keeps its lower half only."""
    return np.array([0, seed & 0xFFFFFFFF], np.uint32)


def fold_in(key: np.ndarray, data: int) -> np.ndarray:
    return np.concatenate(_threefry2x32(key, *prng_key(data)[:, None]))


def split(key: np.ndarray, num: int = 2) -> np.ndarray:
    """jax.random.split: uint32 [num, 2]."""
    return np.stack(
        _threefry2x32(key, np.zeros(num, np.uint32), np.arange(num, dtype=np.uint32)), axis=1
    )


def random_bits(key: np.ndarray, size: int) -> np.ndarray:
    counter = np.arange(size, dtype=np.uint64)
    high, low = (counter >> np.uint64(32)).astype(np.uint32), counter.astype(np.uint32)
    x0, x1 = _threefry2x32(key, high, low)
    return x0 ^ x1


def normal(key: np.ndarray, shape) -> np.ndarray:
    """jax.random.normal(key, shape, float32)."""
    one = np.float32(1)
    low = np.nextafter(-one, np.float32(0))
    mantissa = random_bits(key, int(np.prod(shape))) >> np.uint32(9)
    unit = (mantissa | np.uint32(0x3F800000)).view(np.float32) - one  # [0, 1)
    uniform = np.maximum(
        low, unit * (one - low) + low
    )  # [low, 1): the product is exact, a fused add is the same
    return (np.float32(np.sqrt(2)) * _erf_inv(uniform)).reshape(shape)


def _fma(a, b, c):
    """a * b + c of float32, rounded once.

    The product is exact in float64; the sum is rounded there to odd, which makes the second rounding harmless.
    """
    product = np.multiply(a, b, dtype=np.float64)
    addend = np.asarray(c, np.float64)
    total = product + addend
    virtual = total - product
    error = (product - (total - virtual)) + (
        addend - virtual
    )  # exact: total + error = product + addend
    bits = total.view(np.int64)
    inexact_even = (error != 0) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    bits = np.where(inexact_even, np.where(away, bits + 1, bits - 1), bits)
    return bits.view(np.float64).astype(np.float32)


def _polynomial(x, coefficients):
    """Horner's rule, highest power first."""
    result = coefficients[0]
    for coefficient in coefficients[1:]:
        result = _fma(result, x, coefficient)
    return result


def _f32(*values):
    return [np.float32(v) for v in values]


# log1p(x) = x - x^2/2 + x^3 N(x)/D(x) for small x.
_LOG1P_N = _f32(
    4.5270000862445199635215e-5,
    4.9854102823193375972212e-1,
    6.5787325942061044846969,
    2.9911919328553073277375e1,
    6.0949667980987787057556e1,
    5.7112963590585538103336e1,
    2.0039553499201281259648e1,
)
_LOG1P_D = _f32(
    1,
    1.5062909083469192043167e1,
    8.3047565967967209469434e1,
    2.2176239823732856465394e2,
    3.0909872225312059774938e2,
    2.1642788614495947685003e2,
    6.0118660497603843919306e1,
)
# log(1 + t) = t - t^2/2 + t^3 P(t), three strands of P by powers of t^3.
_LOG_P = (
    _f32(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1),
    _f32(-1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1),
    _f32(2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_LOG2_LOW, _LOG2_HIGH = _f32(-2.12194440e-4, 0.693359375)


def _log(x):
    """log of positive normal float32."""
    bits = x.view(np.int32)
    mantissa = ((bits & 0x007FFFFF) | 0x3F000000).view(np.float32)  # [0.5, 1)
    below = mantissa < np.float32(np.sqrt(0.5))
    exponent = (bits >> 23).astype(np.float32) - np.float32(126) - below.astype(np.float32)
    t = (mantissa - np.float32(1)) + np.where(below, mantissa, np.float32(0))
    square = t * t
    cube = square * t
    strand0, strand1, strand2 = (_polynomial(t, p) for p in _LOG_P)
    p = _fma(_fma(strand0, cube, strand1), cube, strand2)
    tail = _fma(p, cube, exponent * _LOG2_LOW)
    return _fma(exponent, _LOG2_HIGH, _fma(square, np.float32(-0.5), t) + tail)


def _log1p(x):
    """log(1 + x) of float32 in (-1, 0]."""
    square = x * x
    ratio = _polynomial(x, _LOG1P_N) / _polynomial(x, _LOG1P_D)
    small = _fma(square, np.float32(-0.5), (x * square) * ratio) + x
    return np.where(np.abs(x) < np.float32(np.sqrt(2) - 1), small, _log(x + np.float32(1)))


# M. Giles, "Approximating the erfinv function": w < 5 and w >= 5, in w - 2.5 and sqrt(w) - 3.
_ERF_INV_CENTRAL = _f32(
    2.81022636e-08,
    3.43273939e-07,
    -3.5233877e-06,
    -4.39150654e-06,
    0.00021858087,
    -0.00125372503,
    -0.00417768164,
    0.246640727,
    1.50140941,
)
_ERF_INV_TAIL = _f32(
    -0.000200214257,
    0.000100950558,
    0.00134934322,
    -0.00367342844,
    0.00573950773,
    -0.0076224613,
    0.00943887047,
    1.00167406,
    2.83297682,
)


def _erf_inv(x):
    """erf^-1 of float32 in (-1, 1)."""
    w = -_log1p(-(x * x))
    central = w < 5
    argument = np.where(central, w - np.float32(2.5), np.sqrt(w) - np.float32(3))
    return x * _polynomial(
        argument, [np.where(central, c, t) for c, t in zip(_ERF_INV_CENTRAL, _ERF_INV_TAIL)]
    )
