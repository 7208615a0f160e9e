"""Where users already are: callbacks and plugins of other frameworks, each imported only by who wants it.

* `transformers`: `ForgettingCallback` for the Trainer and what derives from it, PEFT models included
* `lightning`: `ForgettingCallback` for Lightning's Trainer
* `avalanche`: `SketchOGDPlugin` for Avalanche's supervised strategies
* `examples`: batches of a data set to remember, shared among processes
"""
