"""Make the MNIST subset that the package ships from the four standard files.

    python -m tools.make_mnist_subset FOLDER [OUT]

FOLDER holds train-images-idx3-ubyte.gz and its three companions (the plain files will do). The subset is the paper's:
of every class the first 1,000 training images, in the order of the file, and all 10,000 test images. OUT is by default
the copy inside the package. The archive has no timestamps, so the same files give the same bytes (with the same zlib;
the arrays inside are the same with any).
"""

import argparse
import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np

from sketchogd.lab.data import datasets

PER_CLASS = 1000


def subset(labels: np.ndarray, per_class: int) -> np.ndarray:
    """Indices, increasing, of the first `per_class` examples of every class; labels (n,)."""
    firsts = [np.flatnonzero(labels == label)[:per_class] for label in np.unique(labels)]
    return np.sort(np.concatenate(firsts))


def archive(arrays: dict[str, np.ndarray]) -> bytes:
    """The arrays as the bytes of a compressed .npz file, without timestamps and in the order given."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as target:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            info.create_system = 3
            target.writestr(info, member.getvalue(), zipfile.ZIP_DEFLATED, compresslevel=9)
    return out.getvalue()


def main() -> None:
    """Read FOLDER, write OUT, print its size and SHA-256."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=datasets.EMBEDDED)
    args = parser.parse_args()

    mnist = datasets.load("mnist", args.folder)
    labels = mnist.y_train.numpy()
    kept = subset(labels, PER_CLASS)
    data = archive(
        {
            "x_train": mnist.x_train.numpy()[kept, 0],
            "y_train": labels[kept].astype(np.uint8),
            "x_test": mnist.x_test.numpy()[:, 0],
            "y_test": mnist.y_test.numpy().astype(np.uint8),
        }
    )
    args.out.write_bytes(data)
    print(f"{args.out}: {len(data):,} bytes, SHA-256 {hashlib.sha256(data).hexdigest()}")


if __name__ == "__main__":
    main()
