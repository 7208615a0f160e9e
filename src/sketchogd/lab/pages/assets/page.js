// The page: reads the data, fills the sections, and redraws the figures when a choice or the width changes.

(() => {
  const root = document.documentElement;
  const remembered = (() => { try { return localStorage.getItem("sketchogd-theme"); } catch { return null; } })();
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  let theme = remembered;
  function paint() {
    const dark = theme ? theme === "dark" : system.matches;
    root.dataset.theme = dark ? "dark" : "light";
    byId("theme").textContent = dark ? "Light" : "Dark";
    byId("theme").setAttribute("aria-label", `Switch to ${dark ? "light" : "dark"} colours`);
  }
  system.addEventListener("change", paint);
  byId("theme").addEventListener("click", () => {
    theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("sketchogd-theme", theme); } catch { /* a page from a file may have no storage */ }
    paint();
  });
  paint();

  const data = JSON.parse(byId("data").textContent);
  const titles = new Map(data.benchmarks.map((b) => [b.name, b.title]));
  const scored = data.groups.filter((g) => g.row);
  const of = (benchmark, groups) => groups.filter((g) => g.benchmark === benchmark.name);
  const hidden = new Set();
  const chosen = new Map();
  let current = data.benchmarks[0];

  const runs = data.groups.reduce((sum, g) => sum + g.runs.length, 0);
  const facts = [[runs === 1 ? "run" : "runs", runs], [data.benchmarks.length === 1 ? "benchmark" : "benchmarks", data.benchmarks.length], ["methods and settings", new Set(data.groups.map((g) => g.label)).size]];
  if (data.ended) facts.push(["newest run", new Date(data.ended * 1000).toISOString().slice(0, 10)]);
  byId("facts").append(...facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));

  byId("tables").append(...data.benchmarks.filter((b) => of(b, scored).length).map((b) => resultTable(b, of(b, scored), data.reference.tables)));
  byId("table-notes").append(...(scored.length ? notes(scored, data.reference.tables) : ["No finished run has accuracies yet."]));

  if (data.pairs.length) byId("pairs").append(pairTable(data.pairs, titles)); else byId("pair-box").hidden = true;

  const boxes = new Map(data.benchmarks.map((b) => [b, el("div", { class: "bench", "data-benchmark": b.name, hidden: "" })]));
  byId("panels").append(...boxes.values());
  const choices = data.benchmarks.map((b) => el("button", { type: "button", role: "radio", onclick: () => choose(b), onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const index = (data.benchmarks.indexOf(b) + step + data.benchmarks.length) % data.benchmarks.length;
    choose(data.benchmarks[index]);
    choices[index].focus();
  } }, b.title));
  byId("benchmarks").append(...choices);

  function draw(benchmark, width = byId("panels").clientWidth || 1000) {
    const box = boxes.get(benchmark), groups = of(benchmark, scored), shown = groups.filter((g) => !hidden.has(g.label));
    const spectra = of(benchmark, data.groups).filter((g) => g.spectrum && !hidden.has(g.label));
    if (groups.length && !chosen.has(benchmark)) chosen.set(benchmark, defaultTasks(benchmark, groups[0].matrix.length));
    const redraw = (focus) => { draw(benchmark); const next = box.querySelector(focus); if (next) next.focus(); };
    box.replaceChildren(...[
      el("h3", {}, benchmark.title),
      groups.length ? curvesFigure(benchmark, groups, shown, chosen.get(benchmark), width, redraw) : null,
      groups.length ? paretoFigure(benchmark, groups, shown, width) : null,
      groups.length ? mapsFigure(benchmark, groups, shown) : null,
      spectraFigure(benchmark, spectra, width),
      errorsFigure(benchmark, of(benchmark, data.groups).filter((g) => g.errors && !hidden.has(g.label)), width),
    ].filter(Boolean));
    box.dataset.width = width;
  }
  function legend() {
    const labels = [...new Map(of(current, data.groups).map((g) => [g.label, g])).values()];
    byId("legend").replaceChildren(...labels.map((g) =>
      el("button", { type: "button", "aria-pressed": String(!hidden.has(g.label)), title: "show or hide", onclick: () => {
        if (!hidden.delete(g.label)) hidden.add(g.label);
        for (const [b, box] of boxes) if (box.dataset.width) draw(b);
        const index = labels.indexOf(g);
        legend();
        byId("legend").children[index].focus();
      } }, swatch(g.style), g.label)));
  }
  function choose(benchmark) {
    tip.hide();
    current = benchmark;
    choices.forEach((button, i) => {
      const on = data.benchmarks[i] === benchmark;
      button.setAttribute("aria-checked", String(on));
      button.tabIndex = on ? 0 : -1;
    });
    for (const [b, box] of boxes) box.hidden = b !== benchmark;
    draw(benchmark);
    legend();
  }
  if (current) choose(current); else byId("figures").hidden = true;

  window.addEventListener("resize", () => {
    if (current && Number(boxes.get(current).dataset.width) !== byId("panels").clientWidth) draw(current);
  });
  window.addEventListener("beforeprint", () => {
    for (const b of boxes.keys()) draw(b, 1000);
  });
  window.addEventListener("afterprint", () => { for (const b of boxes.keys()) draw(b); });
  window.addEventListener("scroll", tip.scrolled, { passive: true });

  if (scored.length) byId("timings").append(el("div", { class: "table" }, timingTable(scored, titles)));
  byId("run-table").append(runTable(data.groups, titles));
  byId("machines").append(el("div", { class: "cards" }, data.machines.map(machineCard)));
  if (data.left_out.length) {
    byId("left-out").append(el("h3", {}, "Runs left out"), el("p", { class: "note" }, "Not part of any number on this page."),
      el("div", { class: "table" }, sortableTable("Runs left out", [
        { title: "Run", class: "left", value: (r) => r.run, cell: (r) => r.run },
        { title: "Reason", class: "left", value: (r) => r.reason, cell: (r) => r.reason },
      ], data.left_out)));
  }
})();
