"""What the library computes from a network and a batch of examples.

* `wrapped`: the module inside the wrappers of DDP, torch.compile and Fabric
* `parameters`: the protected parameters as one vector
* `batches`: inputs of any structure, outputs as logits, one scalar per example
* `layers`: the layers of a model, and how a forward pass uses their weights
* `gradients`: per-example gradients
* `sensitivities`: inputs of layers, and gradients of the model's outputs with respect to the outputs of layers
"""
