"use strict";

// The page asks for the status every two seconds while somebody looks. What the
// agent tells becomes text nodes and attributes only, never markup.
const every = 2000, patience = 8000, history = 60, shownEvents = 50;

const $ = (id) => document.getElementById(id);
const classes = ["SYSTEM", "LSE", "LSR", "LS", "BE"];
const figures = ["cpu", "cpuPressure", "memoryPressure", "ioPressure", "throttled", "memory"];
const failures = new Set(["refused", "yielded", "dropped", "failed", "kept", "lost", "slow", "found"]);

const byName = new Intl.Collator("en", { numeric: true }).compare;

let status = null;          // the last one that came
let last = 0;               // the highest seq of an event that is shown
let drawn = "";             // the machine that the map shows
let sort = { key: "class", down: false };
let timer = 0, asking = null, hourly = false;
const cells = new Map();    // by CPU: its button
const rows = new Map();     // by workload: what its row consists of
const tags = new Map();     // by owner: its number, lowest free first
const places = new Map();   // by CPU: the names of what it is in
const owners = new Map();   // by CPU: its owner, and how

// el makes an element of a class with children, which are text if not nodes.
function el(name, cls, ...children) {
  const e = document.createElement(name);
  if (cls) e.className = cls;
  e.append(...children);
  return e;
}

// put changes a text only if it is another one.
function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// cpusOf reads the kernel's list syntax: "0-3,8".
function cpusOf(list) {
  const all = [];
  for (const part of (list || "").split(",").filter(Boolean)) {
    const [first, to] = part.split("-").map(Number);
    for (let cpu = first; cpu <= (to ?? first); cpu++) all.push(cpu);
  }
  return all;
}

function ageOf(since, now) {
  const s = Math.max(0, Math.floor((Date.parse(now) - Date.parse(since)) / 1000));
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const i = Math.max(0, units.findIndex(([, n]) => s >= n));
  if (s < 60) return `${s} s`;
  const [unit, n] = units[i], [smaller, m] = units[i + 1];
  return `${Math.floor(s / n)} ${unit} ${Math.floor(s % n / m)} ${smaller}`;
}

function bytesOf(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
  return `${n.toFixed(i && n < 100 ? 1 : 0)} ${units[i]}`;
}

function figureText(key, value) {
  if (value === undefined) return "\u2013";
  return key === "memory" ? bytesOf(value) : (value * 100).toFixed(1);
}

// letters names the nth owner: A to Z, then AA.
function letters(n) {
  const letter = String.fromCharCode(65 + n % 26);
  return n < 26 ? letter : letters(Math.floor(n / 26) - 1) + letter;
}

// tagOwners gives each that owns CPUs a number, which it keeps while it is there.
function tagOwners(workloads) {
  const holding = workloads.filter((w) => w.own).map((w) => w.id);
  const here = new Set(holding);
  for (const id of tags.keys()) if (!here.has(id)) tags.delete(id);
  const used = new Set(tags.values());
  let next = 0;
  for (const id of holding) {
    if (tags.has(id)) continue;
    while (used.has(next)) next++;
    tags.set(id, next);
    used.add(next);
  }
}

// drawMachine builds the map anew where the machine is another one.
function drawMachine(m) {
  const now = JSON.stringify([m.boxes, m.offline]);
  if (now === drawn) return;
  drawn = now;
  cells.clear();
  places.clear();
  const offline = cpusOf(m.offline);
  const boxes = m.boxes.map((b) => drawBox(b, []));
  if (offline.length) boxes.push(drawBox({ names: ["offline"], cores: offline.map(String) }, []));
  $("map").replaceChildren(...boxes);
  $("map").classList.toggle("many", cells.size > 128);
  $("map").classList.toggle("huge", cells.size > 256);
  const first = $("map").querySelector(".cpu");
  if (first) first.tabIndex = 0;
}

function drawBox(b, around) {
  const names = around.concat(b.names);
  const inside = el("div", b.boxes ? "inside" : "cores");
  for (const box of b.boxes || []) inside.append(drawBox(box, names));
  for (const core of b.cores || []) {
    const cpus = cpusOf(core);
    inside.append(el("div", "core", ...cpus.map((cpu) => drawCPU(cpu, names, cpus))));
  }
  const box = el("div", "box", el("p", "name", b.names.join(", ") || "CPUs"), inside);
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", b.names.join(", ") || "CPUs");
  return box;
}

function drawCPU(cpu, names, core) {
  const b = el("button", "cpu", el("span", "n", String(cpu)), el("span", "who"));
  b.type = "button";
  b.tabIndex = -1;
  b.dataset.cpu = cpu;
  const others = core.filter((c) => c !== cpu);
  places.set(cpu, names.concat(others.length ? [`core with CPU ${others.join(", ")}`] : []));
  cells.set(cpu, b);
  return b;
}

// colourMachine says on each CPU who has it.
function colourMachine(m, workloads) {
  owners.clear();
  for (const w of workloads) {
    for (const cpu of cpusOf(w.own)) owners.set(cpu, { w, how: "own" });
    for (const cpu of cpusOf(w.fence)) owners.set(cpu, { w, how: "fence" });
  }
  const sharers = new Map();
  for (const w of workloads) if (!w.own) for (const cpu of cpusOf(w.cpus)) sharers.set(cpu, (sharers.get(cpu) || 0) + 1);
  const set = (list) => new Set(cpusOf(list));
  const reserved = set(m.reserved), offline = set(m.offline), isolated = set(m.isolated), allowed = set(m.allowed);
  const shared = set(m.shared);
  for (const [cpu, b] of cells) {
    const owner = owners.get(cpu), words = [];
    let cls = "cpu", text = "";
    if (owner) {
      const n = tags.get(owner.w.id) ?? 0;
      text = owner.how === "own" ? letters(n) : letters(n).toLowerCase();
      cls += ` ${owner.how} o${n % 6} ${owner.how === "own" ? owner.w.class : ""}`;
      words.push(owner.how === "own" ? `owned by ${owner.w.id} (${owner.w.class})` : `kept idle beside the CPUs of ${owner.w.id} (${owner.w.class})`);
      if (owner.how === "own" && owner.w.lent) words.push("lent to best-effort work while idle");
    } else if (offline.has(cpu)) {
      cls += " offline";
      text = "\u00d7";
      words.push("offline");
    } else if (allowed.size && !allowed.has(cpu)) {
      cls += " outside";
      text = "\u2013";
      words.push("not Berth's to give away");
    } else if (shared.has(cpu)) {
      const n = sharers.get(cpu) || 0;
      words.push(`shared; ${n} ${n === 1 ? "workload" : "workloads"} may run here`);
    } else words.push("nobody's");
    if (reserved.has(cpu)) {
      words.push("reserved for the host's services");
      if (!owner) { cls += " reserved"; text = "r"; }
    }
    if (isolated.has(cpu)) words.push("isolated from the scheduler's balancing");
    if (b.classList.contains("lit")) cls += " lit";
    if (b.className !== cls) b.className = cls;
    put(b.lastElementChild, text);
    const load = (m.load || {})[cpu];
    b.style.setProperty("--load", load === undefined ? 0 : load.toFixed(2));
    if (load !== undefined) words.push(`${Math.round(load * 100)} % busy`);
    const label = `CPU ${cpu}: ${words.join(", ")}; ${places.get(cpu).join(", ")}`;
    if (b.getAttribute("aria-label") !== label) b.setAttribute("aria-label", label);
  }
  drawLegend(m, workloads);
}

function drawLegend(m, workloads) {
  const used = classes.filter((c) => workloads.some((w) => w.own && w.class === c));
  const items = used.map((c) => ["own o0 " + c, "A", `own CPUs, ${c}`]);
  if (used.length) items.push(["", "", "a letter and colour for each owner, as in the table"]);
  if (workloads.some((w) => w.fence)) items.push(["fence o0", "a", "kept idle beside own CPUs"]);
  items.push(["shared", "", "shared"]);
  if (m.reserved) items.push(["reserved", "r", "reserved for the host, shared"]);
  if (m.offline) items.push(["offline", "\u00d7", "offline"]);
  const now = JSON.stringify(items);
  if ($("legend").dataset.shown === now) return;
  $("legend").dataset.shown = now;
  $("legend").replaceChildren(...items.map(([cls, text, words]) => {
    const li = el("li", "", words);
    if (cls) {
      const mark = el("span", "cpu " + cls, el("span", "who", text));
      mark.setAttribute("aria-hidden", "true");
      li.prepend(mark);
    }
    return li;
  }));
}

// spark is a line through the latest values; null is a gap.
function spark(values) {
  const known = values.filter((v) => v !== null);
  const top = Math.max(...known, 1e-9);
  let path = "", pen = "M";
  values.forEach((v, i) => {
    if (v === null) { pen = "M"; return; }
    path += `${pen}${(i / (history - 1) * 54 + 1).toFixed(1)} ${(16 - v / top * 14).toFixed(1)}`;
    pen = "L";
  });
  return path;
}

function newRow(id) {
  const r = { id, tr: document.createElement("tr"), figs: {}, past: {} };
  const cell = (name, cls) => {
    const c = el(name, cls);
    r.tr.append(c);
    return c;
  };
  const head = cell("th", "");
  head.scope = "row";
  r.tag = el("span", "tag");
  r.note = el("small");
  head.append(r.tag, id, r.note);
  r.cls = cell("td", "l");
  r.cpus = el("span");
  r.mems = el("small");
  cell("td", "set").append(r.cpus, r.mems);
  for (const key of figures) {
    const c = cell("td", "fig"), svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
    svg.setAttribute("class", "spark");
    svg.setAttribute("viewBox", "0 0 56 18");
    svg.setAttribute("aria-hidden", "true");
    svg.append(line);
    const text = el("span");
    c.append(svg, text);
    r.figs[key] = { cell: c, line, text };
    r.past[key] = [];
  }
  r.age = cell("td", "age");
  const why = el("button", "", "Why");
  why.type = "button";
  why.setAttribute("aria-label", `Why ${id} is where it is`);
  why.addEventListener("click", () => explain(id));
  cell("td", "l").append(why);
  for (const [on, lit] of [["mouseenter", true], ["mouseleave", false], ["focusin", true], ["focusout", false]]) {
    r.tr.addEventListener(on, () => light(r.w, lit));
  }
  return r;
}

// light marks where a workload may run.
function light(w, on) {
  for (const b of cells.values()) b.classList.remove("lit");
  if (on) for (const cpu of cpusOf(w.cpus)) cells.get(cpu)?.classList.add("lit");
}

function fillRow(r, w, now, fresh) {
  r.w = w;
  const n = tags.get(w.id);
  r.tag.className = n === undefined ? "tag" : `tag o${n % 6}`;
  put(r.tag, n === undefined ? "" : letters(n));
  put(r.note, (w.notes || []).join("; "));
  put(r.cls, w.class);
  put(r.cpus, w.own ? `exclusive: ${w.own}` : `shared: ${w.cpus}`);
  put(r.mems, w.mems ? `memory node ${w.mems}` : "");
  for (const key of figures) {
    const f = r.figs[key], past = r.past[key], value = w[key];
    put(f.text, figureText(key, value));
    if (!fresh) continue;
    past.push(value ?? null);
    if (past.length > history) past.shift();
    const path = spark(past);
    if (f.path !== path) f.line.setAttribute("d", f.path = path);
    f.text.classList.toggle("hot", key === "throttled" && value > 0.05 || key.endsWith("Pressure") && value > 0.2);
  }
  put(r.age, ageOf(w.since, now));
}

function compare(a, b) {
  const way = sort.down ? -1 : 1, byID = byName(a.id, b.id);
  const rank = (w) => {
    switch (sort.key) {
      case "class": return classes.indexOf(w.class);
      case "cpus": return cpusOf(w.cpus).length;
      case "since": return -Date.parse(w.since);
      default: return w[sort.key];
    }
  };
  if (sort.key === "id") return way * byID;
  const x = rank(a), y = rank(b);
  if (x === y) return byID;
  if (x === undefined || y === undefined) return x === undefined ? 1 : -1; // what is not known comes last
  return way * (x - y);
}

// drawRows brings the table to the workloads; rows that stay where they are are not
// touched, so that the focus stays.
function drawRows(s, fresh) {
  const here = new Set(s.workloads.map((w) => w.id));
  for (const [id, r] of rows) {
    if (here.has(id)) continue;
    r.tr.remove();
    rows.delete(id);
  }
  let at = $("rows").firstElementChild;
  for (const w of [...s.workloads].sort(compare)) {
    let r = rows.get(w.id);
    if (!r) rows.set(w.id, r = newRow(w.id));
    fillRow(r, w, s.time, fresh);
    if (r.tr === at) at = at.nextElementSibling;
    else if (r.tr.contains(document.activeElement)) placeAround(r.tr, at);
    else $("rows").insertBefore(r.tr, at);
  }
  const untold = figures.filter((key) => !s.workloads.some((w) => w[key] !== undefined));
  for (const th of document.querySelectorAll("th[data-fig]")) th.classList.toggle("untold", untold.includes(th.dataset.fig));
  for (const r of rows.values()) for (const key of figures) r.figs[key].cell.classList.toggle("untold", untold.includes(key));
  const names = { cpu: "CPU use", cpuPressure: "waits for CPU", memoryPressure: "waits for memory", ioPressure: "waits for disks", throttled: "throttling", memory: "memory" };
  put($("untold"), untold.length && s.workloads.length ? `Not told by this host, and left out: ${untold.map((key) => names[key]).join(", ")}.` : "");
  $("empty").hidden = s.workloads.length > 0;
  $("table").hidden = s.workloads.length === 0;
  sayWider();
  put($("count"), s.workloads.length ? String(s.workloads.length) : "");
  put($("file"), s.file ? ` (${s.file})` : "");
}

// sayWider says so where the table is wider than the screen.
function sayWider() {
  $("wider").hidden = $("table").scrollWidth <= $("table").clientWidth;
}

addEventListener("resize", sayWider);

// placeAround moves all between at and a row behind it, instead of the row: what is
// moved loses the focus.
function placeAround(tr, at) {
  while (at && at !== tr) {
    const next = at.nextElementSibling;
    $("rows").append(at);
    at = next;
  }
}

function drawEvents(events) {
  const list = $("events");
  for (const e of events) {
    if (e.seq <= last) continue;
    last = e.seq;
    const time = el("time", "", new Date(e.time).toLocaleTimeString());
    time.dateTime = e.time;
    time.title = new Date(e.time).toLocaleString();
    const by = e.by && e.by.pid ? ` (asked for by process ${e.by.pid} of user ${e.by.uid})` : "";
    const what = [e.object, e.text].filter(Boolean).join(": ") + by;
    list.prepend(el("li", failures.has(e.kind) ? "bad" : "", time, el("span", "kind", e.kind), el("span", "id", e.id || ""), el("span", "text", what)));
  }
  while (list.children.length > shownEvents) list.lastElementChild.remove();
  $("quiet").hidden = list.children.length > 0;
  list.setAttribute("aria-live", "polite"); // not for what was there before
}

function drawList(list, section, texts) {
  section.hidden = texts.length === 0;
  const now = texts.join("\n");
  if (list.dataset.shown === now) return;
  list.dataset.shown = now;
  list.replaceChildren(...texts.map((t) => el("li", "", t)));
}

function drawWarnings(s) {
  const texts = [...s.warnings];
  for (const w of s.waiting) texts.push(`${w.id} has no place for ${ageOf(w.since, s.time)}: ${w.reason}`);
  if (s.read && Date.parse(s.time) - Date.parse(s.read) > 10000) texts.push(`The figures are ${ageOf(s.read, s.time)} old.`);
  drawList($("warnings"), $("attention"), texts);
  drawList($("notes"), $("unusual"), s.machine.notes);
}

function drawGuard(g) {
  put($("guard-mode"), g.mode);
  put($("guard-about"), g.about);
  drawList($("suffers"), $("suffers"), g.suffers);
  drawList($("done"), $("done"), g.done);
  $("calm").hidden = g.mode === "off" || g.suffers.length > 0;
}

const titles = { cache: "Caches", io: "Block I/O", power: "Power", net: "Network" };

function drawClasses(kinds) {
  $("classes").hidden = kinds.length === 0;
  const now = JSON.stringify(kinds);
  if ($("kinds").dataset.shown === now) return;
  $("kinds").dataset.shown = now;
  $("kinds").replaceChildren(...kinds.map((k) => el("div", "", el("h3", "", titles[k.kind] || k.kind), el("p", "hint", k.about || ""), el("ul", "", ...k.lines.map((l) => el("li", "", l))))));
}

function draw(s) {
  const fresh = !status || s.read !== status.read;
  if (status && s.started !== status.started) last = 0; // another agent counts anew
  status = s;
  const m = s.machine;
  put($("host"), m.name || "This host");
  document.title = m.name ? `${m.name} \u2013 Berth` : "Berth";
  put($("about"), [m.model, `CPUs ${m.online}`, `${s.backend}, policy ${s.policy}`, `agent ${s.pid}, up ${ageOf(s.started, s.time)}`].filter(Boolean).join(" \u00b7 "));
  tagOwners(s.workloads);
  drawMachine(m);
  colourMachine(m, s.workloads);
  drawRows(s, fresh);
  drawWarnings(s);
  drawGuard(s.guard);
  drawClasses(s.classes);
  drawEvents(s.events);
}

function linked(ok, text) {
  document.body.classList.toggle("lost", !ok);
  $("link").className = ok ? "link on" : "link off";
  put($("link"), text);
}

async function ask(path, signal) {
  const r = await fetch(path, { signal, cache: "no-store" });
  if (!r.ok) throw new Error((await r.text()).trim() || `status ${r.status}`);
  return r.json();
}

async function refresh() {
  asking = new AbortController();
  const mine = asking, alarm = setTimeout(() => mine.abort(), patience);
  try {
    draw(await ask(`status.json?after=${last}`, mine.signal));
    linked(true, "Live");
    if (!hourly) refreshHour();
  } catch (err) {
    if (document.hidden) return;
    const what = err instanceof TypeError || err.name === "AbortError" ? "The agent does not answer" : `The agent answers with an error: ${err.message}`;
    const when = status ? ` What is below was so at ${new Date(status.time).toLocaleTimeString()}.` : "";
    linked(false, `${what}; trying again.${when}`);
  } finally {
    clearTimeout(alarm);
    if (mine === asking) asking = null;
    if (!document.hidden) timer = setTimeout(refresh, every);
  }
}

// drawHour draws the last hour: how busy the host was, how much was waited for its CPUs, and
// when the guard acted.
function drawHour(past) {
  $("past").hidden = past.points.length < 2 && past.marks.length === 0;
  if ($("past").hidden) return;
  const make = (name, attributes, text) => {
    const e = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
    if (text !== undefined) e.textContent = text;
    return e;
  };
  const width = Math.min(1200, Math.max(340, $("past").clientWidth)), left = 44, top = 8, bottom = 132, now = Date.now();
  // The time that is known, at least ten minutes of it.
  const first = Math.min(...[past.points[0], past.marks[0]].filter(Boolean).map((p) => Date.parse(p.time)));
  const hour = 60e3 * ([10, 20, 30].find((minutes) => now - first <= minutes * 60e3) || 60);
  const x = (time) => left + (1 - (now - Date.parse(time)) / hour) * (width - left - 8);
  const y = (share) => bottom - share * (bottom - top);
  const svg = make("svg", { viewBox: `0 0 ${width} 156`, role: "img", "aria-label": "How busy the host was in the last hour, how much was waited for its CPUs, and when the guard acted" });
  for (const share of [0, 0.5, 1]) {
    svg.append(make("line", { class: "grid", x1: left, x2: width - 8, y1: y(share), y2: y(share) }));
    svg.append(make("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, `${share * 100} %`));
  }
  for (const part of width < 600 ? [1, 0.5, 0] : [1, 0.75, 0.5, 0.25, 0]) {
    const at = x(new Date(now - part * hour).toISOString());
    svg.append(make("text", { x: at, y: 150, "text-anchor": part === 1 ? "start" : part ? "middle" : "end" }, part ? `${part * hour / 60e3} min ago` : "now"));
  }
  const line = (key) => {
    let path = "", pen = "M", before = 0;
    for (const p of past.points) {
      const at = Date.parse(p.time);
      if (p[key] === undefined || at < now - hour) { pen = "M"; continue; }
      if (at - before > 90e3) pen = "M"; // the host slept, or the agent
      path += `${pen}${x(p.time).toFixed(1)} ${y(p[key]).toFixed(1)}`;
      pen = "L";
      before = at;
    }
    return path;
  };
  const busy = past.points.filter((p) => p.busy !== undefined && Date.parse(p.time) >= now - hour);
  if (busy.length > 1) svg.append(make("path", { class: "busy", d: `${line("busy").replace(/M/g, (m, i) => i ? "L" : "M")}L${x(busy.at(-1).time).toFixed(1)} ${bottom}L${x(busy[0].time).toFixed(1)} ${bottom}z` }));
  const told = past.points.some((p) => p.waits !== undefined);
  if (told) svg.append(make("path", { class: "waits", d: line("waits") }));
  past.marks.forEach((mark, i) => {
    const g = make("g", {}), at = x(mark.time);
    g.append(make("title", {}, mark.text), make("line", { class: "act", x1: at, x2: at, y1: top, y2: bottom }), make("circle", { class: "dot", cx: at, cy: top + 2, r: 8 }));
    g.append(make("text", { class: "num", x: at, y: top + 6, "text-anchor": "middle" }, String(i + 1)));
    svg.append(g);
  });
  $("hour").replaceChildren(svg);
  const key = [el("span", "key busy"), "busy CPUs"];
  if (told) key.push(el("span", "key waits"), "time in which some task waited for a CPU");
  if (past.marks.length) key.push(el("span", "key act"), "the guard acted, below by number");
  $("hour-key").replaceChildren(...key);
  $("marks").replaceChildren(...past.marks.map((mark, i) => {
    const time = el("time", "", new Date(mark.time).toLocaleTimeString());
    time.dateTime = mark.time;
    return el("li", "", el("span", "kind", String(i + 1)), time, el("span", "text", mark.text));
  }).reverse());
}

async function refreshHour() {
  hourly = true;
  if (!document.hidden) {
    try {
      drawHour(await ask("hour.json"));
    } catch { /* the status says that the agent does not answer */ }
  }
  setTimeout(refreshHour, 20000);
}

// Nobody looks at a hidden page.
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (document.hidden) asking?.abort();
  else if (!asking) refresh();
});

async function explain(id) {
  put($("why-h"), `Why ${id} is where it is`);
  $("why-text").replaceChildren(el("p", "muted", "Asking the agent."));
  if (!$("why").open) $("why").showModal();
  try {
    const e = await ask(`explanation.json?id=${encodeURIComponent(id)}`);
    $("why-text").replaceChildren(...explanation(e));
  } catch (err) {
    $("why-text").replaceChildren(el("p", "", `No explanation came: ${err.message}`));
  }
}

function explanation(e) {
  if (!e.why) return [el("p", "", "The policy tells no reasons for it.")];
  const out = [el("p", "muted", e.recorded ? "These decisions led to it. Of ranks, lower is better." : "What led to it was not recorded; these decisions would be taken now. Of ranks, lower is better.")];
  for (const d of e.why.decisions) {
    const by = d.criteria?.length ? ` (by ${d.criteria.join(", ")})` : "";
    out.push(el("h3", "", d.name + by));
    const lines = (d.candidates || []).map((c, i) => {
      const rank = c.rank ? ` [${c.rank.join(" ")}]` : "";
      return i === d.chosen ? el("li", "chosen", `${c.name}${rank}: chosen`) : el("li", "", `${c.name}${rank}: ${c.lost || "not chosen"}`);
    });
    const chosen = lines.splice(d.chosen, d.chosen < 0 ? 0 : 1);
    if (chosen.length) out.push(el("ul", "", ...chosen));
    if (lines.length) out.push(el("details", "", el("summary", "", `${lines.length} not chosen`), el("ul", "", ...lines)));
  }
  return out;
}

// The map is one stop of the Tab key; arrows move within it.
function step(from, key) {
  const all = [...cells.values()];
  if (key === "Home") return all[0];
  if (key === "End") return all.at(-1);
  const centre = (b) => { const r = b.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; };
  const [x, y] = centre(from);
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  if (!way) return null;
  let best = null, least = Infinity;
  for (const b of all) {
    const [bx, by] = centre(b), along = (bx - x) * way[0] + (by - y) * way[1];
    const aside = Math.abs((bx - x) * way[1]) + Math.abs((by - y) * way[0]);
    if (along < 4) continue;
    const far = along + 4 * aside;
    if (far < least) [best, least] = [b, far];
  }
  return best;
}

function tell(b) {
  put($("detail"), b.getAttribute("aria-label"));
}

$("map").addEventListener("keydown", (e) => {
  const from = e.target.closest(".cpu"), to = from && step(from, e.key);
  if (!to) return;
  e.preventDefault();
  from.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
});
for (const on of ["mouseover", "focusin"]) {
  $("map").addEventListener(on, (e) => {
    const b = e.target.closest(".cpu");
    if (b) tell(b);
  });
}
$("map").addEventListener("click", (e) => {
  const b = e.target.closest(".cpu"), owner = b && owners.get(Number(b.dataset.cpu));
  if (owner) explain(owner.w.id);
});
$("close").addEventListener("click", () => $("why").close());

for (const th of document.querySelectorAll("th[data-key]")) {
  th.querySelector("button").addEventListener("click", () => {
    const key = th.dataset.key;
    sort = { key, down: sort.key === key ? !sort.down : figures.includes(key) || key === "cpus" };
    showSort();
    if (status) drawRows(status, false);
  });
}

function showSort() {
  for (const th of document.querySelectorAll("th[data-key]")) {
    if (th.dataset.key === sort.key) th.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    else th.removeAttribute("aria-sort");
  }
}

showSort();
if (!document.hidden) refresh();
