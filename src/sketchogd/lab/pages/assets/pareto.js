// Accuracy over bytes, with two frontiers: the best of all methods, and the best of those that keep no examples.

// The groups that no other beats with as few bytes, by rising bytes.
function frontier(groups) {
  return [...groups].sort((a, b) => a.row.nbytes - b.row.nbytes || b.row.accuracy - a.row.accuracy)
    .reduce((kept, g) => (kept.length && kept[kept.length - 1].row.accuracy >= g.row.accuracy ? kept : [...kept, g]), []);
}

function paretoFigure(benchmark, groups, shown, width) {
  const all = groups.filter((g) => known(g.row.nbytes)), sized = shown.filter((g) => known(g.row.nbytes));
  if (!sized.length) return null;
  const positive = all.map((g) => g.row.nbytes).filter((v) => v > 0);
  const [low, high] = positive.length ? span(positive) : [1e3, 1e6];
  const xDomain = [low / 2.2, Math.max(high * 2.2, low * 10)];
  const std = (g) => g.row.accuracy_std || 0;
  const yDomain = padded(...span(all.flatMap((g) => [g.row.accuracy - std(g), g.row.accuracy + std(g)])));
  const zero = all.some((g) => g.row.nbytes === 0);
  const height = Math.min(440, Math.max(320, width * 0.48)), gap = zero ? 56 : 0;
  const { root, x, y, box } = frame({ width, height, xDomain, yDomain, logX: true, gap, xTick: bytes, right: 24,
    xLabel: "memory kept between tasks (log scale)", yLabel: "average accuracy", title: `Accuracy over bytes on ${benchmark.title}` });
  const at = (g) => (g.row.nbytes > 0 ? x(g.row.nbytes) : box.left + 20);
  if (zero) root.append(svg("line", { x1: box.left + 42, x2: box.left + 42, y1: box.top, y2: box.bottom, stroke: "var(--faint)", "stroke-dasharray": "2 4" }));
  const free = sized.filter((g) => !g.keeps_examples), stored = free.length < sized.length;
  const kinds = [[free, "front", "methods that keep no examples"], ...(stored ? [[sized, "front all", "all methods"]] : [])].filter(([list]) => list.length);
  const walls = [];
  for (const [list, look] of kinds) {
    const front = frontier(list), last = front[front.length - 1];
    const steps = front.flatMap((g, i) => [...(i ? [[at(g), y(front[i - 1].row.accuracy)]] : []), [at(g), y(g.row.accuracy)]]);
    steps.push([box.right, y(last.row.accuracy)]);
    steps.slice(1).forEach(([u, v], i) => walls.push({ left: Math.min(u, steps[i][0]), right: Math.max(u, steps[i][0]), top: Math.min(v, steps[i][1]) - 1, bottom: Math.max(v, steps[i][1]) + 1 }));
    root.append(svg("path", { class: look, d: path(steps) }));
  }
  const points = sized.map((g) => ({ g, px: at(g), py: y(g.row.accuracy), label: g.label, rows: [
    { name: "average accuracy", value: fraction(g.row.accuracy) + (known(g.row.accuracy_std) ? ` ± ${fraction(g.row.accuracy_std)}` : "") },
    { name: "memory", value: bytes(g.row.nbytes) }, { name: "forgetting", value: fraction(g.row.forgetting) }, { name: "seeds", value: String(g.row.n) }] }))
    .sort((a, b) => a.g.row.nbytes - b.g.row.nbytes || b.g.row.accuracy - a.g.row.accuracy);
  // Labels cover neither points nor error bars, nor the frontiers.
  const taken = [...points.map(({ g, px, py }) => ({ left: px - 7, right: px + 7, top: Math.min(py - 7, y(g.row.accuracy + std(g))), bottom: Math.max(py + 7, y(g.row.accuracy - std(g))) })), ...walls];
  for (const { g, px, py } of points) {
    if (std(g)) root.append(svg("line", { x1: px, x2: px, y1: y(g.row.accuracy - std(g)), y2: y(g.row.accuracy + std(g)), stroke: colour(g.style), "stroke-width": 1.6 }));
    root.append(marker(g.style, px, py, 5.2));
  }
  // On the frontiers first: where there is no room for all names, these are the ones to read.
  const fronts = new Set(kinds.flatMap(([list]) => frontier(list))), unnamed = [];
  for (const { g, px, py } of [...points].sort((a, b) => fronts.has(b.g) - fronts.has(a.g))) {
    const label = placeLabel(g.label, px, py, box, taken);
    if (label) root.append(label); else unnamed.push(g);
  }
  pickable(root, points, width);
  const line = (look) => svg("svg", { class: "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" }, svg("path", { class: look, d: "M-4,7H18" }));
  const bars = sized.some((g) => std(g)) ? " Bars are one standard deviation over seeds." : "";
  const two = kinds.length > 1 ? "; the dashed line counts the methods that keep training examples as well" : "";
  return figure("pareto", "Accuracy over memory", lead("Accuracy over bytes.", `Up and to the left is better.${bars} The line is the best accuracy reached within each number of bytes${kinds[0][0] === free ? " without keeping examples" : ""}${two}. 1 MB = 10⁶ bytes.`),
    el("p", { class: "key" }, kinds.map(([, look, name]) => el("span", { class: "item" }, line(look), `best of ${name}`))), root, legend(unnamed, "Points without a name"));
}
