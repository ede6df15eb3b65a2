// What is shown, and how it stays up to date: the page asks for news every second, and for charts when there are news and they are in sight.
// In a report nothing is fetched: the answers are in the page itself.
import { SMOOTHING } from "./charts.js";
import { clock, colour, count, fill, h, number } from "./dom.js";
import { MAKERS, PANELS, tiles } from "./panels.js";

const REFRESH_MS = 2000, NEWS_MS = 1000, LIST_EVERY = 5, PATIENCE_MS = 15000;
const at = (id) => document.getElementById(id);
const kept = { get: (name) => { try { return localStorage.getItem(name); } catch { return null; } }, set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* private window */ } } };
const view = { run: 0, axis: kept.get("laser-axis") === "time" ? "time" : "step", smoothing: kept.get("laser-smoothing") in SMOOTHING ? kept.get("laser-smoothing") : "off", hidden: new Set(), learner: "all", runs: [], told: null };
const panels = new Map();
const recorded = at("recorded") && JSON.parse(at("recorded").textContent);
let built = null, listening = 0, heard = 0, gone = false, timer = null, refreshed = 0, detailed = -1;

// ---- the page ----
function build(list) {
  const wanted = JSON.stringify(list);
  if (wanted === built) return;
  built = wanted;
  panels.clear();
  const groups = new Map();
  for (const about of list) {
    const panel = { ...PANELS.find((one) => one.id === about.id), ...about };
    const body = h("div", { class: "body" });
    const title = h("h2", { id: `title-${panel.id}` }, panel.title);
    const choice = panel.learners ? h("select", { "aria-label": "Which learner", onchange: (event) => { view.learner = event.target.value; stale(); } }) : null;
    const section = h("section", { class: panel.wide ? "panel wide" : "panel", id: `panel-${panel.id}`, "aria-labelledby": `title-${panel.id}`, hidden: panel.optional }, h("div", { class: "top" }, title, choice), h("p", { class: "why", onclick: (event) => event.target.classList.toggle("whole") }, panel.why), body);
    panels.set(panel.id, { url: `panels/${panel.id}`, ...panel, section, body, choice, seen: true });
    if (!groups.has(panel.group)) groups.set(panel.group, h("div", { class: "group", id: `group-${panel.group}` }));
    groups.get(panel.group).append(section);
  }
  fill(at("panels"), ...groups.values());
  fill(at("groups"), ...[...groups.keys()].map((name) => h("a", { href: `#group-${name}` }, name)));
  blank();
  if (recorded) return;  // a report is printed as a whole
  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const panel = panels.get(entry.target.id.slice("panel-".length));
      if (panel?.section === entry.target) panel.seen = entry.isIntersecting;  // not one of the list before
    }
    schedule();
  }, { rootMargin: "300px" });
  for (const panel of panels.values()) if (!panel.optional) sight.observe(panel.section);
}

// Nothing of another run is left, also in panels out of sight: those are fetched only when they are scrolled into view.
function blank() {
  for (const panel of panels.values()) {
    fill(panel.body);
    Object.assign(panel, { draw: MAKERS[panel.kind](panel.body, panel), data: null, version: -1 });
    if (panel.optional) panel.section.hidden = true;
    if (panel.choice) panel.choice.hidden = true;
  }
  for (const id of ["tiles", "members", "about", "notices"]) fill(at(id));
  status("state", "");
}

function next(by) {
  const place = view.runs.findIndex((one) => one.run === view.run);
  choose(view.runs[(place + by + view.runs.length) % view.runs.length]?.run);
}

function choose(number) {
  if (!view.runs.some((one) => one.run === number)) return;
  Object.assign(view, { run: number, hidden: new Set(), learner: "all", told: null, details: null });
  kept.set("laser-run", view.runs.find((one) => one.run === number).name);
  blank();
  stale();
  listen();
}

// Everything has to be fetched anew.
function stale() {
  for (const panel of panels.values()) panel.version = -1;
  detailed = -1;
  refreshed = 0;
  schedule();
}

function redraw() {
  for (const panel of panels.values()) if (panel.data) show(panel);
  members();
}

function show(panel) {
  const has = panel.draw(panel.data, view);
  if (!panel.optional || panel.section.hidden !== has) return;
  panel.section.hidden = !has;
  for (const link of at("groups").children) link.hidden = !document.querySelector(`${link.getAttribute("href")} > :not([hidden])`);
}

// ---- news ----
async function listen() {
  if (recorded) {
    status("link", `report of ${clock(recorded.written)}`);
    takeRuns(recorded["/api/runs"]);
    takeRun(recorded[`/api/runs/${view.run}`]);
    return;
  }
  const mine = ++listening;
  for (let n = 0; mine === listening; n++) {
    if (n === 0 || !document.hidden) await look(mine, n % LIST_EVERY === 0);
    await new Promise((done) => setTimeout(done, NEWS_MS));
  }
}

async function look(mine, all) {
  try {
    const runs = all || !view.runs.length ? await ask("/api/runs") : null;
    if (runs && mine === listening) takeRuns(runs);
    if (mine !== listening) return;
    if (view.runs.some((one) => one.run === view.run)) takeRun(await ask(`/api/runs/${view.run}`));
    if (mine === listening) alive();
  } catch (error) {
    if (mine === listening) lost(error.message);
  }
}

function alive() {
  if (gone) stale();
  gone = false;
  heard = Date.now();
  status("link", "live", "good");
  notice(view.runs.length ? "" : "No run yet: it appears here when it has begun.");
}

function lost(why) {
  gone = true;
  status("link", "disconnected, trying again", "bad");
  if (why === "401") notice("The dashboard was started anew and has another token: open the link that it printed. What you see here is old.");
  else notice(`No answer from the dashboard since ${heard ? new Date(heard).toLocaleTimeString() : "the start"}. What you see is from then; this page goes on by itself when it is back.`);
}

function takeRuns(runs) {
  const first = view.runs.length === 0;
  view.runs = runs;
  const select = at("run");
  const wanted = JSON.stringify(runs);
  if (select.dataset.shown !== wanted) {
    select.dataset.shown = wanted;
    fill(select, ...runs.map((one) => h("option", { value: one.run }, runs.length > 1 ? `${one.name} · ${one.state}` : one.name)));
  }
  select.value = String(view.run);
  if (!first || !runs.length || recorded) return;
  const last = runs.find((one) => one.name === kept.get("laser-run")) ?? runs[0];
  if (last.run !== view.run) choose(last.run);
}

function takeRun(run) {
  if (run.run !== view.run || run.version === view.told?.version) return;
  view.told = run;
  document.title = `${run.name} · laser`;
  build(run.panels ?? PANELS);
  const read = run.known < 1 ? ` · reading the log: ${Math.floor(100 * run.known)} %` : "";
  members();
  if (run.panels) {
    at("about").textContent = `${run.members.length} directories; each has the same colour in all charts${read}`;
    schedule();
    return;
  }
  const looks = { running: "good", finished: "good", stopped: "warn", "broken off": "bad" };
  const silent = run.silent ? `, silent since ${new Date(run.last * 1000).toLocaleTimeString()}` : "";
  status("state", run.state + silent, run.silent ? "warn" : looks[run.state] ?? "");
  at("about").textContent = `${run.environment} · ${run.kind} · ${count(run.rows)} rows${read}`;
  tiles(at("tiles"), run);
  notices(run.notices);
  const all = panels.get("members");
  all.data = run;
  show(all);
  schedule();
}

// ---- charts ----
function schedule() {
  if (timer !== null || !view.told) return;
  const wait = recorded ? 0 : Math.max(0, refreshed + REFRESH_MS - Date.now());
  timer = setTimeout(async () => { timer = null; await refresh(); }, wait);
}

function lagging() {
  return [...panels.values()].filter((one) => !one.from && one.version < view.told?.version && (one.seen || (one.optional && one.section.hidden)));
}

async function refresh() {
  const told = view.told, run = view.run;
  if (!told || (document.hidden && !recorded)) return;
  refreshed = Date.now();
  const due = lagging();
  try {
    if (detailed < told.version && !told.panels) {
      const details = await ask(`/api/runs/${run}/details`);
      if (run !== view.run) return;
      detailed = details.version ?? told.version;
      view.details = details;
      for (const panel of panels.values()) if (panel.from === "details") { panel.data = details; show(panel); }
      show(panels.get("members"));
    }
    await Promise.all(due.map(async (panel) => {
      const data = await ask(`/api/runs/${run}/${panel.url}?x=${view.axis}&learner=${view.learner}`);
      if (run !== view.run) return;
      Object.assign(panel, { data, version: data.version ?? told.version });
      if (panel.choice) learners(panel.choice);
      show(panel);
    }));
  } catch (error) {
    lost(error.message);
  }
  // The server may have answered with what it had made a moment ago.
  if (!recorded && !gone && (lagging().length || detailed < view.told?.version)) schedule();
}

async function ask(url) {
  if (recorded) return recorded[url] ?? recorded[url.split("?")[0]];
  const answer = await fetch(url, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
  if (!answer.ok) throw new Error(`${answer.status}`);
  return answer.json();
}

function learners(choice) {
  const members = view.told?.members ?? [];
  choice.hidden = members.length < 2 || (recorded && !(`/api/runs/${view.run}/panels/trust?x=step&learner=0` in recorded));
  if (choice.options.length === members.length + 1) { choice.value = view.learner; return; }
  fill(choice, h("option", { value: "all" }, "mean of all learners"), ...members.map((one) => h("option", { value: one.member }, `learner ${one.member}`)));
  choice.value = view.learner;
}

// ---- members ----
function members() {
  const run = view.told, place = at("members");
  place.hidden = !run?.members || run.members.length < 2;
  if (place.hidden) return;
  const focused = document.activeElement?.dataset?.member;
  fill(place, ...run.members.map((one) => {
    const settings = Object.entries(one.settings).map(([name, value]) => `${name.split(".").at(-1)} ${value}`).join(", ");
    const best = one.member === run.best ? "★ " : "";
    return h("button", { type: "button", "data-member": one.member, "aria-pressed": String(!view.hidden.has(one.member)), title: settings, onclick: () => toggle(one.member) },
      h("i", { class: "swatch", style: { background: colour(one.member) } }), h("span", {}, `${best}${one.name ?? one.member}${settings && run.members.length <= 12 ? ` · ${settings}` : ""} · ${number(one.score)}`));
  }));
  if (focused !== undefined) place.querySelector(`[data-member="${focused}"]`)?.focus();
}

function toggle(member) {
  if (!view.hidden.delete(member)) view.hidden.add(member);
  redraw();
}

function only(members) {
  view.hidden = new Set((view.told?.members ?? []).map((one) => one.member).filter((one) => !members.includes(one)));
  redraw();
}

function notices(told) {
  at("notices").hidden = !told?.length;
  fill(at("notices"), ...(told ?? []).map(([level, text]) => h("li", { class: level }, text)));
}

// ---- switches ----
function axis(name) {
  view.axis = name;
  kept.set("laser-axis", name);
  at("by-step").setAttribute("aria-checked", String(name === "step"));
  at("by-time").setAttribute("aria-checked", String(name === "time"));
  stale();
}

const LEVELS = Object.keys(SMOOTHING);
function smooth(level) {
  view.smoothing = at("smoothing").value = level;
  kept.set("laser-smoothing", level);
  redraw();
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  redraw();
}

const wanted = matchMedia("(prefers-color-scheme: dark)");
const chosen = () => kept.get("laser-theme") ?? (wanted.matches ? "dark" : "light");
function flip() {
  kept.set("laser-theme", chosen() === "dark" ? "light" : "dark");
  theme(chosen());
}

const KEYS = {
  "?": ["this help", () => at("shortcuts").showModal()],
  x: ["steps or time", () => axis(view.axis === "time" ? "step" : "time")],
  t: ["light or dark", flip],
  r: ["choose a run", () => at("run").focus()],
  n: ["next run", () => next(1)],
  p: ["previous run", () => next(-1)],
  s: ["smoothing: off, light, strong", () => smooth(LEVELS[(LEVELS.indexOf(view.smoothing) + 1) % LEVELS.length])],
  a: ["show all members", () => only((view.told?.members ?? []).map((one) => one.member))],
  b: ["show the best member only", () => view.told?.members && view.told.best !== null && only([view.told.best])],
};
for (let n = 0; n < 10; n++) KEYS[n] = [`show or hide member ${n}`, () => view.told?.members?.[n] && toggle(n)];

function start() {
  document.documentElement.dataset.theme = chosen();
  wanted.addEventListener("change", () => theme(chosen()));
  build(PANELS);
  axis(view.axis);
  fill(at("smoothing"), ...LEVELS.map((level) => h("option", { value: level }, level === "off" ? "not smoothed" : `${level} smoothing`)));
  smooth(view.smoothing);
  at("smoothing").addEventListener("change", (event) => smooth(event.target.value));
  at("run").addEventListener("change", (event) => choose(Number(event.target.value)));
  at("by-step").addEventListener("click", () => axis("step"));
  at("by-time").addEventListener("click", () => axis("time"));
  at("theme").addEventListener("click", flip);
  at("help").addEventListener("click", KEYS["?"][1]);
  fill(at("keys"), ...Object.entries(KEYS).filter(([key]) => !/[1-9]/.test(key)).flatMap(([key, [text]]) => [h("dt", {}, h("kbd", {}, key === "0" ? "0 – 9" : key)), h("dd", {}, key === "0" ? "show or hide a member" : text)]));
  at("keys").className = "pairs";
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(SELECT|INPUT|TEXTAREA)$/.test(event.target.tagName) || at("shortcuts").open) return;
    const found = KEYS[event.key];
    if (found) { event.preventDefault(); found[1](); }
  });
  document.addEventListener("visibilitychange", () => schedule());
  let resized = null;
  addEventListener("resize", () => { clearTimeout(resized); resized = setTimeout(redraw, 300); });
  listen();
}

function status(id, text, look = "") {
  const place = at(id);
  if (place.textContent !== text) place.textContent = text;  // or it would be read out again and again
  place.className = `badge ${look}`;
}

function notice(text) {
  at("notice").textContent = text;
  at("notice").hidden = !text;
}

start();
