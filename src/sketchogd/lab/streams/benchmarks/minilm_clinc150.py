"""The ten domains of CLINC150 with a pretrained MiniLM-L6, all of it trained: AdamW, one cycle."""

from sketchogd.lab.models.heads import MultiHead
from sketchogd.lab.models.sentences import minilm_for
from sketchogd.lab.streams.benchmark import Benchmark, Training
from sketchogd.lab.streams.sentences import domains

MINILM_CLINC150 = Benchmark(
    name="minilm-clinc150",
    title="CLINC150, MiniLM",
    dataset="clinc150",
    stream=domains,
    network=minilm_for,
    weights="minilm",
    parameters=22_565_376,
    tasks=10,
    examples=1_500,
    example_nbytes=8 * 32 + 16,
    protected=MultiHead.PROTECTED,
    training=Training(
        epochs=4, batch=32, lr=1e-4, optimizer="adamw", curve=False, schedule="onecycle", clip=1.0, fresh=True
    ),
    goal=0.96,
    budget=2 * 22_565_376,
    seeds=3,
    options=frozenset({"single_head"}),
)
