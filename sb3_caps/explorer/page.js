"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const LEFT = 92, RIGHT = 16;
const at = (id) => document.getElementById(id);
let episode, step = 0, timer = null, heads = [];

function node(parent, name, attributes = {}, text = "") {
  const svg = name === "svg" || parent.namespaceURI.endsWith("svg");
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return parent.appendChild(made);
}
const shown = (value) => String(Number(value.toPrecision(3)));
const steps = () => episode.options.length;
const width = () => Math.max(260, at("right").clientWidth);
const x = (t) => LEFT + (width() - LEFT - RIGHT) * t / steps();
const short = (name) => name.length > 13 ? name.slice(0, 12) + "…" : name;

function ticks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const size = [1, 2, 5, 10].map((part) => part * power).find((each) => each >= rough * 0.999);
  const found = [];
  for (let n = Math.ceil(low / size - 1e-9); n * size <= high + size * 1e-9; n++) found.push(Number((n * size).toPrecision(12)));
  return found;
}

function area(id, height) {
  const host = at(id);
  host.replaceChildren();
  const svg = node(host, "svg", { height, viewBox: `0 0 ${width()} ${height}` });
  const seek = (event) => {
    const place = event.clientX - svg.getBoundingClientRect().left;
    go(Math.floor((place - LEFT) / (width() - LEFT - RIGHT) * steps()));
  };
  svg.onpointerdown = (event) => { svg.setPointerCapture(event.pointerId); seek(event); };
  svg.onpointermove = (event) => { if (event.buttons) seek(event); };
  return svg;
}

function axes(svg, height, low, high) {
  const y = (value) => height - 20 - (height - 28) * (value - low) / (high - low);
  for (const value of ticks(low, high, height > 100 ? 5 : 2)) {
    node(svg, "line", { class: "rule", x1: LEFT, x2: width() - RIGHT, y1: y(value), y2: y(value) });
    node(svg, "text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, shown(value));
  }
  for (const t of ticks(0, steps(), 8)) if (Number.isInteger(t)) {
    node(svg, "text", { x: x(t), y: height - 4, "text-anchor": "middle" }, t);
  }
  return y;
}

function head(svg, height) {
  heads.push(node(svg, "line", { class: "head", y1: 0, y2: height }));
}

// The value of each option in each step; a state's value is drawn in the middle of its step
function lines(id, rows, low, high) {
  const height = 190, svg = area(id, height), y = axes(svg, height, low, high);
  const point = (t, o) => `${x(t + 0.5).toFixed(1)},${y(rows[t][o]).toFixed(1)}`;
  const order = data.options.map((_, o) => o).sort((a, b) => data.options[a].source - data.options[b].source);
  for (const o of order) {
    const way = rows.map((_, t) => point(t, o)).join(" ");
    node(svg, "polyline", { class: "line", points: way, stroke: data.options[o].colour, "data-option": o });
  }
  for (const o of order) {
    const parts = rows.map((_, t) => {
      if (episode.options[t] !== o) return "";
      const last = t + 1 === rows.length || episode.options[t + 1] !== o;
      return `M${x(t).toFixed(1)},${y(rows[t][o]).toFixed(1)}L${point(t, o)}L${last ? `${x(t + 1).toFixed(1)},${y(rows[t][o]).toFixed(1)}` : point(t + 1, o)}`;
    });
    if (parts.some(Boolean)) node(svg, "path", { class: "taken", d: parts.join(""), stroke: data.options[o].colour, "data-option": o });
  }
  head(svg, height);
}

function timeline() {
  // Every source has a row, also when it is not used; there may be many primitives
  const rows = data.options.map((_, o) => o).filter((o) => data.options[o].source || episode.options.includes(o));
  const height = 18 * rows.length + 4, svg = area("timeline", height);
  rows.forEach((o, row) => {
    const y = 18 * row + 2;
    node(svg, "line", { class: "rule", x1: LEFT, x2: width() - RIGHT, y1: y + 8, y2: y + 8 });
    node(svg, "text", { x: LEFT - 6, y: y + 12, "text-anchor": "end" }, short(data.options[o].name));
    for (let t = 0, start; t < steps(); t = Math.max(t + 1, start)) {
      start = t;
      while (start < steps() && episode.options[start] === o) start++;
      if (start > t) node(svg, "rect", { x: x(t), y, width: x(start) - x(t), height: 15, fill: data.options[o].colour, class: "bar" });
    }
  });
  head(svg, height);
}

function rewards() {
  const height = 90, svg = area("rewards", height);
  const low = Math.min(0, ...episode.rewards), high = Math.max(0, ...episode.rewards) || (low === 0 ? 1 : 0);
  const y = axes(svg, height, low, high);
  episode.rewards.forEach((reward, t) => {
    if (reward) node(svg, "rect", {
      x: x(t), y: y(Math.max(reward, 0)), width: Math.max(1, x(t + 1) - x(t) - 0.5),
      height: Math.abs(y(reward) - y(0)), fill: reward > 0 ? "#2ea067" : "#d62839",
    });
  });
  head(svg, height);
}

function drawMap() {
  const map = data.map;
  at("map").hidden = !map;
  document.body.classList.toggle("mapped", Boolean(map));
  if (!map) return;
  const size = 20, rows = map.walls.length, columns = map.walls[0].length, host = at("map").firstElementChild;
  host.replaceChildren();
  const svg = node(host, "svg", { viewBox: `0 0 ${columns * size} ${rows * size}` });
  const turns = [270, 90, 180, 0];
  const caption = at("map").lastElementChild;
  const general = "A cell's colour: a source that does what the model does there; of several, the one that does so in most cells. Gray: only the single action does.";
  caption.textContent = general;
  for (let cell = 0; cell < rows * columns; cell++) {
    const row = Math.floor(cell / columns), column = cell % columns;
    const box = { x: column * size, y: row * size, width: size, height: size };
    if (map.walls[row][column]) { node(svg, "rect", { ...box, fill: "#3a4052" }); continue; }
    const action = map.taken[cell], option = data.options[map.simplest[cell]];
    const group = node(svg, "g", { "data-cell": cell });
    node(group, "rect", { ...box, fill: "white" });
    if (cell === map.goal) {
      node(group, "circle", { cx: box.x + size / 2, cy: box.y + size / 2, r: 7, fill: "#d62839" });
      continue;
    }
    node(group, "rect", { ...box, fill: option.colour, opacity: option.source ? 0.6 : 0.35 });
    node(group, "path", { d: "M-6 0H5M1 -4L5 0L1 4", fill: "none", stroke: "#2b2f3a", "stroke-width": 1.4,
      transform: `translate(${box.x + size / 2} ${box.y + size / 2}) rotate(${turns[action]})` });
    const same = data.options.filter((_, o) => map.actions[cell][o] === action).map((each) => each.name);
    group.onpointerenter = () => { caption.textContent = `Highest value: ${data.options[map.best[cell]].name}. What is done here, by: ${same.join(", ")}.`; };
    group.onpointerleave = () => { caption.textContent = general; };
  }
  for (let line = 0; line < 2; line++) node(svg, "polyline", { class: "way", "pointer-events": "none" });
  node(svg, "circle", { class: "agent", r: 6, fill: "#2b2f3a", stroke: "white", "stroke-width": 2, "pointer-events": "none" });
}

function moveOnMap() {
  if (!data.map) return;
  const places = episode.places.slice(0, step + 1).map(([row, column]) => [column * 20, row * 20]);
  for (const way of document.querySelectorAll("#map .way")) way.setAttribute("points", places.join(" "));
  const agent = document.querySelector("#map .agent"), [cx, cy] = places[places.length - 1];
  agent.setAttribute("cx", cx);
  agent.setAttribute("cy", cy);
}

function table() {
  const body = at("table").tBodies[0];
  body.replaceChildren();
  data.options.forEach((option, o) => {
    const row = node(body, "tr"), first = node(row, "td");
    node(first, "i", { style: `background:${option.colour}` });
    first.append(option.name);
    for (let column = 0; column < 3; column++) node(row, "td");
    row.lastChild.textContent = episode.options.filter((each) => each === o).length;
    row.onpointerenter = () => point(o, true);
    row.onpointerleave = () => point(o, false);
  });
}

function point(option, on) {
  for (const svg of document.querySelectorAll("#values svg, #terminations svg")) {
    svg.classList.toggle("pointed", on);
    for (const line of svg.querySelectorAll(`[data-option="${option}"]`)) line.classList.toggle("shown", on);
  }
}

const ENDS = {
  terminated: "The episode ended here.", truncated: "The time limit ended the episode here.", cut: "The recording stops here.",
};

function go(to) {
  step = Math.max(0, Math.min(steps(), to));
  at("slider").value = step;
  at("where").textContent = `step ${step} of ${steps()}`;
  // At the end there is a picture, but nothing is done any more
  const over = step === steps(), t = over ? step - 1 : step, active = episode.options[t], option = data.options[active];
  const frame = episode.frames[step];
  at("frame").hidden = frame === undefined;
  if (frame !== undefined) at("frame").src = data.frames[frame];
  const sum = episode.rewards.slice(0, step).reduce((total, reward) => total + reward, 0);
  const now = at("now");
  now.replaceChildren();
  if (over) now.append(ENDS[episode.end]);
  else {
    let since = t;
    while (since > 0 && episode.options[since - 1] === active) since--;
    now.append("Active: ");
    node(now, "b", { style: `background:${option.colour}` }, option.name);
    now.append(` (step ${t - since + 1} with it)`);
    node(now, "br");
    const action = episode.actions[t];
    const done = Array.isArray(action) ? `(${action.flat(9).map(shown).join(", ")})` : data.actions[action];
    now.append(`Action: ${done}, reward ${shown(episode.rewards[t])}`);
  }
  node(now, "br");
  now.append(`Return so far: ${shown(sum)}`);
  [...at("table").tBodies[0].rows].forEach((row, o) => {
    row.classList.toggle("active", !over && o === active);
    row.cells[1].textContent = shown(episode.values[t][o]);
    row.cells[2].textContent = episode.terminations[t][o].toFixed(3);
  });
  for (const line of heads) for (const end of ["x1", "x2"]) line.setAttribute(end, x(over ? step : step + 0.5));
  moveOnMap();
}

function draw() {
  heads = [];
  timeline();
  const all = episode.values.flat();
  let low = all.reduce((a, b) => Math.min(a, b)), high = all.reduce((a, b) => Math.max(a, b));
  if (high - low < 1e-9) [low, high] = [low - 0.5, high + 0.5];
  lines("values", episode.values, low, high);
  lines("terminations", episode.terminations, 0, 1);
  rewards();
  go(step);
}

function show(number) {
  episode = data.episodes[number];
  at("episode").value = number;
  at("slider").max = steps();
  table();
  drawMap();
  step = 0;
  draw();
}

function play(on) {
  clearInterval(timer);
  timer = null;
  at("play").textContent = on ? "❚❚ pause" : "▶ play";
  if (!on) return;
  if (step === steps()) go(0);
  timer = setInterval(() => { go(step + 1); if (step === steps()) play(false); }, 1000 / at("speed").value);
}

// The next step, in one direction, whose option is another than the one before it
function change(direction) {
  let t = step + direction;
  while (t > 0 && t < steps() && episode.options[t] === episode.options[t - 1]) t += direction;
  go(t);
}

at("title").textContent = data.title;
at("ending").textContent = data.ending;
at("unit").textContent = data.unit;
data.episodes.forEach((each, number) => {
  const sum = each.rewards.reduce((total, reward) => total + reward, 0);
  node(at("episode"), "option", { value: number }, `${number + 1}: return ${shown(sum)} in ${each.options.length} steps`);
});
at("episode").onchange = () => { play(false); show(Number(at("episode").value)); };
at("slider").oninput = () => { play(false); go(Number(at("slider").value)); };
at("play").onclick = () => play(timer === null);
at("speed").onchange = () => { if (timer !== null) play(true); };
at("frame").onload = () => at("frame").classList.toggle("large", at("frame").naturalWidth > 300);
const KEYS = {
  ArrowLeft: (event) => go(step - (event.shiftKey ? 10 : 1)), ArrowRight: (event) => go(step + (event.shiftKey ? 10 : 1)),
  ArrowUp: () => change(-1), ArrowDown: () => change(1), Home: () => go(0), End: () => go(steps()), " ": () => play(timer === null),
};
document.onkeydown = (event) => {
  if (!(event.key in KEYS) || event.target.tagName === "SELECT") return;
  event.preventDefault();
  if (event.key !== " ") play(false);
  KEYS[event.key](event);
};
window.onresize = draw;
// page.html#2,30 opens episode 2 at step 30
const [first = 1, start = 0] = location.hash.slice(1).split(",").filter(Boolean).map(Number);
show(Math.min(Math.max(first, 1), data.episodes.length) - 1 || 0);
go(start || 0);
