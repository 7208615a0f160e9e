"""What the library computes from a network and a batch of examples.

* `parameters`: the protected parameters as one vector
* `batches`: inputs of any structure, outputs as logits, one scalar per example
* `layers`: the layers of a model, and how a forward pass uses their weights
* `watching`: calls in which parameters of no layer meet the batch
* `call_gradients`: per-example gradients of these calls, from one backward pass of the batch
* `gradients`: per-example gradients
* `sensitivities`: inputs of layers, and gradients of the model's outputs with respect to the outputs of layers
"""
