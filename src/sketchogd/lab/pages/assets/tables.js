// Sortable tables: results beside the published values, timings, and every run.

// columns: {title, value(row) for sorting, cell(row) as nodes, class, help}; rows keep the order given until sorted.
function sortableTable(caption, columns, rows) {
  const body = el("tbody");
  const heads = columns.map((column, index) =>
    el("th", { scope: "col", class: column.class, title: column.help },
      column.value ? el("button", { type: "button", onclick: () => sort(index) }, column.title) : column.title));
  const fill = (list) => body.replaceChildren(...list.map((row) =>
    el("tr", {}, columns.map((column, index) =>
      el(index ? "td" : "th", { scope: index ? null : "row", class: column.class }, column.cell(row))))));
  function sort(index) {
    const down = heads[index].getAttribute("aria-sort") === "ascending"
      || (!heads[index].hasAttribute("aria-sort") && columns[index].descending);
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[index].setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = columns[index].value;
    const missing = (x) => x === null || x === undefined;
    fill([...rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (missing(x) || missing(y)) return missing(x) - missing(y);
      const order = typeof x === "string" || typeof y === "string" ? String(x).localeCompare(String(y)) : x - y;
      return down ? -order : order;
    }));
  }
  fill(rows);
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "hidden-text" }, caption), el("thead", {}, el("tr", {}, heads)), body));
}

function methodName(group) {
  const variant = group.row && group.row.variant;
  const title = variant ? group.label.slice(0, -variant.length - 3) : group.label;
  return el("span", { class: "name" }, swatch(group.style),
    el("span", {}, el("span", { class: title.length < 19 ? "solid" : null }, title), group.keeps_examples ? el("sup", { title: "keeps training examples" }, "†") : null,
      variant ? el("span", { class: "variant" }, variant) : null));
}

// A published value for the same protocol.
const comparable = (row) => known(row.published) && !row.shortened;

// Ours as a dot with one standard deviation; the published value as a bar over two of its own.
function rangeCell(row, low, high) {
  const width = 150, height = 22, middle = height / 2;
  const x = (value) => 6 + ((value - low) / (high - low)) * (width - 12);
  const parts = [svg("line", { x1: 0, x2: width, y1: middle, y2: middle, stroke: "var(--line)" })];
  if (comparable(row)) {
    const left = x(row.published - 2 * row.published_std), right = x(row.published + 2 * row.published_std);
    parts.push(svg("rect", { x: left, width: Math.max(right - left, 2), y: middle - 6, height: 12, rx: 2, fill: "var(--faint)", opacity: 0.38 }),
      svg("line", { x1: x(row.published), x2: x(row.published), y1: middle - 7, y2: middle + 7, stroke: "var(--soft)", "stroke-width": 2 }));
  }
  parts.push(svg("line", { x1: x(row.accuracy - row.accuracy_std), x2: x(row.accuracy + row.accuracy_std), y1: middle, y2: middle, stroke: "var(--ink)", "stroke-width": 1.6 }),
    svg("circle", { cx: x(row.accuracy), cy: middle, r: 4.2, fill: "var(--ink)" }));
  return svg("svg", { class: "range", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, parts);
}

function differenceCell(row) {
  if (row.shortened && known(row.published)) return [el("span", { class: "dim", title: row.shortened }, "n/a")];
  if (!known(row.difference)) return [el("span", { class: "dim" }, MISSING)];
  if (!row.outside) return [signed(row.difference)];
  const side = row.difference > 0 ? "up" : "down";
  return [el("span", { class: `flag ${side}` }, signed(row.difference),
    el("span", { class: "mark", "aria-hidden": "true" }, side === "up" ? "▲" : "▼"),
    el("span", { class: "hidden-text" }, side === "up" ? " above the error bars" : " below the error bars"))];
}

// All bytes kept; below, those of them that lie on the host.
function memoryCell(group) {
  const { nbytes, host_nbytes: host } = group.row;
  return [bytes(nbytes), host ? el("span", { class: "variant" }, `host ${bytes(host)}`) : null];
}

// tables: titles of the reference's tables by name.
function resultTable(benchmark, groups, tables) {
  const rows = groups.map((group) => group.row);
  const ends = rows.flatMap((row) => [row.accuracy - row.accuracy_std, row.accuracy + row.accuracy_std]
    .concat(comparable(row) ? [row.published - 2 * row.published_std, row.published + 2 * row.published_std] : []));
  const [low, high] = padded(Math.min(...ends), Math.max(...ends));
  const best = Math.max(...rows.map((row) => row.accuracy));
  const columns = [
    { title: "Method", class: "left", value: (g) => g.label, cell: methodName },
    { title: el("span", { class: "ends" }, el("span", {}, low.toFixed(2)), el("span", {}, high.toFixed(2))), class: "wide", cell: (g) => rangeCell(g.row, low, high), help: "dot: ours ± one standard deviation; bar: published ± two" },
    { title: "Accuracy", descending: true, value: (g) => g.row.accuracy, cell: (g) => el("span", { class: g.row.accuracy === best ? "best" : null }, withSpread(g.row.accuracy, g.row.accuracy_std, g.row.n)) },
    { title: "Published", descending: true, value: (g) => g.row.published, cell: (g) => known(g.row.published) ? el("span", { class: comparable(g.row) ? null : "dim", title: tables[g.row.published_table] }, withSpread(g.row.published, g.row.published_std, 5)) : el("span", { class: "dim" }, MISSING) },
    { title: "Difference", descending: true, value: (g) => g.row.difference, cell: (g) => differenceCell(g.row) },
    { title: "Forgetting", value: (g) => g.row.forgetting, cell: (g) => withSpread(g.row.forgetting, g.row.forgetting_std, g.row.n) },
    { title: "Learning", descending: true, value: (g) => g.row.learning, cell: (g) => withSpread(g.row.learning, g.row.learning_std, g.row.n) },
    { title: "Memory", value: (g) => g.row.nbytes, cell: memoryCell },
    { title: "Seeds", descending: true, value: (g) => g.row.n, cell: (g) => String(g.row.n) },
  ];
  return el("div", { class: "table", "data-benchmark": benchmark.name },
    el("h3", {}, benchmark.title), sortableTable(`Results on ${benchmark.title}`, columns, groups));
}

function notes(groups, tables) {
  const bar = groups.some((g) => g.row && comparable(g.row)) ? ", the bar published ± two" : "";
  const list = [];
  if (groups.some((g) => g.keeps_examples)) list.push("† keeps training examples of earlier tasks; the other methods do not.");
  if (groups.some((g) => g.row && known(g.row.published))) {
    const [usual, ...others] = Object.keys(tables);
    const from = (name) => [...new Set(groups.filter((g) => g.row && g.row.published_table === name).map((g) => g.label))];
    const exceptions = others.filter((name) => from(name).length).map((name) => `; ${tables[name]} for ${from(name).join(", ")}`);
    list.push(`Published values are the paper’s ${tables[usual]}${exceptions.join("")}.`);
  }
  const shortened = [...new Set(groups.filter((g) => g.row && known(g.row.published)).map((g) => g.row.shortened).filter(Boolean))];
  if (shortened.length) list.push(`Not compared (n/a), because the runs depart from the published protocol: ${shortened.join("; ")}.`);
  return [el("span", { class: "wide" }, `Beside the names, the dot is ours ± one standard deviation${bar}. `), list.join(" ")];
}

function timingTable(groups, titles) {
  const phases = [...new Set(groups.flatMap((g) => Object.keys(g.timings)))].filter((name) => name !== "total");
  return sortableTable("Time of a run", [
    { title: "Benchmark", class: "left", value: (g) => titles.get(g.benchmark), cell: (g) => titles.get(g.benchmark) },
    { title: "Method", class: "left", value: (g) => g.label, cell: methodName },
    { title: "Time of a run", value: (g) => g.row.seconds, cell: (g) => duration(g.row.seconds) },
    ...phases.map((name) => ({ title: name, value: (g) => g.timings[name], cell: (g) => duration(g.timings[name]) })),
    { title: "Memory kept", value: (g) => g.row.nbytes, cell: (g) => bytes(g.row.nbytes) },
    { title: "Device", class: "left", value: (g) => g.runs[0].device || "", cell: (g) => [...new Set(g.runs.map((run) => run.device || MISSING))].join(", ") },
  ], groups);
}

function pairTable(pairs, titles) {
  const p = (value) => (value < 0.001 ? "< 0.001" : value.toFixed(3));
  return sortableTable("Paired tests", [
    { title: "Benchmark", class: "left", value: (r) => titles.get(r.benchmark), cell: (r) => titles.get(r.benchmark) },
    { title: "Best", class: "left", value: (r) => r.best, cell: (r) => r.best },
    { title: "Against", class: "left", value: (r) => r.other, cell: (r) => r.other },
    { title: "Difference", descending: true, value: (r) => r.difference, cell: (r) => signed(r.difference) },
    { title: "p (t)", value: (r) => r.p_t, cell: (r) => p(r.p_t) },
    { title: "p (sign flips)", value: (r) => r.p_sign_flip, cell: (r) => p(r.p_sign_flip) },
    { title: "Seeds", value: (r) => r.n, cell: (r) => String(r.n) },
  ], pairs);
}

function runTable(groups, titles) {
  const rows = groups.flatMap((group) => group.runs.map((run) => ({ group, ...run })));
  return sortableTable("Every run", [
    { title: "Run", class: "left", value: (r) => r.run, cell: (r) => r.run },
    { title: "Benchmark", class: "left", value: (r) => titles.get(r.group.benchmark), cell: (r) => titles.get(r.group.benchmark) },
    { title: "Method", class: "left", value: (r) => r.group.label, cell: (r) => r.group.label },
    { title: "Seed", value: (r) => r.seed, cell: (r) => (r.seed === null ? MISSING : String(r.seed)) },
    { title: "Accuracy", descending: true, value: (r) => r.accuracy, cell: (r) => (known(r.accuracy) ? r.accuracy.toFixed(4) : MISSING) },
    { title: "Time", value: (r) => r.seconds, cell: (r) => duration(r.seconds) },
  ], rows);
}

function machineCard(machine) {
  const device = machine.device, versions = machine.versions;
  const facts = [["Device", [device.kind, device.name].filter(Boolean).join(" · ")], ["Threads", device.threads && `${device.threads} of ${device.cpus} CPUs`],
    ...Object.entries(versions).map(([name, version]) => [name, version])];
  return el("div", { class: "card" }, el("h3", {}, plural(machine.runs, "run")),
    el("dl", {}, facts.filter(([, value]) => value).map(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]).flat()));
}
