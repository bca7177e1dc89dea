"""The published figures of the toy models: every architecture at one size, and the two named ones at four.

Source: sequence-memorisation challenge, architecture ablation (V = 32, all widths and labels 16, acc = 1, precision 8
facts, four searches for each) and the unmerged models by the long recipe, final runs.
"""

from functools import cache

from mlpswap.sequences.ablation.toy import FULL, SIMPLE, Architecture

WIDTH = 16  # of the table
Three = tuple[int, int, int]  # Any, Most, All

# architecture -> d -> (Any, Most, All)
SCALING: dict[Architecture, dict[int, Three]] = {
    FULL: {16: (792, 744, 120), 32: (2816, 2464, 736), 64: (9088, 8320, 3456), 128: (32768, 30720, 8192)},
    SIMPLE: {
        16: (744, 560, 344),
        32: (2976, 2336, 1920),
        64: (10368, 9088, 8576),
        128: (29696, 29696, 28672),
    },
}

# mixing, MLP, norms, residual, bias, activation; four searches each for Any, Most and All
_TABLE = """
dual 1 0 0 0 gelu 776 760 784 896 688 672 704 704 640 560 600 560
dual 1 0 0 0 relu 664 688 736 816 568 568 504 576 416 184 448 288
dual 1 0 1 0 gelu 992 984 984 1008 952 960 952 960 920 928 912 928
dual 1 0 1 0 relu 976 960 968 976 928 920 920 936 912 888 912 896
dual 1 1 0 0 gelu 888 888 920 960 824 856 832 824 792 792 776 800
dual 1 1 0 0 relu 472 560 552 576 328 328 248 344 256 168 88 168
dual 1 1 1 0 gelu 1024 1024 1024 1024 1000 1016 1024 1024 984 992 984 952
dual 1 1 1 0 relu 1024 1024 1024 1024 1016 1024 1024 1024 1008 984 992 992
dual 1 0 0 1 gelu 864 848 896 904 776 800 784 792 680 680 680 720
dual 1 0 0 1 relu 960 824 872 872 680 720 688 712 488 472 528 496
dual 1 0 1 1 gelu 1000 1008 992 1008 952 968 960 960 920 920 920 920
dual 1 0 1 1 relu 984 976 1000 976 936 928 944 920 904 904 928 912
dual 1 1 0 1 gelu 1024 1024 1024 1024 1024 1024 1024 1024 984 952 1000 984
dual 1 1 0 1 relu 1024 1024 1024 1024 880 888 976 920 528 480 536 536
dual 1 1 1 1 gelu 1024 1024 1024 1024 1024 1024 1024 1024 1024 1024 1000 1024
dual 1 1 1 1 relu 1024 1024 1024 1024 1024 1024 1024 1024 1008 1024 1024 1008
uniform 1 0 0 0 gelu 696 680 680 688 576 536 552 552 440 424 480 464
uniform 1 0 0 0 relu 640 640 616 672 472 512 480 512 336 376 368 392
uniform 1 0 1 0 gelu 832 824 824 816 792 792 800 792 768 720 744 760
uniform 1 0 1 0 relu 816 808 816 800 760 776 784 784 736 744 728 504
uniform 1 1 0 0 gelu 800 800 776 784 744 736 744 736 696 696 696 704
uniform 1 1 0 0 relu 496 504 528 440 280 296 312 248 104 144 104 160
uniform 1 1 1 0 gelu 880 896 912 920 856 864 848 856 832 816 800 792
uniform 1 1 1 0 relu 872 880 904 872 856 840 848 856 800 792 800 808
uniform 1 0 0 1 gelu 712 696 720 720 664 640 632 672 528 520 488 520
uniform 1 0 0 1 relu 712 712 704 720 640 640 584 640 448 440 480 432
uniform 1 0 1 1 gelu 824 832 840 840 800 808 800 808 728 760 776 752
uniform 1 0 1 1 relu 824 792 816 800 784 776 784 784 760 768 768 760
uniform 1 1 0 1 gelu 880 904 888 888 848 848 848 840 776 760 776 768
uniform 1 1 0 1 relu 920 888 896 880 768 728 768 768 240 248 248 448
uniform 1 1 1 1 gelu 944 936 960 960 912 904 904 896 856 864 880 856
uniform 1 1 1 1 relu 912 944 936 960 896 888 888 872 816 832 832 832
learned 1 0 0 0 gelu 536 584 504 600 304 392 384 384 136 120 80 88
learned 1 0 0 0 relu 456 576 488 584 312 352 272 312 112 64 128 48
learned 1 0 1 0 gelu 688 664 656 640 344 328 384 248 56 128 136 40
learned 1 0 1 0 relu 488 672 704 688 336 320 248 248 88 112 64 72
learned 1 1 0 0 gelu 784 768 768 696 648 656 600 616 264 368 232 232
learned 1 1 0 0 relu 440 512 496 472 312 296 320 328 128 192 152 136
learned 1 1 1 0 gelu 864 776 832 808 632 704 736 704 232 216 320 184
learned 1 1 1 0 relu 776 832 832 832 680 688 728 688 280 240 280 296
learned 1 0 0 1 gelu 600 632 696 616 336 384 312 352 144 152 24 48
learned 1 0 0 1 relu 544 656 536 640 280 272 368 360 144 16 72 56
learned 1 0 1 1 gelu 624 664 712 608 264 296 248 328 16 128 96 56
learned 1 0 1 1 relu 648 600 504 592 272 248 176 512 96 64 80 112
learned 1 1 0 1 gelu 800 896 800 760 600 672 504 704 336 184 376 296
learned 1 1 0 1 relu 800 776 728 832 440 520 576 536 152 232 264 288
learned 1 1 1 1 gelu 848 816 872 808 720 696 632 704 320 248 384 448
learned 1 1 1 1 relu 832 840 840 792 768 704 640 632 336 208 320 240
dual 0 0 1 1 gelu 208 208 208 208 208 208 208 208 208 208 208 208
dual 0 1 1 1 gelu 576 576 576 552 536 544 528 544 496 480 472 504
uniform 0 0 1 1 gelu 208 208 208 208 200 192 208 192 192 192 192 192
uniform 0 1 1 1 gelu 416 408 408 408 376 376 376 376 312 304 328 336
learned 0 0 1 1 gelu 208 168 224 208 112 120 88 96 16 16 16 48
learned 0 1 1 1 gelu 384 272 416 384 168 176 136 192 64 48 56 56
"""


@cache
def published_table() -> dict[Architecture, tuple[list[int], list[int], list[int]]]:
    """The four figures for Any, Most and All of each architecture."""
    found = {}
    for line in _TABLE.strip().splitlines():
        mixing, mlp, norms, residual, bias, activation, *figures = line.split()
        on = [each == "1" for each in (mlp, norms, residual, bias)]
        numbers = [int(figure) for figure in figures]
        architecture = Architecture(mixing, on[0], on[1], on[2], on[3], activation)
        found[architecture] = (numbers[:4], numbers[4:8], numbers[8:])
    return found
