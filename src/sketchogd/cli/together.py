"""`torchrun --nproc-per-node N -m sketchogd.cli run …`: N processes do each run together, the first one speaks."""

import os
from pathlib import Path
from typing import Any

import torch
import typer

from sketchogd.cli import show
from sketchogd.lab.runs import torchrun, train
from sketchogd.lab.runs.config import RunConfig
from sketchogd.lab.runs.grid import Outcome, Update


def launched() -> bool:
    """Whether torchrun started this process, with others."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def carry_out(runs: tuple[RunConfig, ...], out: Path, device: str, data: Path | None, quiet: bool) -> list[Outcome]:
    """Do the runs with all processes of torchrun; what came of them, in the first process. The others exit here."""
    from sketchogd.distributed import start

    place = start(device=torch.device(device.split(",")[0]).type)
    outcomes: list[Outcome] = []
    with show.grid_bar(runs, quiet=quiet or torch.distributed.get_rank() > 0) as listener:

        def run(config: RunConfig, folder: Path | None, all_of_them: torchrun.Processes) -> Any:
            def progress(done: float, whole: float, doing: str) -> None:
                listener(Update(config.name, done / whole, doing))

            options: dict[str, Any] = {"data_folder": data, "device": place, "processes": all_of_them}
            if folder is None:
                return train.follow(config, **options)
            return train.run(config, folder, progress=progress, **options)

        def tell(name: str, status: str, message: str) -> None:
            outcomes.append(Outcome(name, status, message))
            listener(Update(name, 1.0, status))

        torchrun.run_all(runs, out, run, tell)
    follower = torch.distributed.get_rank() > 0
    torch.distributed.destroy_process_group()
    if follower:
        raise typer.Exit
    return outcomes
