// Accuracy matrices as heat maps with their numbers; tasks that are still to come are blank.

const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"]
  .map((text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)));
function shade(share) {
  const place = Math.min(1, Math.max(0, share)) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(place), VIRIDIS.length - 2);
  return `rgb(${VIRIDIS[low].map((v, i) => Math.round(v + (VIRIDIS[low + 1][i] - v) * (place - low))).join(" ")})`;
}
// Two decimals without the zero before them, which every number of a matrix would share.
const short = (value) => value.toFixed(2).replace(/^0/, "").replace("1.00", "1.0");

const MARGIN = { left: 34, top: 4, right: 3, bottom: 34 };
// So wide is a map at least, so that its numbers can be read.
const mapWidth = (T) => MARGIN.left + MARGIN.right + Math.max(T * (T <= 5 ? 25 : T <= 10 ? 22 : 16), 128);

// matrix[i][j], j ≤ i: accuracy on task j after task i.
function heatMap(matrix, [low, high], title, width) {
  const T = matrix.length, { left, top } = MARGIN, size = width - left - MARGIN.right, cell = size / T;
  const height = size + top + MARGIN.bottom, font = Math.min(13, cell * 0.44);
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Accuracy matrix of ${title}` });
  matrix.forEach((row, i) => row.forEach((value, j) => {
    if (!known(value)) return;
    const share = (value - low) / (high - low), x = left + j * cell, y = top + i * cell;
    root.append(svg("rect", { class: "cell", x, y, width: cell + 0.4, height: cell + 0.4, fill: shade(share) }));
    if (font >= 6.5) root.append(svg("text", { class: "number", x: x + cell / 2, y: y + cell / 2 + font * 0.36, "text-anchor": "middle", style: { fill: share < 0.58 ? "#fff" : "#111", "font-size": `${font}px` } }, short(value)));
  }));
  root.append(svg("path", { d: `M${left},${top}V${top + size}H${left + size}`, fill: "none", stroke: "var(--faint)" }));
  const wide = widthOf(String(T)) + 6, every = Math.max(1, Math.ceil(wide / cell));
  for (let i = 0; i < T; i += 1) {
    if (every > 1 && (i + 1) % 5 && i) continue;
    root.append(svg("text", { x: left - 5, y: top + (i + 0.5) * cell + 4, "text-anchor": "end" }, String(i + 1)),
      svg("text", { x: left + (i + 0.5) * cell, y: top + size + 14, "text-anchor": "middle" }, String(i + 1)));
  }
  root.append(svg("text", { class: "title", x: left + size / 2, y: height - 4, "text-anchor": "middle" }, "accuracy on task"),
    svg("text", { class: "title", x: 9, y: top + size / 2, "text-anchor": "middle", transform: `rotate(-90 9 ${top + size / 2})` }, "after task"));
  const focus = svg("rect", { class: "cell-focus", width: cell, height: cell, visibility: "hidden" });
  root.append(focus);
  let at = null;
  function show(i, j, event) {
    const row = Math.min(Math.max(i, 0), T - 1);
    at = [row, Math.min(Math.max(j, 0), row)];
    const area = root.getBoundingClientRect(), zoom = area.width / width;
    focus.setAttribute("x", left + at[1] * cell);
    focus.setAttribute("y", top + at[0] * cell);
    focus.setAttribute("visibility", "visible");
    tip.show(clear, event ? event.clientX : area.left + (left + (at[1] + 1) * cell) * zoom, event ? event.clientY : area.top + (top + (at[0] + 0.5) * cell) * zoom,
      `${title}: ${fraction(matrix[at[0]][at[1]])}`, [{ name: `task ${at[1] + 1}, after training on task ${at[0] + 1}`, value: "" }], event ? null : () => show(...at));
    return true;
  }
  function clear() { focus.setAttribute("visibility", "hidden"); }
  interactive(root, { clear,
    move: (event) => {
      const area = root.getBoundingClientRect(), zoom = width / area.width;
      const j = Math.floor(((event.clientX - area.left) * zoom - left) / cell), i = Math.floor(((event.clientY - area.top) * zoom - top) / cell);
      return i >= 0 && j >= 0 && i < T && j <= i && show(i, j, event);
    },
    key: (name) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [-T, 0], End: [T, 0] }[name];
      // The first key shows the corner at the lower left: the first task, after the last one.
      return Boolean(step) && show(...(at ? [at[0] + step[0], at[1] + step[1]] : [T - 1, 0]));
    } });
  return root;
}

// So many maps are drawn before the button for the others is pressed; `more` says that it was.
const FEW = 12;
function mapsFigure(groups, all, width, more, redraw) {
  if (!all.length) return null;
  const shown = more ? all : all.slice(0, FEW);
  const values = groups.flatMap((g) => g.matrix.flat()).filter(known);
  const [low, high] = [Math.floor(Math.min(...values) * 20) / 20, Math.ceil(Math.max(...values) * 20) / 20];
  const range = [low, high === low ? low + 0.05 : high];
  const least = Math.max(...shown.map((g) => mapWidth(g.matrix.length))), room = 22;
  const columns = Math.max(1, Math.min(Math.floor((width + room) / (least + room)), Math.max(shown.length, 4)));
  const each = Math.min((width - room * (columns - 1)) / columns, 420);
  const scale = svg("svg", { class: "scale", viewBox: "0 0 180 10", width: 180, height: 10, "aria-hidden": "true" },
    Array.from({ length: 60 }, (_, i) => svg("rect", { x: i * 3, y: 0, width: 3.3, height: 10, fill: shade(i / 59) })));
  return figure("matrix", "Accuracy matrices", lead("Accuracy matrices.", "Row i, column j: test accuracy on task j after training on task i, mean over seeds; tasks that are still to come are blank. A column that darkens downwards is a task being forgotten."),
    el("div", { class: "scale-box" }, el("span", {}, range[0].toFixed(2)), scale, el("span", {}, range[1].toFixed(2)), el("span", {}, "test accuracy")),
    el("div", { class: "multiples", style: { "grid-template-columns": `repeat(${columns}, ${each}px)` } }, shown.map((g) => el("div", { class: "panel" },
      el("h4", {}, g.label, el("span", {}, ` · ${fraction(g.row.accuracy)}`)), heatMap(g.matrix, range, g.label, each)))),
    shown.length < all.length ? el("p", {}, el("button", { type: "button", class: "quiet", "data-more": "", onclick: redraw }, `Show the other ${all.length - shown.length} matrices`)) : null);
}
