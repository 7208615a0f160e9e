"""The ten domains of CLINC150 with a pretrained MiniLM-L6, through LoRA adapters of rank 8: AdamW, one cycle."""

from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.models.sentences import minilm_lora_for
from sketchogd.lab.streams.benchmark import Benchmark, Training
from sketchogd.lab.streams.sentences import domains

MINILM_LORA_CLINC150 = Benchmark(
    name="minilm-lora-clinc150",
    title="CLINC150, MiniLM with LoRA",
    dataset="clinc150",
    stream=domains,
    network=minilm_lora_for,
    weights="minilm",
    parameters=2 * 6 * 8 * (384 + 384),
    tasks=10,
    examples=1_500,
    example_nbytes=8 * 32 + 16,
    protected=MultiHead.PROTECTED,
    training=Training(
        epochs=4, batch=32, lr=1e-3, optimizer="adamw", curve=False, schedule="onecycle", clip=1.0, fresh=True
    ),
    goal=0.95,
    budget=4 * 4 * 73_728,
    seeds=3,
    options=frozenset({"single_head"}),
)
