// Drawing: scales and axes, and line charts with a cursor, as SVG.

const span = (values) => [Math.min(...values), Math.max(...values)];
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

// Labels along an axis that do not touch: of [position, text], from the first on, those with room after the last kept.
function apart(labels) {
  let end = -Infinity;
  return labels.filter(([position, text]) => {
    const half = widthOf(text) / 2;
    if (position - half < end + 8) return false;
    end = position + half;
    return true;
  });
}

let frames = 0;
// The empty plot: grid, tick labels, axis titles. x and y map values to pixels. `gap` leaves room left of the x axis.
function frame(options) {
  const { width, height, xDomain, yDomain, xLabel, yLabel, logX, title, gap = 0 } = options;
  const xTick = options.xTick || compact, yTick = options.yTick || compact;
  const yTicks = options.yTicks || linearTicks(...yDomain, 5);
  const margin = Math.max(...yTicks.map((value) => widthOf(yTick(value))), 20) + 14 + (yLabel ? 18 : 0);
  const box = { left: margin, right: width - (options.right || 16), top: 8, bottom: height - 40 };
  const start = box.left + gap;
  const along = (value, [low, high]) => (logX ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const x = (value) => start + along(value, xDomain) * (box.right - start);
  const y = (value) => box.bottom - ((value - yDomain[0]) / (yDomain[1] - yDomain[0])) * (box.bottom - box.top);
  const root = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  const xTicks = options.xTicks || (logX ? logTicks(...xDomain) : linearTicks(...xDomain, Math.min(10, width / 60)));
  for (const value of yTicks) {
    root.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }),
      svg("text", { x: box.left - 7, y: y(value) + 4, "text-anchor": "end" }, yTick(value)));
  }
  for (const value of xTicks) root.append(svg("line", { class: "axis", x1: x(value), x2: x(value), y1: box.bottom, y2: box.bottom + 4 }));
  const zero = gap ? [[box.left + 20, "0 B"]] : [];
  for (const [position, text] of apart([...zero, ...xTicks.map((value) => [x(value), xTick(value)])])) {
    const over = Math.max(0, position + widthOf(text) / 2 - width + 2);
    root.append(svg("text", { x: position - over, y: box.bottom + 17, "text-anchor": "middle" }, text));
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
  root.append(svg("clipPath", { id: clip }, svg("rect", { x: box.left - 5, y: box.top, width: box.right - box.left + 10, height: box.bottom - box.top })));
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
    plot.append(svg("path", { d: path(s.x.map((v, i) => [x(v), known(s.y[i]) ? y(s.y[i]) : NaN])), fill: "none", stroke: colour(s.style), "stroke-width": 1.8, "stroke-linejoin": "round", "stroke-dasharray": s.dash || dash(s.style) }));
    const ok = s.x.map((_, i) => i).filter((i) => known(s.y[i]));
    for (const i of options.markAll ? ok : options.markEnds ? ok.slice(-1) : []) plot.append(marker(s.style, x(s.x[i]), y(s.y[i]), 3.4));
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
      return { style: s.style, dash: s.dash, name: s.label, value: options.format(s.y[i]) + spread, order: s.y[i] };
    }).filter(Boolean).sort((a, b) => b.order - a.order);
    tip.show(clear, event ? event.clientX : area.left + (position / options.width) * area.width,
      event ? event.clientY : area.top + 20, options.heading(stops[at]), rows, event ? null : () => show(at));
    return true;
  }
  function clear() { cursor.setAttribute("visibility", "hidden"); }
  const nearest = (event) => {
    const area = root.getBoundingClientRect();
    const value = chart.inverse(((event.clientX - area.left) / area.width) * options.width);
    const far = (stop) => Math.abs(options.logX ? Math.log(stop / value) : stop - value);
    return stops.reduce((best, stop, i) => (far(stop) < far(stops[best]) ? i : best), 0);
  };
  if (stops.length) interactive(root, { move: (event) => show(nearest(event), event), clear,
    key: (name) => {
      const jump = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: stops.length - 1 }[name];
      if (jump !== undefined) show(jump);
      return jump !== undefined;
    } });
  return root;
}

// Points of a plot that show their values: the one nearest to the pointer or finger, or the next by arrow keys.
// points: {px, py, label, rows}, in the order of the keys; width: that of the viewBox.
function pickable(root, points, width) {
  const ring = svg("circle", { class: "cell-focus", r: 10, visibility: "hidden" });
  root.append(ring);
  let at = -1;
  function show(index, event) {
    at = Math.min(Math.max(index, 0), points.length - 1);
    const { px, py, label, rows } = points[at], area = root.getBoundingClientRect(), zoom = area.width / width;
    ring.setAttribute("cx", px);
    ring.setAttribute("cy", py);
    ring.setAttribute("visibility", "visible");
    tip.show(clear, area.left + px * zoom, area.top + py * zoom, label, rows, event ? null : () => show(at));
    return true;
  }
  function clear() { ring.setAttribute("visibility", "hidden"); }
  function move(event) {
    const area = root.getBoundingClientRect(), zoom = width / area.width;
    const far = (p) => Math.hypot((event.clientX - area.left) * zoom - p.px, (event.clientY - area.top) * zoom - p.py);
    const nearest = points.reduce((best, p, i) => (far(p) < far(points[best]) ? i : best), 0);
    return far(points[nearest]) <= (event.pointerType === "touch" ? 30 : 16) && show(nearest, event);
  }
  if (points.length) interactive(root, { move, clear, key: (name) => {
    const jump = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: points.length - 1 }[name];
    return jump !== undefined && show(jump);
  } });
}

// A label beside its point where it is short enough and covers nothing that is taken, or none.
function placeLabel(text, px, py, box, taken) {
  if (text.length > (box.right - box.left < 500 ? 22 : 40)) return null;
  const w = widthOf(text, 12.5) + 2, h = 13;
  const spots = [[9, -8, "start"], [10, 5, "start"], [-9, -8, "end"], [-10, 5, "end"], [9, 17, "start"], [-9, 17, "end"], [0, -13, "middle"], [0, 23, "middle"]];
  for (const [dx, dy, anchor] of spots) {
    const left = px + dx - (anchor === "end" ? w : anchor === "middle" ? w / 2 : 0);
    const spot = { left, right: left + w, top: py + dy - h + 2, bottom: py + dy + 3 };
    if (spot.left < box.left || spot.right > box.right + 10 || spot.top < 0 || spot.bottom > box.bottom) continue;
    if (taken.some((o) => spot.left < o.right && o.left < spot.right && spot.top < o.bottom && o.top < spot.bottom)) continue;
    taken.push(spot);
    return svg("text", { class: "label halo", x: px + dx, y: py + dy, "text-anchor": anchor, "pointer-events": "none" }, text);
  }
  return null;
}
