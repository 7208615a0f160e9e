"""Applying a projector to the steps of any torch optimizer.

* `wrapped`: the optimizer inside the wrappers of training frameworks
* `kinds`: whether an object is an optimizer that can be protected
* `hooks`: before and after a step, settling, previews
* `reference`: the weights that a displacement is counted from, in full or rounded to int8
* `meter`: removing the protected part of an update, and measuring what leaks
* `anchor`: where a new projector pulls to, so that an old pull goes on
* `mean_gradient`: the mean gradient of recent steps, where an optimizer keeps one
* `joint`: the gradient of new loss and pull together, for optimizers other than SGD
* `step_size`: how far a step moves the weights for a gradient of one
* `finite`: steps that cannot be projected, because something is not finite
* `unsettled`: warnings where weights are used while steps wait
* `warn`: warnings where steps go past the projection
"""
