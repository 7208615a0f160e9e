"use strict";
// Small building blocks: elements, numbers as text, colours and markers of methods, and the tooltip.
// Everything from records becomes text nodes or attribute values, never markup.

const NAMESPACE = "http://www.w3.org/2000/svg";

function build(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [name, text] of Object.entries(value)) node.style.setProperty(name, text);
    else node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}
const el = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => build(document.createElementNS(NAMESPACE, tag), attributes, children);
const byId = (id) => document.getElementById(id);

const MISSING = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);
const fraction = (value) => (known(value) ? value.toFixed(3).replace("-", "−") : MISSING);
const signed = (value) => (known(value) ? (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3) : MISSING);
const plural = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

function bytes(value) {
  if (!known(value)) return MISSING;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
  const digits = unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[unit]}`;
}
const byteTick = (value) => bytes(value).replace(/\.0+ /, " ");
function duration(seconds) {
  if (!known(seconds)) return MISSING;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 99.5) return `${seconds.toFixed(0)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}
function compact(value) {
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}
// A number that differs by seed: the spread is shown only where there is more than one.
const withSpread = (mean, std, n) =>
  n > 1 && known(mean) ? [fraction(mean), el("span", { class: "pm" }, ` ± ${fraction(std)}`)] : [fraction(mean)];

// Eight colours; beyond that the marker and the dash tell methods of one colour apart.
const COLOURS = 8;
const DASHES = ["", "6 3", "2 3"];
const colour = (style) => `var(--c${style % COLOURS})`;
const dash = (style) => DASHES[Math.floor(style / COLOURS) % DASHES.length] || null;

function marker(style, x, y, r) {
  const shape = (style + Math.floor(style / COLOURS)) % 5;
  const paint = { fill: colour(style), class: "dot" };
  const polygon = (points) => svg("polygon", { ...paint, points: points.map(([u, v]) => `${x + u * r},${y + v * r}`).join(" ") });
  if (shape === 1) return polygon([[-0.9, -0.9], [0.9, -0.9], [0.9, 0.9], [-0.9, 0.9]]);
  if (shape === 2) return polygon([[0, -1.2], [1.1, 0.8], [-1.1, 0.8]]);
  if (shape === 3) return polygon([[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]]);
  if (shape === 4) return polygon([[0, 1.2], [1.1, -0.8], [-1.1, -0.8]]);
  return svg("circle", { ...paint, cx: x, cy: y, r });
}
const swatch = (style) =>
  svg("svg", { class: "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" },
    svg("line", { x1: -2, x2: 16, y1: 7, y2: 7, stroke: colour(style), "stroke-width": 2, "stroke-dasharray": dash(style) }),
    marker(style, 7, 7, 4));

// One brought up by the keyboard has a `follow`, which shows it again where its chart has scrolled to.
const tip = {
  follow: null,
  show(clientX, clientY, title, rows, follow = null) {
    tip.follow = follow;
    const box = byId("tip");
    box.replaceChildren(el("b", {}, title), ...rows.map((row) =>
      el("div", {}, el("span", {}, row.style === undefined ? null : swatch(row.style), row.name), el("span", {}, row.value))));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = clientX + 16 + width > window.innerWidth ? clientX - 16 - width : clientX + 16;
    box.style.left = `${Math.max(6, Math.min(left, window.innerWidth - width - 6))}px`;
    box.style.top = `${Math.max(6, Math.min(clientY + 14, window.innerHeight - height - 6))}px`;
  },
  hide() { tip.follow = null; byId("tip").hidden = true; },
  scrolled() { if (tip.follow) tip.follow(); else tip.hide(); },
};
