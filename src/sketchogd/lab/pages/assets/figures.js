// The figures of one benchmark: curves of chosen tasks, accuracy over bytes, accuracy matrices, spectra, errors.

const span = (values) => [Math.min(...values), Math.max(...values)];

function figure(kind, caption, ...content) {
  return el("figure", { "data-kind": kind }, content, el("figcaption", {}, caption));
}
const lead = (title, text) => [el("b", {}, title), ` ${text}`];

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
  const each = Math.max(260, (width - 22 * (columns - 1)) / columns);
  const panels = tasks.map((task, index) => {
    const series = shown.filter((g) => g.curves.tasks[task - 1]).map((g) => ({
      label: g.label, style: g.style, x: g.curves.x, y: g.curves.tasks[task - 1].mean, spread: g.curves.tasks[task - 1].std }));
    return el("div", { class: "panel" }, el("h4", {}, `Task ${task}`), lineChart({
      width: each, height: Math.min(270, each * 0.72), xDomain: [0, T], yDomain, series, title: `Accuracy on task ${task} of ${benchmark.title} along training`,
      xLabel: "tasks trained", yLabel: index % columns === 0 ? "test accuracy" : "", markEnds: true, format: fraction,
      xTicks: linearTicks(0, T, T <= 10 ? T : 5).filter(Number.isInteger), heading: (at) => `Task ${task} after ${compact(Math.round(at * 100) / 100)} of ${T} tasks` }));
  });
  return figure("curves", lead("Accuracy along training.", "Each panel follows the test accuracy of one task from its own training through that of all later tasks; bands are one standard deviation over seeds. All panels have the same axes, which leave out the first steps on a task."),
    el("h3", {}, "Accuracy along training"), el("div", { class: "chips", role: "group", "aria-label": "Tasks shown" }, "Tasks", chips),
    tasks.length ? el("div", { class: "multiples lines" }, panels) : el("p", { class: "note" }, "Choose at least one task."));
}

function paretoFigure(benchmark, groups, shown, width) {
  const sized = shown.filter((g) => known(g.row.nbytes));
  if (!groups.some((g) => known(g.row.nbytes))) return null;
  const all = groups.filter((g) => known(g.row.nbytes));
  const positive = all.map((g) => g.row.nbytes).filter((v) => v > 0);
  const [low, high] = positive.length ? span(positive) : [1e3, 1e6];
  const xDomain = [low / 2.2, Math.max(high * 2.2, low * 10)];
  const yDomain = padded(...span(all.flatMap((g) => [g.row.accuracy - g.row.accuracy_std, g.row.accuracy + g.row.accuracy_std])));
  const zero = all.some((g) => g.row.nbytes === 0);
  const height = Math.min(440, Math.max(300, width * 0.48)), gap = zero ? 56 : 0;
  const { root, x, y, box } = frame({ width, height, xDomain, yDomain, logX: true, gap, xTick: byteTick, right: 24,
    xLabel: "memory kept between tasks (log scale)", yLabel: "average accuracy", title: `Accuracy over bytes on ${benchmark.title}` });
  const at = (g) => (g.row.nbytes > 0 ? x(g.row.nbytes) : box.left + 20);
  if (zero) {
    root.append(svg("text", { x: box.left + 20, y: box.bottom + 17, "text-anchor": "middle" }, "0 B"),
      svg("line", { x1: box.left + 42, x2: box.left + 42, y1: box.top, y2: box.bottom, stroke: "var(--faint)", "stroke-dasharray": "2 4" }));
  }
  const front = [...sized].sort((a, b) => a.row.nbytes - b.row.nbytes || b.row.accuracy - a.row.accuracy)
    .reduce((kept, g) => (kept.length && kept[kept.length - 1].row.accuracy >= g.row.accuracy ? kept : [...kept, g]), []);
  const steps = front.flatMap((g, i) => [...(i ? [[at(g), y(front[i - 1].row.accuracy)]] : []), [at(g), y(g.row.accuracy)]]);
  if (front.length) root.append(svg("path", { d: path([...steps, [box.right, y(front[front.length - 1].row.accuracy)]]), fill: "none", stroke: "var(--faint)", "stroke-width": 1.5 }));
  const taken = sized.map((g) => ({ left: at(g) - 7, right: at(g) + 7, top: y(g.row.accuracy) - 7, bottom: y(g.row.accuracy) + 7 }));
  for (const g of sized) {
    const px = at(g), py = y(g.row.accuracy);
    const rows = [{ name: "average accuracy", value: fraction(g.row.accuracy) + (g.row.n > 1 ? ` ± ${fraction(g.row.accuracy_std)}` : "") },
      { name: "memory", value: bytes(g.row.nbytes) }, { name: "forgetting", value: fraction(g.row.forgetting) }, { name: "seeds", value: String(g.row.n) }];
    const show = (event) => {
      const area = root.getBoundingClientRect(), zoom = area.width / width;
      tip.show(event.clientX || area.left + px * zoom, event.clientY || area.top + py * zoom, g.label, rows, event.type === "focus" ? () => show(event) : null);
    };
    root.append(svg("line", { x1: px, x2: px, y1: y(g.row.accuracy - g.row.accuracy_std), y2: y(g.row.accuracy + g.row.accuracy_std), stroke: colour(g.style), "stroke-width": 1.6 }),
      svg("g", { tabindex: "0", role: "img", "aria-label": `${g.label}: ${rows.map((r) => `${r.name} ${r.value}`).join(", ")}`,
        onpointermove: show, onpointerdown: show, onpointerleave: tip.hide, onfocus: show, onblur: tip.hide },
        svg("circle", { cx: px, cy: py, r: 14, fill: "transparent" }), marker(g.style, px, py, 5.2)));
  }
  for (const g of sized) root.append(placeLabel(g.label, at(g), y(g.row.accuracy), box, taken) || "");
  return figure("pareto", lead("Accuracy over bytes.", "Up and to the left is better. Bars are one standard deviation over seeds; the grey line is the best accuracy reached within each number of bytes. 1 MB = 10⁶ bytes."),
    el("h3", {}, "Accuracy over memory"), root);
}

// A label beside its point where it covers no other point or label; long names are cut, the tooltip has them whole.
function placeLabel(text, px, py, box, taken) {
  const short = text.length > 34 ? `${text.slice(0, 33)}…` : text;
  const w = short.length * 7.3, h = 13;
  const spots = [[9, -8, "start"], [10, 5, "start"], [-9, -8, "end"], [-10, 5, "end"], [9, 17, "start"], [-9, 17, "end"], [0, -13, "middle"], [0, 23, "middle"]];
  for (const [dx, dy, anchor] of spots) {
    const left = px + dx - (anchor === "end" ? w : anchor === "middle" ? w / 2 : 0);
    const spot = { left, right: left + w, top: py + dy - h + 2, bottom: py + dy + 3 };
    if (spot.left < box.left || spot.right > box.right + 10 || spot.top < 0 || spot.bottom > box.bottom) continue;
    if (taken.some((o) => spot.left < o.right && o.left < spot.right && spot.top < o.bottom && o.top < spot.bottom)) continue;
    taken.push(spot);
    return svg("text", { class: "label halo", x: px + dx, y: py + dy, "text-anchor": anchor, "pointer-events": "none" }, short);
  }
  return null;
}

function mapsFigure(benchmark, groups, shown) {
  const seen = groups.flatMap((g) => g.matrix.flatMap((row, i) => row.slice(0, i + 1)));
  const future = groups.flatMap((g) => g.matrix.flatMap((row, i) => row.slice(i + 1).filter(known)));
  const [low, high] = [Math.floor(Math.min(...seen) * 20) / 20, Math.ceil(Math.max(...seen) * 20) / 20];
  const gradient = `linear-gradient(to right, ${Array.from({ length: 9 }, (_, i) => shade(i / 8)).join(", ")})`;
  const below = future.some((value) => value < low) ? "≤ " : "";
  return figure("matrix", lead("Accuracy matrices.", "Row i, column j: test accuracy on task j after training on task i, mean over seeds. A column that darkens downwards is a task being forgotten."),
    el("h3", {}, "Accuracy matrices"),
    el("div", { class: "scale" }, `${below}${low.toFixed(2)}`, el("i", { style: { background: gradient } }), high.toFixed(2), el("span", {}, "test accuracy")),
    el("div", { class: "multiples maps" }, shown.map((g) => el("div", { class: "panel" },
      el("h4", {}, g.label, el("span", {}, ` · ${fraction(g.row.accuracy)}`)), heatMap(g.matrix, [low, high === low ? low + 0.05 : high], g.label)))));
}

function spectraFigure(benchmark, groups, width) {
  if (!groups.length) return null;
  const top = Math.max(...groups.map((g) => g.spectrum.values[0]));
  const last = Math.max(...groups.map((g) => g.spectrum.index[g.spectrum.index.length - 1]));
  const series = groups.map((g) => ({ label: g.label, style: g.style, x: g.spectrum.index, y: g.spectrum.values }));
  const verticals = groups.map((g) => ({ x: Math.max(1, g.spectrum.stable_rank), style: g.style }));
  const chart = lineChart({ width, height: Math.min(380, Math.max(260, width * 0.42)), xDomain: [1, Math.max(last, 10)], yDomain: [0, top * 1.04], logX: true, series, verticals,
    xLabel: "index of the singular value (log scale)", yLabel: "singular value", format: compact, heading: (i) => `Singular value ${i}`, title: `Spectrum of the gradients on ${benchmark.title}` });
  const ranks = groups.map((g) => `${g.label} ${g.spectrum.stable_rank.toFixed(1)}`).join(", ");
  return figure("spectra", lead("Spectra.", `Singular values of the gradients that are to be remembered. Dotted: the stable rank, the sum of their squares over the largest square, which says how many directions matter (${ranks}).`),
    el("h3", {}, "Spectrum of the gradients"), chart);
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
  const chart = lineChart({ width, height: Math.min(400, Math.max(280, width * 0.44)), xDomain: [group.errors.k[0], group.errors.k[group.errors.k.length - 1]],
    yDomain: [low - 0.05, high + 0.05], logX: true, xTicks: group.errors.k.filter((_, i, all) => width > 600 || i % 3 === 0 || i === all.length - 1), yTicks: ticks, yTick: percent, series,
    xLabel: "rank k (log scale)", yLabel: "energy left out (log scale)", format: percent, heading: (k) => `Rank ${k}`, title: `Energy left out over the rank on ${benchmark.title}` });
  const key = el("p", { class: "key" }, series.map((s) => el("span", { class: "name" }, swatch(s.style), s.label)));
  return figure("errors", lead("Errors over rank.", `The share of the energy of ${group.label}’s gradients that lies outside the basis of a sketch of rank k, measured once each, beside the theorems’ bounds on its mean.`),
    el("h3", {}, "Energy left out over the rank"), key, chart);
}
