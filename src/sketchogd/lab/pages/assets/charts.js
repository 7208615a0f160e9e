// Drawing: scales and axes, line charts with a cursor, scatter plots and heat maps, as SVG.

function padded(low, high) {
  const room = Math.max((high - low) * 0.06, 0.01);
  return [Math.max(0, low - room), Math.min(1, high + room)];
}
function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((m) => m * power >= rough * 0.999) || 10);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + 1e-9 * step; i += 1) ticks.push(Number((i * step).toPrecision(12)));
  return ticks;
}
function logTicks(low, high) {
  const ticks = [];
  for (let e = Math.ceil(Math.log10(low) - 1e-9); 10 ** e <= high * 1.0001; e += 1) ticks.push(10 ** e);
  return ticks;
}

let frames = 0;
// The empty plot: grid, tick labels, axis titles. x and y map values to pixels. `gap` leaves room left of the x axis.
function frame(options) {
  const { width, height, xDomain, yDomain, xLabel, yLabel, logX, xTick, yTick, title, gap = 0 } = options;
  const box = { left: 54, right: width - (options.right || 14), top: 8, bottom: height - 40 };
  const start = box.left + gap;
  const along = (value, [low, high]) => (logX ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const x = (value) => start + along(value, xDomain) * (box.right - start);
  const y = (value) => box.bottom - ((value - yDomain[0]) / (yDomain[1] - yDomain[0])) * (box.bottom - box.top);
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const xTicks = options.xTicks || (logX ? logTicks(...xDomain) : linearTicks(...xDomain, Math.min(10, width / 60)));
  for (const value of options.yTicks || linearTicks(...yDomain, 5)) {
    root.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }),
      svg("text", { x: box.left - 7, y: y(value) + 4, "text-anchor": "end" }, yTick ? yTick(value) : compact(value)));
  }
  for (const value of xTicks) {
    root.append(svg("line", { class: "axis", x1: x(value), x2: x(value), y1: box.bottom, y2: box.bottom + 4 }),
      svg("text", { x: x(value), y: box.bottom + 17, "text-anchor": "middle" }, xTick ? xTick(value) : compact(value)));
  }
  root.append(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg("text", { class: "title", x: (box.left + box.right) / 2, y: height - 5, "text-anchor": "middle" }, xLabel));
  if (yLabel) {
    const at = (box.top + box.bottom) / 2;
    root.append(svg("text", { class: "title", x: 11, y: at, "text-anchor": "middle", transform: `rotate(-90 11 ${at})` }, yLabel));
  }
  // Lines are cut at the plot's edges: the first steps on a new task start below what is worth showing.
  frames += 1;
  const clip = `plot-${frames}`;
  root.append(svg("clipPath", { id: clip }, svg("rect", { x: box.left, y: box.top, width: box.right - box.left + 5, height: box.bottom - box.top })));
  const plot = svg("g", { "clip-path": `url(#${clip})` });
  root.append(plot);
  return { root, plot, x, y, box, inverse: (pixel) => {
    const share = Math.min(1, Math.max(0, (pixel - start) / (box.right - start)));
    return logX ? xDomain[0] * (xDomain[1] / xDomain[0]) ** share : xDomain[0] + share * (xDomain[1] - xDomain[0]);
  } };
}

function path(points) {
  let text = "", pen = "M";
  for (const [u, v] of points) {
    if (!known(u) || !known(v)) { pen = "M"; continue; }
    text += `${pen}${u.toFixed(2)},${v.toFixed(2)}`;
    pen = "L";
  }
  return text;
}

// series: {label, style, x, y, spread}; a vertical cursor, by pointer or arrow keys, shows the values at one x.
function lineChart(options) {
  const chart = frame(options);
  const { root, plot, x, y, box } = chart;
  for (const s of options.series) {
    if (!s.spread || !s.spread.some((v) => v > 0)) continue;
    const ok = s.x.map((_, i) => i).filter((i) => known(s.y[i]));
    const edge = (sign, list) => list.map((i) => [x(s.x[i]), y(Math.min(Math.max(s.y[i] + sign * (s.spread[i] || 0), options.yDomain[0]), options.yDomain[1]))]);
    const outline = path([...edge(1, ok), ...edge(-1, [...ok].reverse())]);
    if (outline) plot.append(svg("path", { d: `${outline}Z`, fill: colour(s.style), opacity: 0.13 }));
  }
  for (const line of options.verticals || []) {
    plot.append(svg("line", { x1: x(line.x), x2: x(line.x), y1: box.top, y2: box.bottom, stroke: colour(line.style), "stroke-width": 1.6, "stroke-dasharray": "1.5 4", "stroke-linecap": "round" }));
  }
  for (const s of options.series) {
    plot.append(svg("path", { d: path(s.x.map((v, i) => [x(v), known(s.y[i]) ? y(s.y[i]) : NaN])), fill: "none", stroke: colour(s.style), "stroke-width": 1.8, "stroke-linejoin": "round", "stroke-dasharray": dash(s.style) }));
    const ok = s.x.map((_, i) => i).filter((i) => known(s.y[i]));
    if (options.markEnds && ok.length) plot.append(marker(s.style, x(s.x[ok[ok.length - 1]]), y(s.y[ok[ok.length - 1]]), 3.4));
  }
  const stops = [...new Set(options.series.flatMap((s) => s.x.filter((_, i) => known(s.y[i]))))].sort((a, b) => a - b);
  const cursor = svg("line", { class: "cursor", y1: box.top, y2: box.bottom, visibility: "hidden" });
  root.append(cursor);
  let at = -1;
  function show(index, event) {
    at = Math.min(Math.max(index, 0), stops.length - 1);
    const position = x(stops[at]), area = root.getBoundingClientRect();
    cursor.setAttribute("x1", position);
    cursor.setAttribute("x2", position);
    cursor.setAttribute("visibility", "visible");
    const rows = options.series.map((s) => {
      const i = s.x.indexOf(stops[at]);
      if (i < 0 || !known(s.y[i])) return null;
      const spread = s.spread && s.spread[i] > 0 ? ` ± ${options.format(s.spread[i])}` : "";
      return { style: s.style, name: s.label, value: options.format(s.y[i]) + spread, order: s.y[i] };
    }).filter(Boolean).sort((a, b) => b.order - a.order);
    tip.show(event ? event.clientX : area.left + (position / options.width) * area.width,
      event ? event.clientY : area.top + 20, options.heading(stops[at]), rows, event ? null : () => show(at));
  }
  const hide = () => { cursor.setAttribute("visibility", "hidden"); tip.hide(); };
  const nearest = (event) => {
    const area = root.getBoundingClientRect();
    const value = chart.inverse(((event.clientX - area.left) / area.width) * options.width);
    const far = (stop) => Math.abs(options.logX ? Math.log(stop / value) : stop - value);
    return stops.reduce((best, stop, i) => (far(stop) < far(stops[best]) ? i : best), 0);
  };
  if (stops.length) interactive(root, { move: (event) => show(nearest(event), event), hide,
    key: (name) => {
      const jump = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: stops.length - 1 }[name];
      if (jump !== undefined) show(jump);
      return jump !== undefined;
    } });
  return root;
}

// Pointer and keyboard on a chart that can take the focus.
function interactive(root, { move, hide, key }) {
  root.setAttribute("tabindex", "0");
  root.addEventListener("pointermove", move);
  root.addEventListener("pointerdown", move);
  root.addEventListener("pointerleave", hide);
  root.addEventListener("blur", hide);
  root.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
    else if (key(event.key)) event.preventDefault();
  });
}

const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"]
  .map((text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)));
function shade(share) {
  const place = Math.min(1, Math.max(0, share)) * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(place), VIRIDIS.length - 2);
  return `rgb(${VIRIDIS[low].map((v, i) => Math.round(v + (VIRIDIS[low + 1][i] - v) * (place - low))).join(" ")})`;
}

// matrix[i][j]: accuracy on task j after task i.
function heatMap(matrix, [low, high], title) {
  const T = matrix.length, size = 200, left = 34, top = 4, cell = size / T, height = size + top + 34;
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${size + left + 4} ${height}`, role: "img", "aria-label": title });
  matrix.forEach((row, i) => row.forEach((value, j) => {
    if (!known(value)) return;
    root.append(svg("rect", { x: left + j * cell, y: top + i * cell, width: cell + 0.4, height: cell + 0.4, fill: shade((value - low) / (high - low)) }));
  }));
  root.append(svg("rect", { x: left, y: top, width: size, height: size, fill: "none", stroke: "var(--line)" }));
  const marks = T <= 10 ? matrix.map((_, i) => i).filter((i) => T <= 5 || i % 3 === 0) : matrix.map((_, i) => i).filter((i) => (i + 1) % 5 === 0 || i === 0);
  for (const i of marks) {
    root.append(svg("text", { x: left - 5, y: top + (i + 0.5) * cell + 4, "text-anchor": "end" }, String(i + 1)),
      svg("text", { x: left + (i + 0.5) * cell, y: top + size + 14, "text-anchor": "middle" }, String(i + 1)));
  }
  root.append(svg("text", { class: "title", x: left + size / 2, y: height - 4, "text-anchor": "middle" }, "accuracy on task"),
    svg("text", { class: "title", x: 9, y: top + size / 2, "text-anchor": "middle", transform: `rotate(-90 9 ${top + size / 2})` }, "after task"));
  const focus = svg("rect", { class: "cell-focus", width: cell, height: cell, visibility: "hidden" });
  root.append(focus);
  let at = [T - 1, 0];
  function show(i, j, event) {
    at = [Math.min(Math.max(i, 0), T - 1), Math.min(Math.max(j, 0), T - 1)];
    const area = root.getBoundingClientRect(), zoom = area.width / (size + left + 4);
    focus.setAttribute("x", left + at[1] * cell);
    focus.setAttribute("y", top + at[0] * cell);
    focus.setAttribute("visibility", "visible");
    tip.show(event ? event.clientX : area.left + (left + (at[1] + 1) * cell) * zoom, event ? event.clientY : area.top + at[0] * cell * zoom,
      `${title}: ${fraction(matrix[at[0]][at[1]])}`, [{ name: `task ${at[1] + 1}, after training on task ${at[0] + 1}`, value: "" }], event ? null : () => show(...at));
  }
  const hide = () => { focus.setAttribute("visibility", "hidden"); tip.hide(); };
  interactive(root, { hide,
    move: (event) => {
      const area = root.getBoundingClientRect(), zoom = (size + left + 4) / area.width;
      const j = Math.floor(((event.clientX - area.left) * zoom - left) / cell), i = Math.floor(((event.clientY - area.top) * zoom - top) / cell);
      if (i >= 0 && j >= 0 && i < T && j < T) show(i, j, event); else hide();
    },
    key: (name) => {
      const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0], Enter: [0, 0] }[name];
      if (step) show(at[0] + step[0], at[1] + step[1]);
      return Boolean(step);
    } });
  return root;
}
