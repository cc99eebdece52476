"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const narrow = window.matchMedia("(max-width: 700px)");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let printing = false;
  const views = {};
  const zooms = {}; // by figure: the shown part of the x axis, as fractions of the whole
  const KEEPS_WIDTH = /^(map|step)(-|$)/; // their texts stand at places

  const copied = (value) => JSON.parse(JSON.stringify(value));

  function walk(node, visit) {
    if (Array.isArray(node)) node.forEach((each) => walk(each, visit));
    else if (node && typeof node === "object") {
      visit(node);
      for (const [name, value] of Object.entries(node)) if (name !== "datasets" && name !== "values") walk(value, visit);
    }
  }

  // On a narrow screen panels stand below each other, and as wide as there is room.
  function stacked(spec, name, room) {
    walk(spec, (node) => {
      if (node.hconcat) { node.vconcat = node.hconcat; node.align = "none"; delete node.hconcat; }
      if (node.concat) node.columns = 1;
      if (node.legend && typeof node.legend === "object") node.legend.columns = 1;
      const panel = node.layer || node.mark;
      if (panel && typeof node.width === "number" && !KEEPS_WIDTH.test(name)) node.width = Math.min(node.width, room);
    });
    return spec;
  }

  function zoomed(spec, part) {
    walk(spec, (node) => {
      const scale = node.encoding && node.encoding.x && node.encoding.x.scale;
      if (!scale || !Array.isArray(scale.domain) || typeof scale.domain[0] !== "number") return;
      const [low, high] = scale.domain;
      scale.domain = [low + part[0] * (high - low), low + part[1] * (high - low)];
    });
    return spec;
  }

  const NAMED = {white: "#ffffff", black: "#000000"};
  const rgb = (colour) => (/^#[0-9a-f]{6}$/i.test(NAMED[colour] || colour)
    ? [1, 3, 5].map((at) => parseInt((NAMED[colour] || colour).slice(at, at + 2), 16)) : null);
  const hex = (parts) => "#" + parts.map((part) => Math.round(part).toString(16).padStart(2, "0")).join("");
  const mixed = (from, to, share) => from.map((part, at) => part + share * (to[at] - part));
  const light = (parts) => parts.map((part) => part / 255)
    .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);

  // A colour of the light page on dark paper: pale fields get dark, and what would not be seen gets lighter.
  function onDark(colour, paper, contrast) {
    const parts = rgb(colour);
    if (!parts) return colour;
    const spread = Math.max(...parts) - Math.min(...parts);
    if (spread < 40 && light(parts) > 0.7 && colour !== "white") return hex(mixed(paper, parts, 0.1));
    if (spread < 20 && light(parts) < 0.12) return hex(parts.map((part) => 255 - part)); // black is the ink
    let share = 0;
    while ((light(mixed(parts, [255, 255, 255], share)) + 0.05) / (light(paper) + 0.05) < contrast && share < 1) share += 0.02;
    return share ? hex(mixed(parts, [255, 255, 255], share)) : colour;
  }

  // Colours of cells and of letters on them stay: there black means slower, and bright means fast.
  function darkened(spec) {
    const style = getComputedStyle(document.documentElement);
    const [paper, ink, rule] = ["--paper", "--ink", "--rule"].map((name) => style.getPropertyValue(name).trim());
    const back = rgb(paper);
    walk(spec, (node) => {
      const mark = node.mark && typeof node.mark === "object" ? node.mark : null;
      if (mark && mark.type === "rect" && mark.opacity < 1) mark.opacity *= 0.4; // a field behind others
      if (mark && !["white", "#ffffff"].includes(mark.fill)) {
        for (const name of ["color", "stroke", "fill"]) {
          const isRim = name === "stroke" && mark[name] === "white";
          if (mark[name]) mark[name] = isRim ? paper : onDark(mark[name], back, mark.type === "text" ? 7 : 3.6);
        }
      }
      const isNamed = node.scale && Array.isArray(node.scale.range) && node.type === "nominal";
      if (isNamed) node.scale.range = node.scale.range.map((each) => onDark(each, back, 3.6));
      if (node.title && node.title.color) node.title.color = onDark(node.title.color, back, 7);
    });
    for (const rows of Object.values(spec.datasets || {}))
      for (const row of rows) if (row.colour) row.colour = onDark(row.colour, back, 3.6);
    const text = {labelColor: ink, titleColor: ink};
    const config = spec.config || {};
    spec.config = {
      ...config, axis: {...config.axis, ...text, gridColor: rule, domainColor: rule, tickColor: rule},
      legend: {...config.legend, ...text}, header: {...config.header, ...text}, title: {...config.title, color: ink},
      text: {...config.text, color: ink}, rule: {...config.rule, color: ink},
    };
    return spec;
  }

  async function draw(place) {
    const id = place.dataset.figure;
    const name = id.replace(/^c\d+-/, "");
    let spec = copied(specs[id]);
    if (narrow.matches) spec = stacked(spec, name, Math.max(180, place.clientWidth - 90));
    if (zooms[id]) spec = zoomed(spec, zooms[id]);
    const isDark = dark.matches && !printing;
    if (isDark) spec = darkened(spec);
    if (views[id]) views[id].finalize();
    const result = await vegaEmbed(place, spec, {mode: "vega-lite", renderer: "svg", actions: false,
      tooltip: {theme: isDark ? "dark" : "light"}});
    views[id] = result.view;
  }

  // A saved picture goes into a paper: it has the colours of the light page.
  async function lightView(id) {
    if (!dark.matches) return views[id];
    return (await vegaEmbed(document.createElement("div"), copied(specs[id]), {mode: "vega-lite", renderer: "svg", actions: false})).view;
  }

  async function drawAll() {
    for (const place of document.querySelectorAll(".chart")) {
      try { await draw(place); } catch (problem) { console.error(place.dataset.figure, problem); }
    }
    document.body.dataset.drawn = "all";
  }

  // All rows of a figure, those of one kind together; what only places marks is there too.
  function table(id) {
    const spec = specs[id];
    const sets = Object.values(spec.datasets || {});
    walk(spec, (node) => { if (node.data && Array.isArray(node.data.values)) sets.push(node.data.values); });
    const rows = sets.flat().filter((row) => row && typeof row === "object");
    const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    return {columns, rows: rows.map((row) => columns.map((column) => row[column] ?? ""))};
  }

  function cell(value) {
    let text = String(value).replace(/\s+/g, " ");
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = "'" + text; // no formula for a spreadsheet
    return /[",]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  }

  function csv(id) {
    const {columns, rows} = table(id);
    return [columns, ...rows].map((row) => row.map(cell).join(",")).join("\n") + "\n";
  }

  function save(name, url) {
    const link = document.createElement("a");
    link.href = url;
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
  }

  const blob = (text, type) => URL.createObjectURL(new Blob([text], {type}));

  async function download(id, kind) {
    if (kind === "CSV") save(`${id}.csv`, blob(csv(id), "text/csv"));
    if (kind === "SVG") save(`${id}.svg`, blob(await (await lightView(id)).toSVG(), "image/svg+xml"));
    if (kind === "PNG") save(`${id}.png`, await (await lightView(id)).toImageURL("png", 2));
  }

  function zoom(id, how) {
    const [low, high] = zooms[id] || [0, 1];
    const width = high - low, middle = (low + high) / 2;
    const wanted = {in: width / 2, out: Math.min(1, 2 * width)}[how] || width;
    const centre = {left: middle - width / 2, right: middle + width / 2}[how] ?? middle;
    const start = Math.min(Math.max(0, centre - wanted / 2), 1 - wanted);
    zooms[id] = how === "whole" ? [0, 1] : [start, start + wanted];
    return draw(document.querySelector(`.chart[data-figure="${id}"]`));
  }

  function showRows(details) {
    const place = details.querySelector(".scroll");
    if (!details.open || place.firstChild) return;
    const {columns, rows} = table(details.dataset.of);
    const grid = document.createElement("table");
    const add = (parent, kind, texts) => {
      const line = document.createElement("tr");
      for (const text of texts) line.append(Object.assign(document.createElement(kind), {textContent: text}));
      parent.append(line);
    };
    add(grid.createTHead(), "th", columns);
    const body = grid.createTBody();
    rows.slice(0, 500).forEach((row) => add(body, "td", row));
    place.append(grid);
    if (rows.length > 500) place.append(`The first 500 of ${rows.length} rows; CSV has all.`);
  }

  document.addEventListener("click", (event) => {
    const {save: kind, zoom: how, of} = event.target.dataset || {};
    if (kind) download(of, kind);
    if (how) zoom(of, how);
  });
  document.querySelectorAll("details").forEach((each) => each.addEventListener("toggle", () => showRows(each)));
  narrow.addEventListener("change", drawAll);
  dark.addEventListener("change", drawAll);
  window.addEventListener("beforeprint", () => { printing = true; drawAll(); });
  window.addEventListener("afterprint", () => { printing = false; drawAll(); });
  drawAll();
})();
