// Saving: the page's data as JSON, and a figure as it stands as SVG or PNG, in light colours on white.

function save(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const PAINT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-linecap", "opacity", "font-size", "font-weight", "text-anchor", "paint-order"];

// A copy that has its colours and fonts in itself instead of in the page's style sheet.
function standalone(node) {
  const copy = node.cloneNode(true), twins = copy.querySelectorAll("*");
  node.querySelectorAll("*").forEach((original, i) => {
    const style = getComputedStyle(original);
    if (style.visibility === "hidden") { twins[i].setAttribute("visibility", "hidden"); return; }
    twins[i].removeAttribute("style");
    for (const name of PAINT) {
      const value = style.getPropertyValue(name);
      if (value && value !== "normal") twins[i].setAttribute(name, value);
    }
  });
  for (const name of ["class", "tabindex", "style"]) copy.removeAttribute(name);
  copy.setAttribute("overflow", "visible");
  return copy;
}

// The lines of text inside a node as they are broken on the page: {text, left, bottom, node}.
function linesOf(node) {
  const lines = [], walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT), range = document.createRange();
  while (walker.nextNode()) {
    const text = walker.currentNode;
    for (const word of text.data.matchAll(/\S+/g)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const box = range.getBoundingClientRect(), last = lines[lines.length - 1];
      if (last && last.parent === text.parentElement && Math.abs(last.bottom - box.bottom) < 3) last.text += ` ${word[0]}`;
      else lines.push({ text: word[0], left: box.left, bottom: box.bottom, height: box.height, parent: text.parentElement });
    }
  }
  return lines;
}

// The figure as one SVG: every chart, legend and heading where it stands on the page.
function figureAsSvg(node) {
  const root = document.documentElement, theme = root.dataset.theme;
  tip.dismiss();
  root.dataset.theme = "light";
  try {
    const area = node.getBoundingClientRect(), pad = 16, bottom = node.querySelector("figcaption").getBoundingClientRect().top;
    // What is only there to be pressed leaves no gap: what stands below it moves up.
    const chips = node.querySelector(".chips"), gone = chips ? chips.getBoundingClientRect() : { top: 0, height: 0 };
    const up = (top) => top - area.top + pad - (chips && top > gone.top ? gone.height : 0);
    const width = Math.ceil(area.width + 2 * pad), height = Math.ceil(up(bottom) + pad);
    const out = svg("svg", { xmlns: NAMESPACE, width, height, viewBox: `0 0 ${width} ${height}`, "font-family": getComputedStyle(document.body).fontFamily },
      svg("rect", { width, height, fill: "#fff" }));
    const drawn = (part) => part.getClientRects().length > 0;
    for (const part of [...node.querySelectorAll("svg")].filter(drawn)) {
      const box = part.getBoundingClientRect(), copy = standalone(part);
      for (const [name, value] of [["x", box.left - area.left + pad], ["y", up(box.top)], ["width", box.width], ["height", box.height]]) copy.setAttribute(name, value.toFixed(2));
      out.append(copy);
    }
    for (const part of [...node.querySelectorAll(".head h3, h4, .item, .scale-box > span")].filter(drawn)) {
      for (const line of linesOf(part)) {
        const style = getComputedStyle(line.parent);
        out.append(svg("text", { x: (line.left - area.left + pad).toFixed(2), y: (up(line.bottom) - line.height * 0.24).toFixed(2), fill: style.color, "font-size": style.fontSize, "font-weight": style.fontWeight }, line.text));
      }
    }
    return { text: new XMLSerializer().serializeToString(out), width, height };
  } finally { root.dataset.theme = theme; }
}

async function figureAsPng(node) {
  const { text, width, height } = figureAsSvg(node), image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = el("canvas", { width: 2 * width, height: 2 * height });
  canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

function exportButtons(node, kind) {
  const name = () => [node.closest("[data-benchmark]").dataset.benchmark, kind].join("-").replace(/[^\w-]+/g, "-");
  const button = (text, action) => el("button", { type: "button", class: "export", "aria-label": `Save this figure as ${text}`, onclick: action }, text);
  return el("span", { class: "exports" },
    button("SVG", () => save(`${name()}.svg`, figureAsSvg(node).text, "image/svg+xml")),
    button("PNG", async () => save(`${name()}.png`, await figureAsPng(node))));
}
