"""Time the paper's algorithm written down literally, and extrapolate to a run of table 1."""

import argparse

import torch

from sketchogd.lab.speed.gradients import GRADIENTS, STEPS, TASKS, Setting, literal_parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="rank 128 instead of 1200")
    options = parser.parse_args()
    setting = Setting(torch.device(options.device), options.quick)
    took = literal_parts(setting)
    counts = {"step": STEPS, "gradient": GRADIENTS, "basis": TASKS}
    print(f"SketchOGD-1, rank {setting.rank}, p = 113,610, {options.device}, {torch.get_num_threads()} threads")
    for part, count in counts.items():
        seconds = took[part]
        print(f"  {part:10} {1e3 * seconds:10.1f} ms  x {count:>7,} = {seconds * count / 3600:6.2f} h")
    total = sum(took[part] * count for part, count in counts.items())
    print(f"  a Rotated MNIST run of table 1: {total / 3600:.1f} h, extrapolated from these parts")


if __name__ == "__main__":
    main()
