"""Where labelled examples come from.

* `sources`: where data sets are published, and their checksums
* `fileformats`: from bytes to arrays
* `datasets`: the embedded MNIST subset, and others from a folder or by download
"""
