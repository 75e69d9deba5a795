"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const { figures, light, dark } = read("drawn-data");
  const texts = read("copied-data");
  const hidden = new Set();
  const root = document.documentElement;

  // ---- colors -----------------------------------------------------------------------------------------------------
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const palette = () => (isDark() ? dark : light);
  const color = (number) => palette()[number % palette().length];
  const probe = document.body.appendChild(document.createElement("span"));
  probe.hidden = true;
  const resolved = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const faint = (hex) => `${hex}1f`;
  const scales = () => ({
    amount: isDark() ? [[0, "#20262e"], [0.5, "#2f7fbd"], [1, "#cfe9ff"]] : [[0, "#f1f4f7"], [0.5, "#4a94c9"], [1, "#00223c"]],
    signed: isDark()
      ? [[0, "#ff8f4a"], [0.5, "#20262e"], [1, "#5aaef0"]]
      : [[0, "#b34000"], [0.5, "#f7f7f7"], [1, "#0063a8"]],
    level: "Viridis",
  });

  // ---- figures -----------------------------------------------------------------------------------------------------
  const clone = (value) => JSON.parse(JSON.stringify(value));
  let isPrinting = false;
  const paper = { wide: 680, plain: 330 }; // pixels that fit across A4 and letter, one or two side by side
  const coarse = matchMedia("(pointer: coarse)").matches;
  const config = { displaylogo: false, displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };

  function smoothed(values, weight) { // the exponential moving average, corrected for its start; gaps stay
    let [sum, total] = [0, 0];
    return values.map((value) => {
      if (value === null) return null;
      [sum, total] = [weight * sum + value, weight * total + 1];
      return sum / total;
    });
  }

  function traces(panel, smoothing) {
    return clone(panel.data).map((trace) => {
      const { row, part, scale, color: number } = trace.meta;
      if (part === "map") return { ...trace, colorscale: scales()[scale], colorbar: { ...trace.colorbar, thickness: 10, outlinewidth: 0 } };
      const own = color(number);
      trace.visible = !hidden.has(row);
      if (smoothing) trace.y = smoothed(trace.y, smoothing);
      if (part === "band") trace.fillcolor = faint(own);
      else trace.marker.color = own;
      if (part === "line") trace.line = { color: own, width: 2 };
      if (trace.error_y) Object.assign(trace.error_y, { color: own, thickness: 1, width: 0 });
      return trace;
    });
  }

  function height(panel) {
    const map = panel.data.find((trace) => trace.meta.part === "map");
    if (!map) return 300;
    return map.type === "contour" ? 360 : Math.min(640, Math.max(240, 110 + 20 * map.z.length));
  }

  function layout(panel, isZoomed) {
    const [ink, soft, line, ground] = ["--ink", "--soft", "--line", "--ground"].map(resolved);
    const axis = (own, room) => ({
      ...own, automargin: true, exponentformat: "e", gridcolor: line, linecolor: line, zerolinecolor: line, tickfont: { color: soft },
      title: { ...own.title, standoff: room, font: { color: soft, size: 12 } },
    });
    const { xaxis, yaxis, ...rest } = clone(panel.layout);
    if (isZoomed) Object.assign(yaxis, { range: null, rangemode: "normal", autorange: true });
    return {
      ...rest, height: height(panel), ...(isPrinting ? { width: paper[panel.shape] } : { autosize: true }),
      margin: { l: 48, r: 12, t: 8, b: 40 }, font: { color: ink, size: 12, family: "inherit" },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", xaxis: axis(xaxis, 8), yaxis: axis(yaxis, 8),
      hoverlabel: { bgcolor: ground, bordercolor: line, font: { color: ink } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink }, dragmode: coarse ? false : "zoom",
    };
  }

  const isHidden = (panel) => panel.rows.length > 0 && panel.rows.every((row) => hidden.has(row));

  function draw(holder) {
    const { views, start } = figures[holder.dataset.figure];
    const panels = views[holder.dataset.view ?? start].panels;
    const grid = holder.querySelector(".panels");
    const smoothing = Number(holder.querySelector("input")?.value ?? 0);
    const isZoomed = holder.querySelector(".zoom[aria-pressed=true]") !== null;
    while (grid.children.length > panels.length) {
      Plotly.purge(grid.lastChild.lastChild);
      grid.lastChild.remove();
    }
    while (grid.children.length < panels.length) {
      const panel = grid.appendChild(document.createElement("div"));
      panel.append(document.createElement("h4"), document.createElement("div"));
    }
    panels.forEach((panel, i) => {
      const place = grid.children[i];
      place.className = `panel ${panel.shape}`;
      place.hidden = isHidden(panel);
      place.firstChild.textContent = panel.title;
      if (!place.hidden) Plotly.react(place.lastChild, traces(panel, smoothing), layout(panel, isZoomed), config);
    });
    holder.dataset.drawn = "yes";
  }

  const holders = [...document.querySelectorAll("[data-figure]")];
  const redraw = () => holders.filter((holder) => holder.dataset.drawn).forEach(draw);
  const drawAll = () => holders.forEach(draw);
  const near = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) {
      if (isIntersecting && !target.dataset.drawn) draw(target);
    }
  }, { rootMargin: "600px" });

  for (const holder of holders) {
    const buttons = [...holder.querySelectorAll("[data-view]")];
    for (const button of buttons) {
      button.addEventListener("click", () => {
        holder.dataset.view = button.dataset.view;
        buttons.forEach((other) => other.setAttribute("aria-pressed", other === button));
        holder.querySelectorAll("[data-ending]").forEach((link) => {
          link.href = `${button.dataset.stem}.${link.dataset.ending}`;
        });
        draw(holder);
      });
    }
    const [zoom, slider] = [holder.querySelector(".zoom"), holder.querySelector("input")];
    zoom?.addEventListener("click", () => {
      zoom.setAttribute("aria-pressed", zoom.getAttribute("aria-pressed") === "false");
      draw(holder);
    });
    slider?.addEventListener("input", () => {
      slider.nextElementSibling.value = slider.value;
      draw(holder);
    });
    near.observe(holder);
  }

  for (const button of document.querySelectorAll(".legend button")) {
    button.addEventListener("click", () => {
      const { row } = button.dataset;
      if (!hidden.delete(row)) hidden.add(row);
      button.setAttribute("aria-pressed", !hidden.has(row));
      redraw();
    });
  }

  // ---- light and dark ----------------------------------------------------------------------------------------------
  const switcher = document.getElementById("theme");
  const stored = { // a browser may refuse a local file its storage
    get: () => { try { return localStorage.getItem("report-theme") ?? ""; } catch { return ""; } },
    set: (theme) => { try { localStorage.setItem("report-theme", theme); } catch { /* for this visit only */ } },
  };
  function paint(theme) {
    if (theme) root.dataset.theme = theme;
    else delete root.dataset.theme;
    switcher.querySelector("span").textContent = theme || "auto";
    switcher.setAttribute("aria-label", `Colors: ${theme || "as the system has them"}`);
    document.querySelectorAll(".swatch").forEach((swatch) => { swatch.style.background = color(Number(swatch.dataset.color)); });
    redraw();
  }
  const following = { "": "light", light: "dark", dark: "" };
  switcher.addEventListener("click", () => {
    const theme = following[root.dataset.theme ?? ""];
    stored.set(theme);
    paint(theme);
  });
  prefersDark.addEventListener("change", () => paint(root.dataset.theme ?? ""));
  addEventListener("beforeprint", () => {
    isPrinting = true;
    paint("light");
    drawAll();
  });
  addEventListener("afterprint", () => {
    isPrinting = false;
    paint(stored.get());
  });

  // ---- tables ------------------------------------------------------------------------------------------------------
  const key = (cell) => (cell.dataset.key === undefined ? cell.textContent.trim() : Number(cell.dataset.key));
  function compare(a, b) { // numbers before texts, empty cells last
    if (a === "" || b === "") return (a === "") - (b === "");
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
    return typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true });
  }
  for (const header of document.querySelectorAll("thead th")) {
    header.firstElementChild.addEventListener("click", () => {
      const table = header.closest("table");
      const at = header.cellIndex;
      const rows = [...table.tBodies[0].rows].map((row) => ({ row, value: key(row.cells[at]) }));
      const first = rows.some(({ value }) => typeof value === "number") ? "descending" : "ascending";
      const other = { ascending: "descending", descending: "ascending" };
      const direction = other[header.getAttribute("aria-sort")] ?? first;
      const sign = direction === "ascending" ? 1 : -1;
      rows.sort((a, b) => (a.value === "" || b.value === "" ? 1 : sign) * compare(a.value, b.value));
      table.tBodies[0].append(...rows.map(({ row }) => row));
      table.querySelectorAll("[aria-sort]").forEach((each) => each.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", direction);
    });
  }

  async function copied(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // not every browser lets a local file use the clipboard so
      const area = document.body.appendChild(document.createElement("textarea"));
      area.value = text;
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      await copied(texts[button.dataset.table][button.dataset.form]);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }

  // ---- where the reader is -----------------------------------------------------------------------------------------
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const place = new IntersectionObserver((seen) => {
    for (const { target, isIntersecting } of seen) links.get(target.id).toggleAttribute("aria-current", isIntersecting);
  }, { rootMargin: "-20% 0px -70% 0px" });
  document.querySelectorAll("main section").forEach((section) => place.observe(section));

  paint(stored.get());
  window.report = { drawAll, isDark };
})();
