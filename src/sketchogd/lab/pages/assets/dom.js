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
// The width of a text in pixels, by which labels are kept apart.
const ruler = document.createElement("canvas").getContext("2d");
function widthOf(text, size = 12) {
  ruler.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}
const byId = (id) => document.getElementById(id);

const MISSING = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);
const fraction = (value) => (known(value) ? value.toFixed(3).replace("-", "−") : MISSING);
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

// As the tables have it: three digits below 100 of a unit, none after the point from there on.
function bytes(value) {
  if (!known(value)) return MISSING;
  const units = ["B", "kB", "MB", "GB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${value >= 100 ? value.toFixed(0) : Number(value.toPrecision(3))} ${units[unit]}`;
}
function compact(value) {
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e5)) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}
// A mean over seeds; a single seed has no deviation.
const withSpread = (mean, std) =>
  known(mean) && known(std) ? [fraction(mean), el("span", { class: "pm" }, ` ± ${fraction(std)}`)] : [fraction(mean)];

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
const swatch = (style, dashes = dash(style)) =>
  svg("svg", { class: "swatch", viewBox: "0 0 14 14", "aria-hidden": "true" },
    svg("line", { x1: -4, x2: 18, y1: 7, y2: 7, stroke: colour(style), "stroke-width": 2, "stroke-dasharray": dashes }),
    marker(style, 7, 7, 4));

// One tooltip for the page. Its owner is the chart that shows it, as the function that takes the chart's marks away.
// One brought up by the keyboard has a `follow`, which shows it again where its chart has scrolled to.
const tip = {
  follow: null,
  owner: null,
  show(owner, clientX, clientY, title, rows, follow = null) {
    if (tip.owner && tip.owner !== owner) tip.dismiss();
    tip.owner = owner;
    tip.follow = follow;
    const box = byId("tip");
    box.replaceChildren(el("b", {}, title), ...rows.map((row) =>
      el("div", {}, el("span", {}, row.style === undefined ? null : swatch(row.style, row.dash), row.name), el("span", {}, row.value))));
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const room = document.documentElement.clientWidth;
    const left = clientX + 16 + width > room ? clientX - 16 - width : clientX + 16;
    // Above the point where there is no room below, so that it does not cover what it is about.
    const top = clientY + 18 + height > window.innerHeight ? clientY - 18 - height : clientY + 18;
    box.style.left = `${Math.max(6, Math.min(left, room - width - 6))}px`;
    box.style.top = `${Math.max(6, top)}px`;
  },
  dismiss() {
    const owner = tip.owner;
    tip.owner = tip.follow = null;
    byId("tip").hidden = true;
    if (owner) owner();
  },
  scrolled() { if (tip.follow) tip.follow(); else tip.dismiss(); },
};

// Pointer, finger and keyboard on a chart that can take the focus. `clear` takes the chart's own marks away.
function interactive(root, { move, clear, key }) {
  root.setAttribute("tabindex", "0");
  const leave = () => { if (tip.owner === clear) tip.dismiss(); };
  root.addEventListener("pointermove", (event) => { if (!move(event)) leave(); });
  root.addEventListener("pointerdown", (event) => {
    root.setAttribute("data-pointed", "");  // the focus that follows needs no outline
    if (!move(event)) leave();
  });
  // A finger leaves when it is lifted; what it tapped stays until something else is tapped or the page scrolls.
  root.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") leave(); });
  root.addEventListener("blur", () => {
    root.removeAttribute("data-pointed");
    leave();
  });
  root.addEventListener("keydown", (event) => {
    root.removeAttribute("data-pointed");
    if (event.key === "Escape") leave();
    else if (key(event.key)) event.preventDefault();
  });
}
document.addEventListener("pointerdown", (event) => {
  if (!(event.target instanceof Element && event.target.closest("svg.chart"))) tip.dismiss();
});
window.addEventListener("scroll", tip.scrolled, { passive: true });
