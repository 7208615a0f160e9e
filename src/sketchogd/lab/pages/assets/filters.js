// The filters: one benchmark or all, which methods, which seeds. They hold for the tables, the figures and the runs.

// state: {benchmark: its record or null for all, methods: hidden labels, seeds: hidden seeds}; changed() redraws.
function filterBar(data, state, changed) {
  const unique = (values) => [...new Set(values)];
  const seeds = unique(data.groups.flatMap((g) => g.runs.map(seedName))).sort((a, b) => a - b || String(a).localeCompare(String(b)));
  const here = () => data.groups.filter((g) => !state.benchmark || g.benchmark === state.benchmark.name);
  const bar = byId("filters");

  const choices = data.benchmarks.length > 1 ? [null, ...data.benchmarks] : [];
  const radios = choices.map((choice, i) => el("button", { type: "button", role: "radio", onclick: () => choose(choice), onkeydown: (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = (i + step + choices.length) % choices.length;
    choose(choices[next]);
    radios[next].focus();
  } }, choice ? choice.title : "All benchmarks"));
  function choose(choice) {
    state.benchmark = choice;
    refresh();
    changed();
  }

  // A disclosure of check boxes; `entries()` gives [name, content] of what can be hidden now.
  function picker(id, title, hidden, entries) {
    const summary = el("summary", {}), list = el("div", { class: "checks" }), box = el("details", { id, class: "picker" }, summary, list);
    const update = () => {
      const found = entries(), shown = found.filter(([name]) => !hidden.has(name)).length;
      summary.replaceChildren(`${title} `, el("span", { class: "count" }, shown === found.length ? `all ${found.length}` : `${shown} of ${found.length}`));
      return found;
    };
    const set = (names, on) => {
      for (const name of names) if (on) hidden.delete(name); else hidden.add(name);
      for (const input of list.querySelectorAll("input")) input.checked = !hidden.has(input.value);
      update();
      reset.hidden = pristine();
      changed();
    };
    box.refresh = () => {
      const found = update(), names = found.map(([name]) => name);
      list.replaceChildren(el("span", { class: "both" },
        el("button", { type: "button", class: "quiet", onclick: () => set(names, true) }, "all"), el("button", { type: "button", class: "quiet", onclick: () => set(names, false) }, "none")),
        ...found.map(([name, content]) => {
          const input = el("input", { type: "checkbox", value: name, onchange: () => set([name], input.checked) });
          input.checked = !hidden.has(name);
          return el("label", {}, input, content);
        }));
    };
    return box;
  }
  const methods = picker("methods", "Methods", state.methods, () =>
    [...new Map(here().map((g) => [g.label, g])).values()].map((g) => [g.label, el("span", { class: "item" }, swatch(g.style), g.label)]));
  const ofSeeds = seeds.length > 1 ? picker("seeds", "Seeds", state.seeds, () => seeds.map((seed) => [seed, seed])) : null;
  const reset = el("button", { type: "button", class: "quiet", id: "reset", hidden: "", onclick: () => {
    state.benchmark = null;
    state.methods.clear();
    state.seeds.clear();
    refresh();
    changed();
    methods.firstChild.focus();
  } }, "Reset");
  const pristine = () => !state.benchmark && !state.methods.size && !state.seeds.size;
  function refresh() {
    radios.forEach((button, i) => {
      button.setAttribute("aria-checked", String(choices[i] === state.benchmark));
      button.tabIndex = choices[i] === state.benchmark ? 0 : -1;
    });
    methods.refresh();
    if (ofSeeds) ofSeeds.refresh();
    reset.hidden = pristine();
  }
  // One picker at a time, closed by Escape or a click elsewhere, so that it never hides the page for long.
  const pickers = [methods, ofSeeds].filter(Boolean);
  for (const box of pickers) {
    box.addEventListener("toggle", () => { if (box.open) for (const other of pickers) if (other !== box) other.open = false; });
    box.addEventListener("keydown", (event) => { if (event.key === "Escape") { box.open = false; box.firstChild.focus(); } });
  }
  document.addEventListener("pointerdown", (event) => { if (!bar.contains(event.target)) for (const box of pickers) box.open = false; });
  bar.replaceChildren(...[
    radios.length ? el("div", { id: "benchmarks", class: "segments", role: "radiogroup", "aria-label": "Benchmark" }, radios) : null,
    el("div", { class: "pickers" }, ...pickers, reset),
    el("p", { id: "filtered", class: "note", hidden: "" }),
  ].filter(Boolean));
  refresh();
}
