"""What is read off a network for a batch of examples.

* `parameters`: the protected parameters as one vector
* `batches`: inputs of any form, outputs as logits, the scalar of an example
* `layers`: which layers there are, and how one forward pass used their weights
* `gradients`: per-example gradients
* `sensitivities`: gradients of outputs with respect to the outputs of layers
"""
