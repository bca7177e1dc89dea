"""The published figures of the challenge, which ours stand beside.

Source: sequence-memorisation challenge, leader board at V = 2d and C = d, and the laws fitted to it. The figures for
d = 8 come from its decoupled sweep, which has Any alone.
"""

import math

Figures = dict[float, dict[int, tuple[int | None, int | None, int | None]]]

# series -> threshold -> d -> (Any, Most, All)
PUBLISHED: dict[str, Figures] = {
    "trained": {
        1.0: {
            16: (568, 424, 336), 32: (2176, 1984, 1568), 64: (7680, 7424, 5952), 128: (25600, 24576, 23040),
            256: (88064, 86016, 80896),
        },
        0.9: {
            16: (784, 768, 704), 32: (2560, 2496, 2432), 64: (8320, 8192, 8192), 128: (27648, 27648, 27136),
            256: (93184, 93184, 93184),
        },
    },
    "hybrid": {
        1.0: {
            8: (44, None, None), 16: (176, 128, 100), 32: (568, 488, 400), 64: (2208, 1792, 1568),
            128: (7680, 7040, 6144), 256: (26624, 25088, 21504),
        },
        0.9: {
            8: (70, None, None), 16: (208, 188, 172), 32: (704, 664, 632), 64: (2400, 2368, 2336),
            128: (8192, 8192, 8064), 256: (28160, 28160, 28160),
        },
    },
    "hand-coded": {
        1.0: {
            8: (28, None, None), 16: (64, 42, 16), 32: (144, 108, 72), 64: (216, 200, 144), 128: (896, 640, 288),
            256: (2304, 768, 384),
        },
        0.9: {
            8: (30, None, None), 16: (92, 80, 64), 32: (264, 232, 192), 64: (800, 736, 704),
            128: (2688, 2496, 2432), 256: (9728, 9728, 9472),
        },
    },
    "random embedding": {
        1.0: {
            16: (24, 14, 0), 32: (104, 64, 38), 64: (480, 204, 90), 128: (1632, 1152, 288),
            256: (5952, 3968, 704),
        },
        0.9: {
            16: (36, 22, 22), 32: (196, 176, 108), 64: (800, 768, 664), 128: (2624, 2560, 2496),
            256: (8704, 8704, 8576),
        },
    },
}  # fmt: skip

# series -> threshold -> (a, p) of a d^p / ln d, for Any
LAWS = {
    "trained": {1.0: (4.94, 2.10), 0.9: (9.09, 1.98)},
    "hybrid": {1.0: (1.56, 2.07), 0.9: (2.20, 2.02)},
    "hand-coded": {1.0: (2.17, 1.55), 0.9: (1.16, 1.93)},
    "random embedding": {1.0: (0.151, 2.24), 0.9: (0.278, 2.21)},
}


def published(series: str, threshold: float, d: int) -> tuple[int | None, int | None, int | None]:
    """(Any, Most, All), each None where there is no such figure."""
    return PUBLISHED.get(series, {}).get(threshold, {}).get(d, (None, None, None))


def expected(series: str, threshold: float, d: int) -> float:
    """Facts by the law of a series; of the nearest threshold, where the published ones have another."""
    laws = LAWS[series]
    factor, power = laws[min(laws, key=lambda each: abs(each - threshold))]
    return factor * d**power / math.log(max(d, 2))
