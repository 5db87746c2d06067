// What index.html does: both sides at growing lengths, their times drawn, each result checked.

import { evaluate, load } from "./scan.js";

// Steps that are measured; index.html?steps=1000,2000 asks for others.
const asked = new URLSearchParams(location.search).get("steps");
const LENGTHS = asked ? asked.split(",").map(Number) : [8, 10, 12, 14, 16, 18, 20].map((power) => 2 ** power);
// After a run as long as this one, longer ones are left out.
const PATIENCE_MILLISECONDS = 5000;
// Arrays of a page stay below what a phone has room for.
const MOST_BYTES = 2 ** 28;
const SHORT_MILLISECONDS = 5;
const ENOUGH_MILLISECONDS = 100;
const $ = (id) => document.getElementById(id);

function element(tag, attributes = {}, text = "") {
  const svg = ["svg", "path", "line", "text", "circle"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

/** Least time of some runs, in milliseconds. Browsers have coarse clocks: short runs are counted. */
async function timed(run) {
  let least = Infinity;
  const begin = performance.now();
  for (let count = 1; ; ) {
    const start = performance.now();
    for (let i = 0; i < count; i++) await run();
    const end = performance.now();
    if (end - start >= SHORT_MILLISECONDS) least = Math.min(least, (end - start) / count);
    else count *= 4;
    if (end - begin > ENOUGH_MILLISECONDS && least < Infinity) return least;
  }
}

async function measure(scan, sizes) {
  const inputs = scan.inputs(sizes);
  const row = { steps: evaluate(scan.manifest.time, sizes), gpu: null, outputs: [], failure: null };
  const want = scan.loop(inputs, sizes, { wide: true });
  row.loop = await timed(() => scan.loop(inputs, sizes));
  if (!scan.adapter) return row;
  const session = scan.session(inputs, sizes);
  try {
    await session.run();
    row.outputs = scan.compare(await session.read(), want, sizes);
    row.gpu = await timed(() => session.run());
  } catch (error) {
    row.failure = error.message;
  } finally {
    session.destroy();
  }
  return row;
}

const milliseconds = (value) => (value === null ? "" : value < 100 ? value.toPrecision(3) : value.toFixed(0));

function verdict({ outputs, failure }) {
  if (failure) return failure;
  const wrong = outputs.filter((one) => !one.right).map((one) => one.name);
  return wrong.length ? `wrong: ${wrong.join(", ")}` : outputs.length ? "right" : "";
}

function show(rows) {
  const body = $("rows");
  body.replaceChildren();
  for (const row of rows) {
    const line = element("tr");
    const error = Math.max(...row.outputs.map((one) => one.error));
    const cells = [
      row.steps.toLocaleString("en"),
      milliseconds(row.loop),
      milliseconds(row.gpu),
      row.outputs.length ? error.toExponential(1) : "",
    ];
    for (const text of cells) line.append(element("td", { class: "n" }, text));
    line.append(element("td", {}, verdict(row)));
    body.append(line);
  }
  draw(rows);
}

/** A power of ten of milliseconds. */
function unit(power) {
  const [times, name] = power >= 3 ? [-3, "s"] : power >= 0 ? [0, "ms"] : [3, "\u00b5s"];
  return `${Number((10 ** (power + times)).toPrecision(1))} ${name}`;
}

/** Times against lengths, both on logarithmic axes. */
function draw(rows) {
  const [width, height, left, right, top, bottom] = [640, 340, 104, 32, 16, 56];
  const sides = [["loop", "l2"], ["gpu", "l1"]];
  const times = rows.flatMap((row) => [row.loop, row.gpu]).filter((time) => time > 0);
  if (!times.length) return;
  const low = Math.floor(Math.log10(Math.min(...times)));
  const high = Math.max(low + 1, Math.ceil(Math.log10(Math.max(...times))));
  const [first, last] = [rows[0].steps, rows[rows.length - 1].steps].map((steps) => Math.log2(Math.max(1, steps)));
  const x = (steps) => left + ((Math.log2(Math.max(1, steps)) - first) / (last - first || 1)) * (width - left - right);
  const y = (time) => top + ((high - Math.log10(time)) / (high - low)) * (height - top - bottom);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  svg.append(element("title", {}, "milliseconds against steps"));
  for (let power = low; power <= high; power++) {
    const at = y(10 ** power);
    svg.append(element("line", { class: "grid", x1: left, x2: width - right, y1: at, y2: at }));
    svg.append(element("text", { x: left - 8, y: at + 5, "text-anchor": "end" }, unit(power)));
  }
  const shown = rows.filter((_, i) => i % 2 === 0);
  for (const { steps } of shown) {
    const power = Math.log2(steps);
    const label = Number.isInteger(power) ? `2^${power}` : steps.toLocaleString("en");
    svg.append(element("text", { x: x(steps), y: height - bottom + 22, "text-anchor": steps === shown[0].steps ? "start" : "middle" }, label));
  }
  svg.append(element("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle" }, "steps"));
  for (const [side, style] of sides) {
    const points = rows.filter((row) => row[side] > 0).map((row) => [x(row.steps), y(row[side])]);
    if (points.length > 1) svg.append(element("path", { class: style, d: `M${points.map((point) => point.join(" ")).join("L")}` }));
    for (const [cx, cy] of points) svg.append(element("circle", { class: style.replace("l", "c"), cx, cy, r: 3.5 }));
  }
  $("chart").replaceChildren(svg);
}

/** Sizes that the page asks for, all but time; and whether that is one of them. */
function fields(scan) {
  const { sizes, length } = scan.manifest;
  for (const [name, value] of Object.entries(sizes)) {
    if (name === length) continue;
    const label = element("label", {}, `${name} `);
    label.append(element("input", { type: "number", min: 1, max: 65536, value, name, required: "" }));
    $("sizes").append(label);
  }
  $("sizes").append(element("button", {}, "Measure again"));
  return () => {
    const all = { ...sizes };
    for (const { name, value } of $("sizes").querySelectorAll("input")) all[name] = Number(value);
    return length === null ? [all] : LENGTHS.map((steps) => ({ ...all, [length]: steps }));
  };
}

const pause = () => new Promise((resolve) => setTimeout(resolve));
let running = 0;

async function main() {
  const scan = await load();
  window.scan = scan;
  document.body.dataset.loaded = Math.round(performance.now());
  $("adapter").textContent = "Compiling kernels for WebGPU.";
  await scan.open();
  const software = scan.software ? ", a driver in software: its times say nothing of a GPU's" : "";
  $("adapter").textContent = scan.adapter ? `WebGPU on ${scan.adapter}${software}` : `The loop alone: ${scan.reason}.`;
  const chosen = fields(scan);
  const all = async () => {
    const mine = ++running;
    const rows = [];
    document.body.dataset.state = "running";
    const limit = scan.adapter ? Math.min(MOST_BYTES, scan.device.limits.maxStorageBufferBindingSize) : MOST_BYTES;
    for (const sizes of chosen().filter((one) => scan.bytes(one) <= limit)) {
      rows.push(await measure(scan, sizes));
      if (mine !== running) return;
      show(rows);
      document.body.dataset.rows = rows.length;
      await pause();
      const { loop, gpu } = rows[rows.length - 1];
      if (!asked && Math.max(loop, gpu) > PATIENCE_MILLISECONDS) break;
    }
    document.body.dataset.state = "done";
  };
  $("sizes").addEventListener("submit", (event) => {
    event.preventDefault();
    all().catch(failed);
  });
  await all();
}

function failed(error) {
  document.body.dataset.state = "failed";
  $("adapter").textContent = `This page failed: ${error.message}`;
  throw error;
}

main().catch(failed);
