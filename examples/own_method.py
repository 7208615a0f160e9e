"""A custom method for the lab: a `Learner` whose hook before each step pulls weights to those of the last task."""

from sketchogd.lab import Learner, Training, benchmark, fit, method, register
from sketchogd.lab.runs.config import model_for


class PullBack(Learner):
    def __init__(self, model, strength):
        self.model, self.strength, self.anchors = model, strength, {}

    def before_step(self, inputs, targets, head=0):
        for name, anchor in self.anchors.items():
            weight = self.model.get_parameter(name)
            weight.grad.add_(weight.detach() - anchor, alpha=self.strength)

    def end_task(self, inputs, targets, head=0):
        self.anchors = {name: w.detach().clone() for name, w in self.model.named_parameters()}

    def tensors(self):
        return self.anchors

    def state_dict(self):
        return self.anchors

    def load_state_dict(self, state):
        self.anchors = state


@register("pull-back", "L2 pull to the weights of the last task", strength=0.1)
def pull_back(settings, setup):
    return PullBack(setup.model, **settings.options)


if __name__ == "__main__":
    stream = benchmark("split-mnist", n_train=400)
    for chosen in (method("sgd"), method("pull-back", strength=0.3), method("layer-sketch", ridge=0.2)):
        result = fit(stream, model_for(stream, 0), chosen, Training(epochs=5, lr=0.01))
        print(f"{chosen.label:28} {result.summary.average_accuracy:.3f}  {result.ledger['nbytes']:>9,} bytes")
