"""Accuracies along training, mean over the seeds of a group. `T` tasks, `n` positions."""

import numpy as np

from sketchogd.lab.pages.groups import Group
from sketchogd.lab.records import Run


def tracks(group: Group) -> tuple[np.ndarray, list[Run], np.ndarray]:
    """Accuracies along training of every run: positions (n) in tasks trained, the runs, and their values (runs, n, T).

    Read from the evaluations in events.jsonl or, without any, from the accuracy matrix. NaN where nothing was measured.
    """
    single = [(run, _single(run)) for run in group.runs if run.complete]
    # Seeds that were measured after tasks only would make the mean jump between the finer points of the others.
    finest = max((len(track) for _, track in single), default=0)
    single = [(run, track) for run, track in single if len(track) == finest]
    x = np.array(sorted({position for _, track in single for position in track}))
    T = len(group.matrices[0]) if len(group.matrices) else 0
    missing = np.full(T, np.nan)
    values = np.array([[track.get(position, missing) for position in x] for _, track in single])
    return x, [run for run, _ in single], values.reshape(-1, len(x), T)


def trajectory(group: Group) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions (n) in tasks trained, and mean and standard deviation over the runs of `tracks` (n, T)."""
    x, _, values = tracks(group)
    n = np.sum(~np.isnan(values), axis=0)
    mean = np.where(n > 0, np.nansum(values, axis=0) / np.maximum(n, 1), np.nan)
    squares = np.nansum((values - mean) ** 2, axis=0)
    return x, mean, np.where(n > 0, np.sqrt(squares / np.maximum(n - 1, 1)), np.nan)


def _single(run: Run) -> dict[float, np.ndarray]:
    """The accuracies (T) of one run at each position in tasks trained."""
    A = run.accuracy
    assert A is not None
    ends = {float(i + 1): np.where(np.arange(len(A)) <= i, A[i], np.nan) for i in range(len(A))}
    try:
        events = run.evaluations()
        epochs = int(run.config.get("epochs") or max(event["epoch"] for event in events))
        # Epochs may be counted from 0 or from 1; the last evaluation of a task is at its end.
        first = 1 if max(event["epoch"] for event in events) < epochs else 0
        track = {}
        for event in events:
            values = np.array([np.nan if value is None else value for value in event["accuracy"]], dtype=float)
            row = np.full(len(A), np.nan)
            row[: len(values)] = values[: len(A)]
            row[int(event["task"]) + 1 :] = np.nan
            track[round(int(event["task"]) + (event["epoch"] + first) / epochs, 6)] = row
        return track or ends
    except (KeyError, TypeError, ValueError, AttributeError):
        return ends
