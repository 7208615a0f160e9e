"""Peak memory of remembering a batch of a language model, by the size of its vocabulary, and of its own loss.

    python benchmarks/vocabulary.py --json benchmarks/results/vocabulary-cpu.json

Logits (b, T, V) are by far the largest tensors of a small model with a large vocabulary V. Each row is a fresh process;
its peak resident memory above that of the built model is given in tensors of the logits' size. "loss" is a forward and
backward pass of the model's own loss, "remember" is `protection.remember` of the same batch by a layer memory of rank
8. Backward passes are counted too: they must not grow with V. Needs transformers.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

KINDS = ("gpt2", "llama", "t5")
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def build(kind: str, vocabulary: int, width: int = 64) -> torch.nn.Module:
    import transformers as hf

    if kind == "gpt2":
        config = hf.GPT2Config(vocab_size=vocabulary, n_embd=width, n_layer=2, n_head=2, n_positions=256, **SPECIAL)
        return hf.GPT2LMHeadModel(config)
    if kind == "llama":
        sizes = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2, "num_attention_heads": 2}
        config = hf.LlamaConfig(vocab_size=vocabulary, tie_word_embeddings=True, **sizes, **SPECIAL)
        return hf.LlamaForCausalLM(config)
    config = hf.T5Config(
        vocab_size=vocabulary, d_model=width, d_kv=32, d_ff=2 * width, num_layers=2, num_heads=2,
        decoder_start_token_id=0,
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config)


def peak() -> int:
    """The largest resident set of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(kind: str, vocabulary: int, what: str, b: int, T: int) -> dict[str, Any]:
    """One row, in this process."""
    import sketchogd as so

    torch.manual_seed(0)
    model = build(kind, vocabulary).eval()
    warm = torch.randn(64, 64, dtype=torch.float64, requires_grad=True)
    torch.linalg.eigh(warm @ warm.T)[0].sum().backward()  # torch loads parts of itself on demand
    tokens = torch.randint(3, vocabulary, (b, T))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens}
    passes = 0
    real = torch.autograd.grad

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal passes
        passes += 1
        return real(*args, **options)

    torch.autograd.grad = counted
    before = peak()
    if what == "loss":
        model(**batch, use_cache=False).loss.backward()
    else:
        so.protect(model, torch.optim.AdamW(model.parameters()), memory=so.LayerMemory(8)).remember([batch])
    logits = 4 * b * T * vocabulary
    return {"peak": (peak() - before) / logits, "logits_bytes": logits, "passes": passes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, nargs="*", default=[50_000, 150_000])
    parser.add_argument("--row", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.row:
        kind, vocabulary, what = options.row
        print(json.dumps(measure(kind, int(vocabulary), what, options.batch, options.length)))
        return
    rows = []
    print("| model | vocabulary | logits | loss | remember | backward passes |")
    print("|---|---:|---:|---:|---:|---:|")
    for kind in KINDS:
        for vocabulary in options.vocabulary:
            found = {}
            for what in ("loss", "remember"):
                arguments = ["--batch", str(options.batch), "--length", str(options.length)]
                command = [sys.executable, __file__, *arguments, "--row", kind, str(vocabulary), what]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                found[what] = json.loads(output.splitlines()[-1])
            rows.append({"model": kind, "vocabulary": vocabulary, **found})
            size = f"{found['loss']['logits_bytes'] / 1e6:.0f} MB"
            cells = [f"{found[what]['peak']:.1f}" for what in ("loss", "remember")]
            print(
                f"| {kind} | {vocabulary:,} | {size} | {' | '.join(cells)} | {found['remember']['passes']} |",
                flush=True,
            )
    if options.json is not None:
        machine = {"torch": torch.__version__, "system": f"{platform.system()} {platform.machine()}"}
        record = {"machine": machine, "batch": options.batch, "length": options.length, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
