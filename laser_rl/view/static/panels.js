// The panels by group, in their order: what each is called, why one should look at it, and how it is drawn.
import { Chart } from "./charts.js";
import { bytes, clock, colour, compact, count, css, duration, exponent, fill, h, isDark, number, share, svg } from "./dom.js";

const line = (id, title, why, options = {}) => ({ id, title, why, kind: "chart", ...options });
const GROUPS = {
  Score: [
    line("returns", "Returns", "The return is the sum of rewards in an episode, here the mean of the last 100; higher is better. The thick line is the best member, chosen by the same numbers and thus likely to look better than it is; the grey band goes from the worst to the best that is shown. Of one agent the band has all that its points are means of.", { band: true, wide: true }),
    line("episodes", "Single episodes", "Returns of single episodes: the line is their mean, the band goes from the lowest to the highest of those behind each point.", { optional: true }),
    line("evaluations", "Evaluations", "Now and then an agent plays without learning; these means are the honest ones. A bar is where the true mean lies in 95 of 100 cases.", { dots: true, optional: true }),
    { id: "settings", title: "Which settings do well", why: "Each setting in which members differ, against the score; a point is a member with the settings that it has now, the best one has a ring.", kind: "scatter", optional: true },
    line("tasks", "Tasks", "The normalised score of every task of the mixture, of the best member: 0 is random play, 1 the best known.", { optional: true, wide: true }),
    { id: "task-table", title: "By task", why: "The newest numbers of each task, of the best member. A task of which neither random play nor the best is known has its raw return as its score.", kind: "table", optional: true, wide: true },
    { id: "members", title: "Members", why: "A line a member: what it was set to, how far it is, how well it does and what went wrong. Trusted: the share of its own and of others' replayed steps that it learns from. Intervals (95 %) are over episodes of one agent: how well its mean is known, not how another seed would do.", kind: "members", from: "run", wide: true },
  ],
  Replay: [
    line("trust", "Whose experience is trusted", "Of the steps replayed from each member, the share that the learner can use: there its own policy is close enough to the one that acted.", { share: true, learners: true }),
    { id: "who", title: "Who learns from whom", why: "Each row is a learner, each column the member whose experience it replays; the stronger the colour, the more of it is trusted and learned from.", kind: "heat", wide: true },
    line("replay", "Whose experience is in the replay", "The replay is the memory that all members learn from; here is who filled it. With equal speeds the shares are equal.", { share: true, stack: true, optional: true }),
    line("ages", "How old the replay is", "Age is counted in updates since a step was played; old experience comes from policies that are long gone, and is trusted less.", {}),
    line("fill", "How full the replay is", "Once it is full, the oldest experience makes room for new.", { share: true }),
  ],
  Population: [
    { id: "lineage", title: "Who descends from whom", why: "In population based training a weak member becomes a copy of a better one and goes on with changed settings; a line has the colour of the member whose first parameters it carries.", kind: "lineage", optional: true, wide: true },
    { id: "trials", title: "Trials", why: "A search tries one setting after the other in each member, and all learn from the experience of all, also of those that have ended.", kind: "table", optional: true, wide: true },
    { id: "copies", title: "Copies", why: "Every copy of population based training, or every beginning of a trial, newest first.", kind: "sentences", optional: true, wide: true },
  ],
  Learning: [
    line("policy-loss", "Policy loss", "The part of the loss that moves the policy; it need not fall.", { optional: true }),
    line("value-loss", "Value loss", "How wrong the predicted returns are.", { optional: true }),
    line("entropy", "Policy entropy", "How undecided the policy is, in nats; 0: it has decided.", { optional: true }),
    line("kl", "Divergence from the behaviour", "How far the policy has moved from the ones whose data it learns (KL, nats).", { optional: true }),
    line("gradient", "Gradient norm", "Before it is clipped.", { optional: true }),
    line("learning-rate", "Learning rate", "As it was set, and as population based training has moved it.", { optional: true, log: true }),
    line("entropy-cost", "Entropy cost", "The weight of the entropy in the loss; population based training may move it.", { optional: true, log: true }),
    line("clipped", "Clipped importance ratios", "The share of ratios that V-trace cuts off.", { share: true, optional: true }),
    line("lag", "Policy lag", "The age of the newest data when it is learned, in updates.", { optional: true }),
  ],
  Speed: [
    line("steps", "Steps per second", "How fast the agents play: decisions in their environments, per member.", {}),
    line("updates", "Updates per second", "How fast the agents learn: changes of the network, per member.", {}),
    line("waiting", "Is the learner waiting?", "Shares of the time: a learner that waits (dashed) is starved by its environments, one that is always busy is what limits the speed.", { share: true, optional: true }),
    line("queues", "How deep the queues are", "What lies between playing and learning: deliveries of the environments, and batches that are ready (dashed). If both are empty the environments are too slow for the learner, if both are full it is the other way round.", { optional: true }),
    line("memory", "Memory", "Resident memory of the process that trains.", { size: true, optional: true }),
  ],
  Details: [
    { id: "numbers", title: "Newest numbers", why: "What the last rows say, of the best member: training, then the last evaluation.", kind: "numbers", from: "details" },
    { id: "events", title: "What happened", why: "Starts, ends, resumed runs and faults, newest first.", kind: "events", from: "details" },
    { id: "videos", title: "Last videos", why: "Episodes that were filmed, newest first, with their return.", kind: "videos", from: "details", wide: true, optional: true },
    { id: "machine", title: "Machine and settings", why: "On what it runs, with which commands and versions, how to run it again, and every setting.", kind: "machine", from: "details" },
  ],
};
export const PANELS = Object.entries(GROUPS).flatMap(([group, list]) => list.map((one) => ({ group, ...one })));

// Each maker returns draw(data, view); true if there was something to show.
export const MAKERS = {
  chart(body, panel) {
    const options = { title: panel.title, share: panel.share, size: panel.size, stack: panel.stack, band: panel.band === true, dots: panel.dots, log: panel.log, each: panel.each };
    let chart = null;
    return (data, view) => {
      if (!data.lines.length) {
        chart = null;
        fill(body, h("p", { class: "empty" }, "Nothing yet."));
        return false;
      }
      chart ??= new Chart(body, options);
      chart.draw(data, view);
      return true;
    };
  },

  heat(body) {
    return (data, view) => {
      const shown = Array.from({ length: data.members }, (_, n) => n).filter((n) => !view.hidden.has(n));
      const several = data.members > 1 && data.trusted.some((row, i) => row.some((v, j) => v !== null && i !== j));
      const tables = [
        several && heat("trusted share: learner down, source across", shown.map(String), shown.map(String), shown.map((i) => shown.map((j) => data.trusted[i][j])), 1, share, (i, j) => `member ${i} trusts {} of the steps of member ${j}`),
        data.by_age.some((row) => row.some((v) => v !== null)) &&
          heat("trusted share by age of the step, in updates", shown.map(String), data.ages, shown.map((i) => data.by_age[i]), 1, share, (i, j) => `member ${i} trusts {} of the steps of age ${j}`),
        data.divergence && heat("how far policies are apart (KL, nats)", shown.map(String), shown.map(String), shown.map((i) => shown.map((j) => data.divergence[i][j])), null, number, (i, j) => `member ${i} from member ${j}: {}`),
      ].filter(Boolean);
      fill(body, h("div", { class: "heat" }, ...(tables.length ? tables : [h("p", { class: "empty" }, "Nothing was replayed yet.")])));
      return tables.length > 0;
    };
  },

  lineage(body) {
    return (data) => {
      if (!data.copies.length) return false;
      const width = Math.max(300, body.clientWidth || 600), row = 24, left = 34, height = data.members * row + 26;
      const x = (step) => left + ((width - left - 12) * step) / (data.end || 1);
      const y = (member) => 14 + member * row;
      const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${data.copies.length} copies among ${data.members} members` });
      for (let m = 0; m < data.members; m++) {
        const label = svg("text", { x: 4, y: y(m) + 4 });
        label.textContent = m;
        drawing.append(label);
      }
      for (const [member, from, to, founder] of data.pieces)
        drawing.append(svg("line", { x1: x(from), x2: x(to), y1: y(member), y2: y(member), stroke: colour(founder), "stroke-width": 5 }));
      for (const [step, donor, member] of data.copies) {
        const title = svg("title");
        title.textContent = `step ${count(step)}: member ${member} became a copy of ${donor}`;
        drawing.append(svg("line", { x1: x(step), x2: x(step), y1: y(donor), y2: y(member), stroke: css("--soft"), "stroke-width": 1 }), svg("circle", { cx: x(step), cy: y(member), r: 3.5, fill: css("--ink") }, title));
      }
      const end = svg("text", { x: width - 12, y: height - 4, "text-anchor": "end" });
      end.textContent = `${count(data.end)} steps`;
      drawing.append(end);
      fill(body, h("div", { class: "scroll" }, drawing));
      return true;
    };
  },

  table(body, panel) {
    const text = (value) => (value === null ? "–" : typeof value === "number" ? number(value) : value);
    return (data) => {
      const words = data.columns.map((_, n) => data.rows.some((row) => typeof row[n] === "string" && row[n] !== "–"));
      const cell = (tag, value, n, more = {}) => h(tag, { class: words[n] ? "words" : undefined, ...more }, text(value));
      const head = data.columns.map((name, n) => cell("th", name, n, { scope: "col" }));
      const lines = data.rows.map((row) => h("tr", {}, ...row.map((value, m) => cell("td", value, m))));
      fill(body, lines.length ? rows(panel.title, head, lines) : h("p", { class: "empty" }, "Nothing."));
      return lines.length > 0;
    };
  },

  sentences(body, panel) {
    return (data) => {
      fill(body, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": panel.title }, h("ul", {}, ...data.sentences.map((text) => h("li", {}, text)))));
      return data.sentences.length > 0;
    };
  },

  scatter(body) {
    return (data, view) => {
      const plots = data.settings.map((axis) => scatter(axis, data.points, view.hidden));
      body.parentElement.classList.toggle("wide", plots.length > 2);
      const more = data.more ? ` ${data.more} more settings differ.` : "";
      fill(body, h("p", { class: "why" }, `Score: ${data.score.toLowerCase()}.${more}`), h("div", { class: "scatters" }, ...plots));
      return plots.length > 0;
    };
  },

  numbers(body) {
    return (details) => {
      const played = Object.fromEntries(Object.entries(details.evaluation).map(([name, value]) => [name, typeof value === "string" ? value : number(value)]));
      fill(body, pairs(details.numbers), ...(Object.keys(played).length ? [h("h3", {}, "Last evaluation"), pairs(played)] : []));
      return true;
    };
  },

  members(body) {
    return (run, view) => {
      const settings = [...new Set(run.members.flatMap((one) => Object.keys(one.settings)))];
      const head = ["member", ...settings, "steps", "updates", run.score, "evaluation", "IQM", "episodes", "trusted: own", "others'", "steps/s", "skipped", "restarts", "copied"];
      const lines = run.members.map((one) => {
        const between = (ends) => (ends ? ` (${number(ends[0])} to ${number(ends[1])})` : "");
        const cells = [...settings.map((name) => one.settings[name] ?? "–"), count(one.steps), count(one.updates), number(one.score) + between(view.details?.intervals[one.member]), number(one.evaluation) + between(one.interval), number(one.iqm), count(one.episodes), share(one.own), share(one.others), number(one.steps_per_second), count(one.skipped), count(one.restarts), count(one.exploits)];
        const name = h("td", {}, h("i", { class: "swatch", style: { background: colour(one.member) } }), ` ${one.member}`);
        return h("tr", { class: one.member === run.best && run.is_sweep ? "best" : undefined }, name, ...cells.map((text) => h("td", {}, text)));
      });
      fill(body, rows("Members", head.map((text) => h("th", { scope: "col" }, text)), lines));
      return true;
    };
  },

  videos(body) {
    let shown = "";
    return (details, view) => {
      const wanted = JSON.stringify([view.run, details.videos.map((one) => one.id)]);
      if (wanted !== shown) {
        shown = wanted;  // or a video that is being watched would start again
        const near = details.videos.filter((one) => one.src?.startsWith("data:") ?? true);
        const links = details.videos.filter((one) => !near.includes(one)).map((one) => h("li", {}, h("a", { href: one.src }, one.name), one.return === null ? "" : ` · return ${number(one.return)}`, one.step === null ? "" : ` · step ${count(one.step)}`));
        const figures = near.slice(0, 12).map((one) => {
          const src = one.src ?? `/api/runs/${view.run}/videos/${one.id}`;
          const picture = one.media.startsWith("video/") ? h("video", { src, controls: true, preload: "metadata", "aria-label": one.return === null ? one.name : `episode with return ${number(one.return)} at step ${count(one.step)}`, loop: true, playsinline: true }) : h("img", { src, alt: one.name });
          const told = one.return === null ? [h("b", {}, one.name)] : [h("b", {}, `return ${number(one.return)}`), ` in ${count(one.length)} steps`];
          const more = [one.step === null ? null : `step ${count(one.step)}`, one.member === null ? null : `member ${one.member}`, one.task, clock(one.time)];
          return h("figure", {}, picture, h("figcaption", {}, ...told, h("br"), more.filter((text) => text !== null).join(" · ")));
        });
        fill(body, h("div", { class: "videos" }, ...figures), links.length ? h("ul", {}, ...links) : null);
      }
      return details.videos.length > 0;
    };
  },

  events(body) {
    return (details) => {
      const lines = details.events.slice().reverse().map((one) => h("tr", {}, h("td", {}, clock(one.time)), h("td", {}, count(one.step)), h("td", { class: "words" }, one.told ? `${one.event}: ${one.told}` : one.event)));
      const head = [h("th", { scope: "col" }, "when"), h("th", { scope: "col" }, "step"), h("th", { scope: "col", class: "words" }, "what")];
      fill(body, lines.length ? rows("What happened", head, lines) : h("p", { class: "empty" }, "Nothing out of the ordinary."));
      return true;
    };
  },

  machine(body) {
    let open = false;
    return (details) => {
      const machine = { ...details.machine };
      if (machine.started) machine.started = clock(machine.started);
      const every = h("details", { open }, h("summary", {}, `All ${Object.keys(details.settings).length} settings`), pairs(details.settings));
      every.addEventListener("toggle", () => (open = every.open));
      const sessions = details.sessions.map((one) => h("li", {}, `${clock(one.time)}: ${one.command}`));
      fill(body, pairs(machine), ...(sessions.length ? [h("h3", {}, "Started"), h("ul", {}, ...sessions)] : []), every);
      return true;
    };
  },
};

const pairs = (values) => h("dl", { class: "pairs" }, ...Object.entries(values).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

const rows = (title, head, lines) => h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": title }, h("table", { class: "rows" }, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...lines)));

// A setting across, the score up, a point a member; texts and few different numbers have a tick each.
function scatter(axis, points, hidden) {
  const width = 320, height = 230, left = 50, right = 14, top = 10, bottom = 42;
  const words = axis.values.some((value) => typeof value === "string");
  const different = [...new Set(axis.values)].sort((a, b) => a - b);
  const place = words ? (value) => different.indexOf(value) : axis.log ? Math.log10 : (value) => value;
  const across = scale(axis.values.map(place), left, width - right);
  const up = scale(points.map((one) => one.score), height - bottom, top);
  const named = words || different.length <= 6 ? different : ticks(...across.ends).map((v) => (axis.log ? 10 ** v : v));
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `score by ${axis.name}: ${points.length} points` });
  const text = (x, y, anchor, words) => { const made = svg("text", { x, y, "text-anchor": anchor }); made.textContent = words; drawing.append(made); };
  const rule = (x1, y1, x2, y2) => drawing.append(svg("line", { x1, y1, x2, y2, stroke: css("--grid") }));
  for (const at of ticks(...up.ends)) { rule(left, up(at), width - right, up(at)); text(left - 6, up(at) + 4, "end", compact(at)); }
  let last = -Infinity;
  for (const value of named) {
    const x = across(place(value));
    rule(x, top, x, height - bottom);
    if (x - last < 44) continue;
    text(x, height - bottom + 16, "middle", words ? value.slice(0, 12) : exponent(value));
    last = x;
  }
  text((left + width - right) / 2, height - 6, "middle", axis.log ? `${axis.name} (log)` : axis.name);
  const best = Math.max(...points.map((one) => one.score));
  const taken = {};  // members with the same numbers stand beside each other
  points.forEach((one, n) => {
    if (hidden.has(one.member)) return;
    const x = across(place(axis.values[n])), y = up(one.score), beside = (taken[`${Math.round(x)} ${Math.round(y)}`] ??= []).push(n) - 1;
    const title = svg("title");
    title.textContent = `${one.name}: ${axis.name} ${axis.values[n]}, score ${number(one.score)}`;
    const ring = one.score === best ? { stroke: css("--ink"), "stroke-width": 2 } : {};
    drawing.append(svg("circle", { cx: x + 6 * beside, cy: y, r: 5, fill: colour(one.member), "fill-opacity": 0.8, ...ring }, title));
  });
  return drawing;
}

function scale(values, from, to) {
  const low = Math.min(...values), high = Math.max(...values), room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 1;
  const made = (value) => from + ((to - from) * (value - low + room)) / (high - low + 2 * room);
  return Object.assign(made, { ends: [low - room, high + room] });
}

function ticks(low, high) {
  const rough = (high - low) / 4, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  return Array.from({ length: 6 }, (_, n) => Number(((Math.ceil(low / step) + n) * step).toPrecision(9))).filter((value) => value <= high);
}

function heat(title, rows, columns, values, top, write, sentence) {
  const highest = top ?? Math.max(1e-9, ...values.flat().filter((v) => v !== null));
  const cells = (row, i) => row.map((v, j) => {
    const strength = v === null ? 0 : Math.min(1, v / highest);
    const style = { backgroundColor: `rgba(${css("--heat")}, ${(0.06 + 0.94 * strength).toFixed(3)})`, color: strength > (isDark() ? 0.45 : 0.5) ? css("--heat-ink") : css("--ink") };
    return h("td", { style: v === null ? {} : style, "aria-label": sentence(rows[i], columns[j]).replace("{}", write(v)) }, write(v));
  });
  const head = h("thead", {}, h("tr", {}, h("td"), ...columns.map((name) => h("th", { scope: "col" }, name))));
  const body = h("tbody", {}, ...values.map((row, i) => h("tr", {}, h("th", { scope: "row" }, rows[i]), ...cells(row, i))));
  return h("div", { class: "scroll" }, h("table", {}, h("caption", {}, title), head, body));
}

export function tiles(place, run) {
  const best = run.best === null ? null : run.members[run.best];
  const sum = (name) => run.members.reduce((total, one) => total + (one[name] ?? 0), 0);
  const slowest = run.members.length ? Math.min(...run.members.map((one) => one.steps)) : 0;
  const faults = Object.entries(run.faults).filter(([, n]) => n > 0);
  const waits = run.members.map((one) => one.learner_wait).filter((v) => v !== null);
  const memory = Math.max(0, ...run.members.map((one) => one.memory_bytes ?? 0));
  const speed = sum("steps_per_second") / (run.is_sweep ? run.members.length : 1);
  const left = run.state === "running" && run.total && speed ? (run.total - slowest) / speed : null;
  const told = [
    [number(best?.score), run.is_sweep && best ? `best ${run.score}, member ${best.member}` : run.score],
    [run.total ? `${Math.floor((100 * slowest) / run.total)} %` : count(slowest), run.total ? `of ${count(run.total)} steps${run.is_sweep ? " each" : ""}` : "steps"],
    left === null || left < 0 ? null : [duration(left), "left at this speed"],
    [number(sum("steps_per_second")), run.is_sweep ? "steps/s of all" : "steps/s"],
    [number(sum("updates_per_second")), run.is_sweep ? "updates/s of all" : "updates/s"],
    waits.length ? [share(Math.max(...waits)), "learner waits at most"] : null,
    memory ? [bytes(memory), "memory"] : null,
    run.exploits ? [count(run.exploits), "copies or trials"] : null,
    ...(faults.length ? faults.map(([name, n]) => [count(n), name, "bad"]) : [["0", "faults: no skipped update, no restart"]]),
  ];
  fill(place, ...told.filter(Boolean).map(([value, text, mark]) => h("div", { class: `tile ${mark ?? ""}` }, h("b", {}, value), h("span", {}, text))));
}
