// The figures of one benchmark: curves of chosen tasks, old against new accuracy over strength, spectra, errors.

function figure(kind, title, caption, ...content) {
  const node = el("figure", { "data-kind": kind }, el("div", { class: "head" }, el("h3", {}, title)), content, el("figcaption", {}, caption));
  node.firstChild.append(exportButtons(node, kind));
  return node;
}
const lead = (title, text) => [el("b", {}, title), ` ${text}`];
const keyItem = (g) => el("span", { class: "item" }, swatch(g.style, g.dash), g.label);
// What the marks stand for; a legend of many methods would push its chart away, and is folded.
function legend(groups, title = "Legend") {
  const key = el("p", { class: "key" }, groups.map(keyItem));
  return groups.length <= 12 ? key : el("details", { class: "folded" }, el("summary", {}, `${title}: ${plural(groups.length, "method")}`), key);
}

function defaultTasks(benchmark, T) {
  const paper = benchmark.curves.filter((task) => task <= T);
  const spread = [...new Set([1, Math.ceil(T / 2), T])];
  return new Set(benchmark.curves.length && paper.length === benchmark.curves.length ? paper : spread);
}

function curvesFigure(benchmark, groups, shown, chosen, width, redraw) {
  const T = Math.max(...groups.map((g) => g.matrix.length));
  const chips = Array.from({ length: T }, (_, i) => i + 1).map((task) =>
    el("button", { type: "button", "aria-pressed": String(chosen.has(task)), "aria-label": `Task ${task}`, "data-task": task, onclick: () => {
      if (!chosen.delete(task)) chosen.add(task);
      redraw(`[data-task="${task}"]`);
    } }, String(task)));
  const tasks = [...chosen].sort((a, b) => a - b);
  const values = groups.flatMap((g) => tasks.flatMap((task) =>
    (g.curves.tasks[task - 1] || { mean: [] }).mean.filter((value, i) => known(value) && g.curves.x[i] >= task)));
  const yDomain = values.length ? padded(...span(values)) : [0, 1];
  const columns = Math.max(1, Math.min(tasks.length, Math.floor((width + 22) / 322)));
  const each = (width - 22 * (columns - 1)) / columns;
  const panels = tasks.map((task, index) => {
    const series = shown.filter((g) => g.curves.tasks[task - 1]).map((g) => ({
      label: g.label, style: g.style, x: g.curves.x, y: g.curves.tasks[task - 1].mean, spread: g.curves.tasks[task - 1].std }));
    return el("div", { class: "panel" }, el("h4", {}, `Task ${task}`), lineChart({
      width: each, height: Math.min(300, each * 0.72), xDomain: [0, T], yDomain, series, title: `Accuracy on task ${task} of ${benchmark.title} along training`,
      xLabel: "tasks trained", yLabel: index % columns === 0 ? "test accuracy" : "", markEnds: true, format: fraction,
      xTicks: linearTicks(0, T, T <= 10 ? T : 5).filter(Number.isInteger), heading: (at) => `Task ${task} after ${compact(Math.round(at * 100) / 100)} of ${T} tasks` }));
  });
  const bands = shown.some((g) => g.row.n > 1) ? "; bands are one standard deviation over seeds" : "";
  return figure("curves", "Accuracy along training", lead("Accuracy along training.", `Each panel follows the test accuracy of one task from its own training through that of all later tasks${bands}. All panels have the same axes, which leave out the first steps on a task.`),
    el("div", { class: "chips", role: "group", "aria-label": "Tasks shown" }, "Tasks", chips), legend(shown),
    tasks.length ? el("div", { class: "multiples", style: { "grid-template-columns": `repeat(${columns}, 1fr)` } }, panels) : el("p", { class: "note" }, "Choose at least one task."));
}

// Methods that were run with several strengths: what each costs in new accuracy, and what it keeps of the old one.
function tradeoffFigure(benchmark, shown, width) {
  const families = new Map();
  for (const g of shown) {
    if (!g.strength || g.matrix.length < 2) continue;
    const [old, fresh] = oldAndNew(g.matrix);
    if (!families.has(g.strength.family)) families.set(g.strength.family, { label: g.strength.family, style: families.size, points: [] });
    families.get(g.strength.family).points.push({ strength: g.strength.value, old, fresh });
  }
  const found = [...families.values()];
  if (!found.length) return null;
  for (const family of found) family.points.sort((a, b) => a.strength - b.strength);
  const all = found.flatMap((family) => family.points);
  const columns = width > 700 ? 2 : 1, each = (width - 30 * (columns - 1)) / columns, height = Math.min(380, Math.max(280, each * 0.66));
  const [low, high] = span(all.map((p) => p.strength));
  const series = found.flatMap(({ label, style, points }) => [["old", "old tasks", null], ["fresh", "new tasks", "4 4"]].map(([key, name, dashes]) => ({
    label: `${label}, ${name}`, style, dash: dashes || "none", x: points.map((p) => p.strength), y: points.map((p) => p[key]) })));
  const over = lineChart({ width: each, height, xDomain: [low / 1.15, high * 1.15], yDomain: padded(...span(all.flatMap((p) => [p.old, p.fresh]))), logX: true, series, markAll: true,
    xTicks: all.length && high / low < 100 ? [...new Set(all.map((p) => p.strength))].sort((a, b) => a - b) : undefined,
    xLabel: "strength (log scale)", yLabel: "accuracy", format: fraction, heading: (s) => `Strength ${compact(s)}`, title: `Old and new accuracy over strength on ${benchmark.title}` });
  const { root, plot, x, y, box } = frame({ width: each, height, xDomain: padded(...span(all.map((p) => p.fresh))), yDomain: padded(...span(all.map((p) => p.old))),
    xLabel: "accuracy on new tasks", yLabel: "accuracy on old tasks", right: 22, title: `Old against new accuracy on ${benchmark.title}` });
  const points = found.flatMap((family) => family.points.map((p) => ({ px: x(p.fresh), py: y(p.old), style: family.style, label: `${family.label}, strength ${compact(p.strength)}`, strength: p.strength,
    rows: [{ name: "old tasks, at the end", value: fraction(p.old) }, { name: "new tasks, right after each", value: fraction(p.fresh) }] })));
  for (const { style, points: list } of found) plot.append(svg("path", { d: path(list.map((p) => [x(p.fresh), y(p.old)])), fill: "none", stroke: colour(style), "stroke-width": 1.5 }));
  for (const p of points) plot.append(marker(p.style, p.px, p.py, 4));
  const taken = points.map(({ px, py }) => ({ left: px - 5, right: px + 5, top: py - 5, bottom: py + 5 }));
  for (const p of points) root.append(placeLabel(compact(p.strength), p.px, p.py, box, taken) || "");
  pickable(root, points, each);
  const dashes = found.length ? [{ style: 6, dash: "none", label: "solid: old tasks" }, { style: 6, dash: "4 4", label: "dashed: new tasks" }] : [];
  return figure("tradeoff", "Old against new accuracy", lead("Strength of the protection.", "Old: accuracy at the end on all tasks but the last. New: accuracy on each task but the first, right after training on it. Left, both over the strength; right, one against the other, each point with its strength: up and to the right is better. Methods count strength in different units."),
    el("p", { class: "key" }, found.map((f) => keyItem({ ...f, dash: "none" })), dashes.map(({ dash: d, label }) => el("span", { class: "item" }, svg("svg", { class: "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" }, svg("line", { x1: -4, x2: 18, y1: 7, y2: 7, stroke: "var(--soft)", "stroke-width": 2, "stroke-dasharray": d })), label))),
    el("div", { class: "multiples", style: { "grid-template-columns": `repeat(${columns}, 1fr)` } }, el("div", { class: "panel" }, over), el("div", { class: "panel" }, root)));
}

// A chart with its legend beside it, or above it where the page is narrow.
const BESIDE = 230;
const besides = (width) => (width > 760 ? width - BESIDE : width);
const beside = (width, key, chart) => el("div", { class: width > 760 ? "beside" : null }, el("p", { class: "key" }, key), chart);

function spectraFigure(benchmark, groups, width) {
  if (!groups.length) return null;
  const top = Math.max(...groups.map((g) => g.spectrum.values[0]));
  const last = Math.max(...groups.map((g) => g.spectrum.index[g.spectrum.index.length - 1]));
  const series = groups.map((g) => ({ label: g.label, style: g.style, x: g.spectrum.index, y: g.spectrum.values }));
  const verticals = groups.map((g) => ({ x: Math.max(1, g.spectrum.stable_rank), style: g.style }));
  const chart = lineChart({ width: besides(width), height: Math.min(380, Math.max(260, width * 0.4)), xDomain: [1, Math.max(last, 10)], yDomain: [0, top * 1.04], logX: true, series, verticals,
    xLabel: "index of the singular value (log scale)", yLabel: "singular value", format: compact, heading: (i) => `Singular value ${i}`, title: `Spectrum of the gradients on ${benchmark.title}` });
  const key = groups.map((g) => el("span", { class: "item" }, swatch(g.style), el("span", {}, g.label, el("span", { class: "variant" }, `stable rank ${g.spectrum.stable_rank.toFixed(1)}`))));
  return figure("spectra", "Spectrum of the gradients", lead("Spectra.", "Singular values of the gradients that are to be remembered. Dotted: the stable rank, the sum of their squares over the largest square, which says how many directions matter."), beside(width, key, chart));
}

// What sketches of rising rank leave out of the gradients, measured, beside the bounds; both axes logarithmic.
function errorsFigure(benchmark, groups, width) {
  const group = groups[0];
  if (!group) return null;
  const lines = [["bound_product_printed", "Theorem 3 as printed", 17], ["bound_gradient", "Theorem 1", 8], ["error_gradient", "gradient sketch, measured", 0],
    ["bound_product_tight", "Theorem 3, tight", 9], ["error_product", "product sketch, measured", 1], ["optimum", "optimum (SVD)", 6]];
  const power = (value) => (value > 0 ? Math.log10(value) : NaN);
  const percent = (value) => `${compact(Number((100 * 10 ** value).toPrecision(2)))} %`;
  const series = lines.map(([key, label, style]) => ({ label, style, x: group.errors.k, y: group.errors[key].map(power) }));
  const [low, high] = span(series.flatMap((s) => s.y.filter(known)));
  const ticks = [1e-4, 1e-3, 0.01, 0.1].flatMap((d) => [1, 2, 5].map((m) => power(m * d))).concat(0).filter((v) => v >= low - 0.05 && v <= high + 0.05);
  const chart = lineChart({ width: besides(width), height: Math.min(400, Math.max(280, width * 0.42)), xDomain: [group.errors.k[0], group.errors.k[group.errors.k.length - 1]],
    yDomain: [low - 0.05, high + 0.05], logX: true, xTicks: group.errors.k, yTicks: ticks, yTick: percent, series, markAll: true,
    xLabel: "rank k (log scale)", yLabel: "energy left out (log scale)", format: percent, heading: (k) => `Rank ${k}`, title: `Energy left out over the rank on ${benchmark.title}` });
  return figure("errors", "Energy left out over the rank", lead("Errors over rank.", `The share of the energy of ${group.label}’s gradients that lies outside the basis of a sketch of rank k, measured once each, beside the theorems’ bounds on its mean.`),
    beside(width, series.map(keyItem), chart));
}
