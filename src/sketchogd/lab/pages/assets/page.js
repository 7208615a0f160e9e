// The page: reads the data, makes the tables sortable, and draws the figures again when a filter or the width changes.

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

  const text = byId("data").textContent, data = JSON.parse(text);
  byId("json").addEventListener("click", () => save("results.json", text, "application/json"));
  for (const name of document.querySelectorAll(".name[data-style]")) name.prepend(swatch(Number(name.dataset.style)));
  document.querySelectorAll("table").forEach(sortable);
  document.querySelectorAll(".scroll").forEach(hinted);

  const state = { benchmark: null, methods: new Set(), seeds: new Set() };
  const chosen = new Map(), whole = new Set();
  let views = new Map();
  const boxes = new Map(data.benchmarks.map((b) => [b, el("div", { class: "bench", "data-benchmark": b.name }, el("h3", {}, b.title))]));
  byId("panels").append(...boxes.values());
  byId("figures").hidden = !data.groups.length;

  function draw(benchmark, width = byId("panels").clientWidth || 1000) {
    const box = boxes.get(benchmark), here = data.groups.filter((g) => g.benchmark === benchmark.name);
    const groups = here.map((g) => views.get(g)).filter(Boolean), shown = groups.filter((g) => !state.methods.has(g.label));
    const raw = here.filter((g) => !state.methods.has(g.label));
    if (groups.length && !chosen.has(benchmark)) chosen.set(benchmark, defaultTasks(benchmark, groups[0].matrix.length));
    const redraw = (focus) => { draw(benchmark); const next = box.querySelector(focus); if (next) next.focus({ preventScroll: true }); };
    const figures = [
      shown.length ? curvesFigure(benchmark, groups, shown, chosen.get(benchmark), width, redraw) : null,
      shown.length ? paretoFigure(benchmark, groups, shown, width) : null,
      tradeoffFigure(benchmark, shown, width),
      mapsFigure(groups, shown, width, whole.has(benchmark), () => { whole.add(benchmark); redraw("[data-kind=matrix] svg.chart"); }),
      spectraFigure(benchmark, raw.filter((g) => g.spectrum), width),
      errorsFigure(benchmark, raw.filter((g) => g.errors), width),
    ].filter(Boolean);
    tip.dismiss();
    box.replaceChildren(el("h3", {}, benchmark.title), ...(figures.length ? figures : [el("p", { class: "note" }, "Nothing to draw with these filters.")]));
    box.dataset.width = width;
    box.style.minHeight = "";
  }
  // A benchmark's figures are drawn when they come near the window: with hundreds of settings, drawing takes a while.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      near.unobserve(entry.target);
      draw(data.benchmarks.find((b) => boxes.get(b) === entry.target));
    }
  }, { rootMargin: "800px" });
  const open = () => data.benchmarks.filter((b) => !boxes.get(b).hidden);
  const drawAll = (width) => open().forEach((b) => { near.unobserve(boxes.get(b)); draw(b, width); });

  function changed() {
    views = new Map(data.groups.map((g) => [g, seen(g, state.seeds)]));
    const away = (name) => Boolean(state.benchmark) && name !== state.benchmark.name;
    for (const box of document.querySelectorAll("#tables > [data-benchmark]")) {
      updateResults(box, data.groups, views);
      for (const tr of box.querySelectorAll("tbody tr")) tr.hidden = state.methods.has(tr.dataset.method) || !views.get(data.groups[tr.dataset.group]);
      box.hidden = away(box.dataset.benchmark) || [...box.querySelectorAll("tbody tr")].every((tr) => tr.hidden);
    }
    for (const tr of document.querySelectorAll("tr[data-benchmark]")) {
      tr.hidden = away(tr.dataset.benchmark) || state.methods.has(tr.dataset.method) || state.seeds.has(tr.dataset.seed);
    }
    const note = byId("filtered");
    note.hidden = !state.seeds.size && !state.methods.size;
    note.textContent = `Filtered${state.seeds.size ? ": tables and figures show means over the chosen seeds" : ""}. The conclusion, the paired tests and the times are those of all runs.`;
    for (const [b, box] of boxes) {
      box.hidden = away(b.name);
      if (box.hidden) continue;
      if (box.dataset.width) { box.style.minHeight = `${box.offsetHeight}px`; delete box.dataset.width; }
      near.unobserve(box);
      near.observe(box);
    }
  }
  filterBar(data, state, changed);
  changed();
  root.classList.add("ready");

  window.addEventListener("resize", () => {
    for (const b of open()) {
      const box = boxes.get(b);
      if (box.dataset.width && Number(box.dataset.width) !== byId("panels").clientWidth) draw(b);
    }
  });
  window.addEventListener("beforeprint", () => drawAll(1000));
  window.addEventListener("afterprint", () => drawAll());
})();
