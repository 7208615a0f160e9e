// The tables stand in the page; here they become sortable, get markers, and follow the filters.

function sortable(table) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells], rows = [...body.rows];
  heads.forEach((head, index) => {
    if (!head.hasAttribute("data-sort")) return;
    const button = el("button", { type: "button", onclick: () => sort(head, index) }, ...head.childNodes);
    head.replaceChildren(button);
  });
  function sort(head, index) {
    const now = head.getAttribute("aria-sort");
    const down = now === "ascending" || (!now && head.hasAttribute("data-descending"));
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const values = new Map(rows.map((row) => [row, row.cells[index].dataset.value]));
    const numeric = [...values.values()].every((value) => value === undefined || (value.trim() !== "" && Number.isFinite(Number(value))));
    const missing = (value) => value === undefined;
    body.append(...[...rows].sort((a, b) => {
      const x = values.get(a), y = values.get(b);
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      const order = numeric ? x - y : x.localeCompare(y);
      return down ? -order : order;
    }));
  }
}

// The mean as a dot with one standard deviation; the published value as a bar over two of its own.
const comparable = (row) => known(row.published) && !row.shortened;
function rangeMark(row, low, high) {
  const width = 150, height = 22, middle = height / 2, std = row.accuracy_std || 0;
  const x = (value) => 6 + ((value - low) / (high - low)) * (width - 12);
  const parts = [svg("line", { x1: 0, x2: width, y1: middle, y2: middle, stroke: "var(--line)" })];
  if (comparable(row)) {
    const left = x(row.published - 2 * row.published_std), right = x(row.published + 2 * row.published_std);
    parts.push(svg("rect", { x: left, width: Math.max(right - left, 2), y: middle - 6, height: 12, rx: 2, fill: "var(--faint)", opacity: 0.38 }),
      svg("line", { x1: x(row.published), x2: x(row.published), y1: middle - 7, y2: middle + 7, stroke: "var(--soft)", "stroke-width": 2 }));
  }
  if (std) parts.push(svg("line", { x1: x(row.accuracy - std), x2: x(row.accuracy + std), y1: middle, y2: middle, stroke: "var(--ink)", "stroke-width": 1.6 }));
  parts.push(svg("circle", { cx: x(row.accuracy), cy: middle, r: 4.2, fill: "var(--ink)" }));
  return svg("svg", { class: "range", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, parts);
}

// Replace the numbers of one result table by those of the seeds shown. groups: all of the page; views: shown, by group.
function updateResults(box, groups, views) {
  const rows = [...box.querySelectorAll("tbody tr")];
  const shown = rows.map((row) => views.get(groups[row.dataset.group])).filter(Boolean).map((view) => view.row);
  if (!shown.length) return;
  const ends = shown.flatMap((row) => [row.accuracy - (row.accuracy_std || 0), row.accuracy + (row.accuracy_std || 0)]
    .concat(comparable(row) ? [row.published - 2 * row.published_std, row.published + 2 * row.published_std] : []));
  const [low, high] = padded(Math.min(...ends), Math.max(...ends));
  const best = Math.max(...shown.map((row) => row.accuracy));
  box.querySelector("thead [data-key=range]").replaceChildren(
    el("span", { class: "ends" }, el("span", {}, low.toFixed(2)), el("span", {}, high.toFixed(2))));
  for (const tr of rows) {
    const view = views.get(groups[tr.dataset.group]);
    if (!view) continue;
    const row = view.row, cell = (key) => tr.querySelector(`[data-key=${key}]`);
    cell("range").replaceChildren(rangeMark(row, low, high));
    for (const key of ["accuracy", "forgetting", "learning"]) {
      cell(key).dataset.value = row[key];
      cell(key).replaceChildren(el("span", { class: key === "accuracy" && row[key] === best ? "best" : null }, withSpread(row[key], row[`${key}_std`])));
    }
    cell("n").replaceChildren(String(row.n));
    cell("n").dataset.value = row.n;
  }
}

// A hint to scroll where a table is wider than its box, and a shadow on the side where there is more of it.
function hinted(box) {
  const hint = box.nextElementSibling;
  const update = () => {
    const more = box.scrollWidth - box.clientWidth > 4, left = box.scrollWidth - box.clientWidth - box.scrollLeft;
    box.classList.toggle("more", more && left > 4);
    if (hint && hint.classList.contains("hint")) hint.hidden = !more;
  };
  box.addEventListener("scroll", update, { passive: true });
  window.addEventListener("resize", update);
  new ResizeObserver(update).observe(box);
  update();
}
