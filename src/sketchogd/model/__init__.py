"""What the library computes from a network and a batch of examples.

* `wrapped`: the module inside the wrappers of DDP, torch.compile and Fabric
* `parameters`: the protected parameters as one vector
* `targets`: what targets mean for outputs, and errors for those that fit none
* `batches`: inputs of any structure, outputs as logits, one scalar per example
* `calls`: how a model is called with a batch, and which of its outputs count (padding, labels of language models)
* `signs`: random signs of logits
* `layers`: the layers of a model, and how a forward pass uses their weights
* `gathered`: what a model computes with in place of parameters that FSDP2 splits
* `watching`: calls in which parameters of no layer meet the batch
* `call_gradients`: per-example gradients of these calls, from one backward pass of the batch
* `gradients`: per-example gradients
* `sensitivities`: inputs of layers, and gradients of the model's outputs with respect to the outputs of layers
* `buffers/`: buffers of a model, of which running statistics are held
"""
