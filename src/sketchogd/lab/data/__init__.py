"""Where labelled examples and published weights come from.

* `sources`: where data sets are published, and their checksums
* `pickles`: CIFAR's pickles, read without unpickling
* `fileformats`: from bytes to arrays
* `downloads`: fetching a published file
* `weights`: published weights
* `texts`: sentences as numbers of tokens
* `datasets`: the embedded MNIST subset, and others from a folder or by download
"""
