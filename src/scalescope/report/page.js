"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const narrow = window.matchMedia("(max-width: 700px)");
  const views = {};
  const zooms = {}; // by figure: the shown part of the x axis, as fractions of the whole
  const KEEPS_WIDTH = /^(map|landscape|step|autotune_landscape)(-|$)/; // their texts stand at places

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

  async function draw(place) {
    const id = place.dataset.figure;
    const name = id.replace(/^c\d+-/, "");
    let spec = copied(specs[id]);
    if (narrow.matches) spec = stacked(spec, name, Math.max(180, place.clientWidth - 90));
    if (zooms[id]) spec = zoomed(spec, zooms[id]);
    if (views[id]) views[id].finalize();
    const result = await vegaEmbed(place, spec, {mode: "vega-lite", renderer: "svg", actions: false});
    views[id] = result.view;
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
    if (kind === "SVG") save(`${id}.svg`, blob(await views[id].toSVG(), "image/svg+xml"));
    if (kind === "PNG") save(`${id}.png`, await views[id].toImageURL("png", 2));
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
  drawAll();
})();
