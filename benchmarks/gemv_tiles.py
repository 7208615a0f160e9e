"""Find the fastest tiles for the Triton products of `linalg/gpu.py` on this GPU, as shares of copy bandwidth."""

import argparse
import itertools

import torch

from sketchogd.lab.speed import limits
from sketchogd.lab.speed.turns import fastest
from sketchogd.linalg import gpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--p", type=int, default=113_610)
    parser.add_argument("--rank", type=int, default=1200)
    parser.add_argument("--full", action="store_true", help="many more tiles")
    options = parser.parse_args()
    device = torch.device("cuda")
    B = torch.randn(options.rank, options.p, device=device)
    v, c, out = (torch.randn(n, device=device) for n in (options.p, options.rank, options.p))
    copy = fastest({"copy": limits.copying(B)}, device, seconds=1.0, repeat=20)["copy"]
    print(f"{torch.cuda.get_device_name()}: copy {2e-9 * B.numel() * 4 / copy:.0f} GB/s; p = {options.p:,}")
    wide = itertools.product((1, 2, 4, 8), (512, 1024, 2048), (2, 4, 8, 16))
    tall = itertools.product((4, 8, 16, 32), (128, 256, 512), (2048, 4096, 8192))
    few_wide, few_tall = (
        [(4, 1024, 4), (4, 1024, 8), (2, 2048, 4), (1, 2048, 8), (8, 512, 8)],
        [
            (16, 256, 4096),
            (16, 256, 8192),
            (8, 512, 4096),
            (8, 512, 8192),
            (32, 128, 8192),
        ],
    )
    for dtype in (torch.float32, torch.bfloat16):
        M = B.to(dtype)
        limit = copy / 2 * M.element_size() / 4
        for name, tiles in (
            ("B v", list(wide) if options.full else few_wide),
            ("Bᵀ c", list(tall) if options.full else few_tall),
        ):
            shares = []
            for tile in tiles:
                if name == "B v":
                    took = fastest({"": lambda t=tile: gpu.coefficients(M, v, *t)}, device, seconds=0.1, repeat=20)  # noqa: B023
                else:
                    took = fastest({"": lambda t=tile: gpu.combination(M, c, out, *t)}, device, seconds=0.1, repeat=20)  # noqa: B023
                shares.append((limit / took[""], tile))
            for share, tile in sorted(shares, reverse=True)[:6]:
                print(f"{str(dtype).removeprefix('torch.'):9} {name:5} tile {tile!s:18} {share:6.3f} of copy bandwidth")


if __name__ == "__main__":
    main()
