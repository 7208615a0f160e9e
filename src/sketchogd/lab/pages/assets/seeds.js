// What a group of runs shows for the seeds chosen: its row, accuracy matrix and curves, each a mean over those runs.

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
// With n − 1 in the denominator; a single value has no deviation.
function deviation(values) {
  if (values.length < 2) return null;
  const middle = mean(values);
  return Math.sqrt(values.reduce((sum, value) => sum + (value - middle) ** 2, 0) / (values.length - 1));
}

// The mean over those of the values that are numbers, and their deviation.
function over(values) {
  const found = values.filter(known);
  return found.length ? [mean(found), deviation(found)] : [null, null];
}

const seedName = (run) => (run.seed === null || run.seed === undefined ? MISSING : String(run.seed));

// The group without the runs of hidden seeds; null if none of its runs is left or none has accuracies.
function seen(group, hiddenSeeds) {
  if (!group.row) return null;
  const all = group.runs.filter((run) => run.matrix), runs = all.filter((run) => !hiddenSeeds.has(seedName(run)));
  if (!runs.length) return null;
  const row = { ...group.row, n: runs.length };
  for (const key of ["accuracy", "forgetting", "learning"]) {
    const [middle, spread] = over(runs.map((run) => run[key]));
    if (runs.length < all.length) row[key] = middle;
    row[`${key}_std`] = spread;
  }
  const matrix = runs.length === all.length ? group.matrix
    : group.matrix.map((line, i) => line.map((_, j) => over(runs.map((run) => run.matrix[i][j]))[0]));
  const followed = runs.filter((run) => run.curve);
  // A run's values on a task end where the positions do.
  const at = (values, i) => values[i - (group.x.length - values.length)];
  const tasks = followed.length ? followed[0].curve.map((_, j) => {
    const points = group.x.map((_, i) => over(followed.map((run) => at(run.curve[j], i))));
    return { mean: points.map((p) => p[0]), std: points.map((p) => p[1]) };
  }) : [];
  return { ...group, row, matrix, runs, curves: { x: group.x, tasks } };
}

// Mean accuracy on the tasks before the last one, at the end; and on each task after the first, right after it.
function oldAndNew(matrix) {
  const T = matrix.length;
  return [mean(matrix[T - 1].slice(0, T - 1)), mean(matrix.slice(1).map((row, i) => row[i + 1]))];
}
