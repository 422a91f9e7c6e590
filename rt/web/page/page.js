// Shows /overview, which arrives over /events. No dependency, no build step, no request elsewhere.
// Names of sessions and clients are strangers' input: they only ever become text, never markup.
"use strict";
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const KEPT = 120; // samples in a sparkline
const STALE_MS = 5000; // silence after which what is shown must not look current
const LEVELS = { ok: ["✓", "Healthy"], degraded: ["▲", "Degraded"], broken: ["✕", "Broken"] };
let wanted = "", seen = null, seenAt = 0, skew = 0, source = null, retryMs = 1000, retryTimer = 0, search = "";
let found = null, files = null, beat = 0;
const STREAM = new URLSearchParams(location.search).get("stream") || ""; // "" is all of the process
const rates = new Map(); // name -> numbers, the newest last

// Text

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
function size(bytes) {
  let unit = 0;
  while (bytes >= (unit ? 1023.5 : 1024) && unit < UNITS.length - 1) { bytes /= 1024; unit++; }
  return `${bytes.toFixed(unit === 0 || bytes >= 99.95 ? 0 : 1)} ${UNITS[unit]}`;
}
const count = (number) => Math.round(number).toLocaleString("en");
const filesOf = (number) => `${count(number)} file${number === 1 ? "" : "s"}`;
const rate = (bytes) => (bytes ? `${size(bytes)}/s` : "–");
const now = () => Date.now() + skew; // the server's clock
function span(ms) {
  const s = Math.max(0, ms / 1000);
  if (s < 1) return "now";
  if (s < 90) return `${Math.round(s)} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  return s < 129600 ? `${Math.round(s / 3600)} h` : `${Math.round(s / 86400)} d`;
}
const waited = (s, bytes, none) => (s >= 1 ? span(s * 1000) : s || bytes ? "under 1 s" : none);
const ago = (ns) => (ns ? span(now() - ns / 1e6) : "–");
const since = (ns) => (ago(ns) === "now" ? "now" : `${ago(ns)} ago`);
const clock = (ns) => new Date(ns / 1e6).toLocaleTimeString("en-GB");
function moment(ns) {
  const at = new Date(ns / 1e6), today = new Date(now()).toDateString() === at.toDateString();
  return (today ? "" : `${at.toLocaleDateString("en-CA")} `) + at.toLocaleTimeString("en-GB");
}

// Elements

function make(tag, attributes, ...children) {
  const svg = ["svg", "path", "rect", "line", "text", "polyline", "polygon", "title", "g"].includes(tag);
  const node = svg ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
function say(node, text) { if (node.textContent !== text) node.textContent = text; }
function kind(node, name) { if (node.getAttribute("class") !== name) node.setAttribute("class", name); }

// Keeps the rows that are there, so that neither focus nor a selection is lost each second.
function fill(body, items, key, create, update) {
  const old = new Map([...body.children].map((each) => [each.dataset.key, each]));
  let place = body.firstElementChild;
  for (const item of items) {
    const name = String(key(item));
    let node = old.get(name);
    if (node) old.delete(name);
    else { node = create(item); node.dataset.key = name; }
    if (node === place) place = place.nextElementSibling;
    else body.insertBefore(node, place);
    update(node, item);
  }
  for (const node of old.values()) node.remove();
}
function table(id, items, key, cells, bad) {
  fill($(id), items, key, (item) => {
    const row = make("tr");
    for (const cell of cells(item)) row.append(make("td", cell.class ? { class: cell.class } : {}));
    return row;
  }, (row, item) => {
    kind(row, bad && bad(item) ? "bad" : "");
    cells(item).forEach((cell, place) => put(row.children[place], cell));
  });
}
function put(td, cell) {
  if (cell.mark !== undefined) td.dataset.mark = cell.mark;
  if (cell.href !== undefined) {
    if (!td.firstElementChild) td.replaceChildren(make("a"));
    td.firstElementChild.setAttribute("href", cell.href);
    say(td.firstElementChild, cell.text);
  } else if (cell.tag !== undefined) {
    if (!td.firstElementChild) td.replaceChildren(make("span"));
    kind(td.firstElementChild, `tag ${cell.tag}`);
    say(td.firstElementChild, cell.text);
  } else say(td, cell.text);
}
const text = (value) => ({ text: String(value) });
const number = (value) => ({ text: String(value), class: "n" });

// Sparklines. A node keeps ten minutes of its own; of all else the page keeps what it has seen.

function keep(name, value) {
  const kept = rates.get(name) || [];
  kept.push(value);
  if (kept.length > KEPT) kept.shift();
  rates.set(name, kept);
}
function spark(svg, kept, width, height) {
  const top = Math.max(1e-9, ...kept);
  const x = (place) => (width * (place + KEPT - kept.length)) / (KEPT - 1);
  const points = kept.map((value, place) => `${x(place).toFixed(1)},${(height - 2 - (value / top) * (height - 6)).toFixed(1)}`);
  if (!svg.firstChild) svg.append(make("polygon", { class: "area" }), make("polyline", { class: "spark" }));
  svg.lastChild.setAttribute("points", points.join(" "));
  svg.firstChild.setAttribute("points", points.length ? `${x(0)},${height} ${points.join(" ")} ${width},${height}` : "");
}
function tiles(items) {
  fill($("tiles"), items, (each) => each.name, (each) => make("div", { class: "tile" }, make("span", {}, each.name), make("b"), make("span"), make("span", { class: "most" }),
    make("svg", { viewBox: "0 0 240 34", preserveAspectRatio: "none", "aria-hidden": "true" })), (node, each) => {
    const [, value, note, most, svg] = node.children;
    if (!each.steps) keep(each.name, each.rate);
    const kept = each.steps || rates.get(each.name), top = Math.max(0, ...kept);
    say(value, each.value); say(note, each.note);
    say(most, `most in ${each.steps ? "10" : "2"} min: ${(each.write || rate)(top)}`); spark(svg, kept, 240, 34);
  });
}

// The topology

function box(id, items) {
  fill($(id), items, (each) => each.key, () => make("div", {}, make("b"), make("span")), (node, each) => {
    kind(node, `box ${each.kind || ""}`.trim()); say(node.children[0], each.name); say(node.children[1], each.note);
  });
}
function topology(data) {
  const sessions = data.sessions.rows.slice(0, 6).map((each) => ({ key: each.session, name: each.session, kind: each.state === "waits" ? "waits" : "", note: each.state === "moving" ? rate(each.bytes_per_s) : each.state, flows: each.bytes_per_s > 0, away: each.state === "away" }));
  if (data.sessions.total > sessions.length) sessions.push({ key: " more", name: `${count(data.sessions.total - sessions.length)} more`, note: "sessions", flows: false });
  if (!sessions.length) sessions.push({ key: " none", name: "no session yet", note: "rt publish, rt push", away: true });
  const nodes = data.nodes.map((each) => ({ key: each.name, name: each.name, away: each.is_away, kind: each.is_away ? "away" : each.name === data.leader ? "leader" : "", note: each.is_away ? "" : each.behind ? `${count(each.behind)} messages behind` : each.messages === null ? each.role : `${count(each.messages)} messages` }));
  const clients = data.clients.slice(0, 6).map((each) => ({ key: `${each.node} ${each.address}`, name: each.peer, node: each.node, note: each.is_away ? `left ${since(each.since_ns)}` : each.lag_bytes ? `${size(each.lag_bytes)} behind` : "has everything", flows: data.flow.merged.bytes_per_s > 0, kind: each.is_away ? "away" : each.waiting_s > 2 ? "waits" : "", away: each.is_away }));
  if (data.clients.length > 6) clients.push({ key: " more", name: `${count(data.clients.length - 6)} more`, note: "subscribers" });
  if (!clients.length) clients.push({ key: " none", name: "no subscriber", note: "rt pull", away: true });
  box("map-sessions", sessions); box("map-nodes", nodes); box("map-clients", clients);
  wires(sessions, nodes, clients);
}
function wires(sessions, nodes, clients) {
  const origin = $("map").getBoundingClientRect(), paths = [];
  const side = (column, place, right) => {
    const at = $(column).children[place].getBoundingClientRect();
    return [(right ? at.right : at.left) - origin.left, at.top + at.height / 2 - origin.top];
  };
  const wire = (from, to, name) => {
    const middle = (from[0] + to[0]) / 2;
    paths.push([`M${from[0]} ${from[1]}C${middle} ${from[1]} ${middle} ${to[1]} ${to[0]} ${to[1]}`, name]);
  };
  sessions.forEach((session, i) => nodes.forEach((node, j) => {
    if (!session.away) wire(side("map-sessions", i, true), side("map-nodes", j, false), node.away ? "cut" : session.flows ? "flows" : "");
  }));
  clients.forEach((client, i) => nodes.forEach((node, j) => {
    if (node.name === client.node && !client.away) wire(side("map-nodes", j, true), side("map-clients", i, false), node.away ? "cut" : client.flows ? "flows" : "");
  }));
  // Moves the dashes at each event: an animation would keep a core a third busy, and move without news.
  $("wires").setAttribute("stroke-dashoffset", -4 * (beat++ % 3));
  fill($("wires"), paths, (each) => each.join(), (each) => make("path", { d: each[0], class: each[1] }), () => {});
}

// Tables

const nodeCells = (each) => [
  text(each.name + (each.is_here ? " (this page)" : "")),
  { text: each.is_away ? "away" : each.role || "?", tag: each.is_away ? "away" : each.role },
  number(each.messages === null ? "–" : count(each.messages)),
  number(each.behind === null ? "–" : each.behind ? count(each.behind) : "0"),
  text(each.merged_end || "–"),
  { ...number(each.disk_free === null ? "–" : size(each.disk_free) + (each.disk_state && ` ▲ ${each.disk_state}`)), mark: each.disk_state },
  number(each.is_known ? `${each.pushing} / ${each.pulling}` : "–"),
  { text: each.trouble || (each.is_late ? "acknowledges before it syncs" : ""), class: "wrap" },
];
const sessionCells = (each) => [
  { text: each.session, href: `#session/${encodeURIComponent(each.session)}` },
  { text: each.state, tag: each.state }, text(each.pushed_by || "–"), number(rate(each.bytes_per_s)), number(size(each.bytes)),
  number(each.lag_bytes ? size(each.lag_bytes) : "0"), number(waited(each.waiting_s, 0, "–")), number(ago(each.last_ns)),
];
const clientCells = (each) => [
  text(each.peer), each.is_away ? { text: "away", tag: "away" } : text(each.node), text(each.address), number(size(each.bytes)),
  number(each.lag_bytes ? size(each.lag_bytes) : "0"), number(waited(each.waiting_s, 0, "–")), number(ago(each.since_ns)),
];
const known = (value, write) => (value === null ? "–" : write(value));
const cursorCells = (each) => [
  { text: each.cursor, href: `#cursor/${encodeURIComponent(each.cursor)}` }, text(each.holder || "no one"), text(each.position),
  number(known(each.lag_messages, count)), number(known(each.lag_bytes, size)), number(known(each.lag_s, (s) => (s ? span(s * 1000) : "–"))), number(ago(each.stored_ns)),
];
function cursorsTable(cursors) {
  $("cursors-section").hidden = !cursors.length;
  table("cursors", cursors, (each) => each.cursor, cursorCells, (each) => each.lag_bytes > 0 && !each.holder);
  say($("cursors-count"), count(cursors.length));
}
function sessionsTable(data) {
  const rows = search && found ? found.rows : data.sessions.rows, total = data.sessions.total;
  table("sessions", rows, (each) => each.session, sessionCells, (each) => each.state === "waits");
  say($("sessions-count"), `${count(total)}${data.sessions.troubled ? `, ${data.sessions.troubled} waiting` : ""}`);
  const matches = search && found ? found.found : total;
  say($("sessions-more"), matches > rows.length ? `The first ${rows.length} of ${count(matches)}, those in trouble first, then by order of magnitude of their rate. Search to find others.` : rows.length ? "" : "None.");
}
function events(data) {
  fill($("events"), data.events, (each) => each.key, (each) => make("li", {}, make("time", {}, clock(each.at_ns)), make("span", { class: each.level }, each.level), make("span")), (node, each) => say(node.lastChild, each.text + (each.more ? ` … and ${count(each.more)} more like it` : "")));
}

// The merged log on a time axis

function drawFiles() {
  if (!files) return;
  const svg = $("axis"), width = svg.clientWidth || 600, last = now() * 1e6;
  const shown = files.filter((each) => each.messages);
  svg.setAttribute("viewBox", `0 0 ${width} 84`);
  if (!shown.length) { svg.replaceChildren(make("text", { x: 0, y: 40 }, "Nothing is merged yet.")); say($("plan"), ""); return; }
  const first = Math.min(...shown.map((each) => each.first_ns)), range = Math.max(1e9, last - first);
  const x = (ns) => 1 + ((ns - first) / range) * (width - 2), tall = Math.max(...shown.map((each) => each.bytes), 1);
  const bars = shown.map((each) => {
    const left = x(each.first_ns), height = 14 + 36 * Math.sqrt(each.bytes / tall);
    const state = each.state === "archived" ? "archived" : each.goes || each.is_next ? "next" : each.state;
    const bar = make("rect", { x: left.toFixed(1), y: (62 - height).toFixed(1), width: Math.max(2, x(each.last_ns) - left - 1).toFixed(1), height: height.toFixed(1), rx: 2, class: state });
    bar.append(make("title", {}, `${each.file}: ${each.state}, ${count(each.messages)} messages, ${size(each.bytes)}`));
    return bar;
  });
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => make("text", { x: (part * (width - 2)).toFixed(1), y: 78, "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, part === 1 ? "now" : moment(first + part * range)));
  svg.replaceChildren(make("line", { class: "base", x1: 0, x2: width, y1: 63, y2: 63 }), ...bars, ...ticks);
  const live = files.filter((each) => each.state !== "archived");
  say($("files-count"), `${filesOf(live.length)}, ${size(live.reduce((sum, each) => sum + each.bytes, 0))}`);
  say($("plan"), plan());
  table("files", files.slice(-20).reverse(), (each) => each.file, (each) => [text(each.file), { text: each.state, tag: each.state }, number(count(each.messages)), number(size(each.bytes)), text(each.messages ? moment(each.first_ns) : "–"), { text: fate(each), class: "wrap" }]);
}
function fate(file) {
  if (file.state === "archived") return `at ${moment(file.archived_ns)}, by ${file.why}`;
  if (file.goes) return `goes now, by ${file.why}`;
  return file.expires_ns ? `by time, at ${moment(file.expires_ns)}` : "–";
}
function plan() {
  const going = files.filter((each) => each.goes), next = files.find((each) => each.is_next);
  if (going.length) return `The archiver takes ${going.length === 1 ? going[0].file : filesOf(going.length)} now, by ${going[0].why}.`;
  if (next) return `Next the archiver takes ${next.file}${next.expires_ns ? `, at the latest ${moment(next.expires_ns)}` : ", when another rule asks for it"}.`;
  return "There is no rolled file for the archiver to take.";
}

// A page for one session

function cursorPage(data, named) {
  const each = (data.cursors || []).find((row) => row.cursor === named);
  $("session-page").hidden = false; $("stream-page").hidden = true; $("session-figure").hidden = true;
  say($("session-name"), `Cursor ${named}`);
  const facts = each ? [["Read by", each.holder || "no one now"], ["Owner", each.owner], ["Acknowledged to", each.position], ["Messages behind", known(each.lag_messages, count)],
    ["Bytes behind", known(each.lag_bytes, size)], ["Behind by", known(each.lag_s, (s) => (s ? span(s * 1000) : "nothing"))], ["Last acknowledged, taken or moved", since(each.stored_ns)],
    ["Kept for it", each.pin_bytes ? `at most ${size(each.pin_bytes)}` : "nothing beyond the policy"]] : [["Cursor", "this stream has no cursor of that name"]];
  fill($("session-facts"), facts, (fact) => fact[0], (fact) => make("div", {}, make("dt", {}, fact[0]), make("dd")), (node, fact) => say(node.lastChild, fact[1]));
}
function sessionPage(data) {
  if (location.hash.startsWith("#cursor/")) { cursorPage(data, decodeURIComponent(location.hash.slice(8))); return; }
  $("session-figure").hidden = false;
  const named = location.hash.startsWith("#session/") ? decodeURIComponent(location.hash.slice(9)) : null;
  $("session-page").hidden = named === null; $("stream-page").hidden = named !== null;
  if (named === null) return;
  const each = (found && found.name === named ? found.exact : null) || data.sessions.rows.find((row) => row.session === named);
  say($("session-name"), named);
  const facts = each ? [["State", each.state], ["Pushed by", each.pushed_by || "no one now"], ["Connected for", ago(each.connected_ns)], ["Rate", rate(each.bytes_per_s)],
    ["Received since the node started", `${size(each.bytes)}, ${count(each.messages)} messages`], ["Last bytes", each.last_ns ? since(each.last_ns) : "none since the node started"],
    ["Received to", each.received], ["Synced to", each.durable], ["Merged to", each.merged], ["Still to merge", size(each.lag_bytes)], ["Oldest has waited", waited(each.waiting_s, each.lag_bytes, "nothing waits")]]
    : [["Session", "this node has no session of that name"]];
  fill($("session-facts"), facts, (fact) => fact[0], (fact) => make("div", {}, make("dt", {}, fact[0]), make("dd")), (node, fact) => say(node.lastChild, fact[1]));
  if (each) { spark($("session-spark"), rates.get(`session ${named}`) || [], 600, 90); }
}

// Keeps the rates of the sessions that are shown, and forgets the others.
function remember(rows) {
  const names = new Set(rows.map((each) => `session ${each.session}`));
  if (found && found.exact) { names.add(`session ${found.name}`); if (!rows.some((each) => each.session === found.name)) keep(`session ${found.name}`, found.exact.bytes_per_s); }
  for (const each of rows) keep(`session ${each.session}`, each.bytes_per_s);
  for (const name of rates.keys()) if (name.startsWith("session ") && !names.has(name)) rates.delete(name);
}

// All streams of a process

const streamHref = (name) => `/?stream=${encodeURIComponent(name)}`;
const streamCells = (each) => [
  { text: each.stream, href: streamHref(each.stream) },
  { text: `${LEVELS[each.level][0]} ${LEVELS[each.level][1].toLowerCase()}`, tag: each.level },
  text(each.leader || "none"), text(each.role || "–"), number(rate(each.bytes_per_s)),
  number(each.lag_bytes ? size(each.lag_bytes) : "0"), number(waited(each.waiting_s, 0, "–")),
  number(count(each.sessions)), { text: each.level === "ok" ? "" : each.text, class: "wrap" },
];
function streamsTable(data) {
  const rows = data.streams.filter((each) => each.stream.includes(wanted));
  table("streams", rows, (each) => each.stream, streamCells, (each) => each.level !== "ok");
  say($("streams-count"), count(data.streams.length));
  say($("streams-more"), rows.length ? "" : "None has such a name.");
}
function showHost(data) {
  say($("name"), `node ${data.name} · up ${span(now() - data.began_ns / 1e6)}`);
  document.title = `${LEVELS[data.verdict.level][0]} ${data.name} – rt`;
  streamsTable(data); events(data);
}

// All of it

function show(data) {
  const first = seen === null;
  seen = data; seenAt = Date.now(); skew = data.at_ns / 1e6 - Date.now();
  fresh(true);
  const [mark, level] = LEVELS[data.verdict.level] || ["?", data.verdict.level];
  $("verdict").dataset.level = data.verdict.level;
  say($("mark"), mark); say($("level"), level); say($("words"), data.verdict.text);
  say($("version"), `· rt ${data.version}`);
  $("host-page").hidden = data.kind !== "host"; $("parts").hidden = data.kind === "host"; $("all-streams").hidden = !STREAM;
  if (data.kind === "host") { $("session-page").hidden = true; $("stream-page").hidden = false; showHost(data); return; }
  say($("name"), `stream ${data.stream} as ${data.name} sees it${data.term ? ` · term ${data.term}` : ""} · up ${span(now() - data.began_ns / 1e6)}`);
  document.title = `${mark} ${data.stream} – rt`;
  tiles(data.tiles || nodeTiles(data));
  topology(data);
  table("nodes", data.nodes, (each) => each.name, nodeCells, (each) => each.is_away || each.trouble !== "");
  sessionsTable(data);
  table("clients", data.clients, (each) => `${each.node} ${each.address}`, clientCells, (each) => each.waiting_s > 2);
  say($("clients-count"), count(data.clients.filter((each) => !each.is_away).length));
  cursorsTable(data.cursors || []);
  remember(data.sessions.rows);
  events(data); sessionPage(data);
  if (first) look();
}
function nodeTiles({ flow, trend }) {
  const tile = (name, hop, steps) => ({ name, value: `${size(hop.bytes_per_s)}/s`, note: `${count(hop.messages_per_s)} messages/s`, steps });
  return [tile("Received", flow.received, trend.received), tile("Merged", flow.merged, trend.merged), tile("Sent to subscribers", flow.sent, trend.sent),
    { name: "Oldest waiting", value: waited(flow.waiting_s, flow.unmerged, "none"), note: `${size(flow.unmerged)} to merge`, steps: trend.waiting_s, write: (s) => waited(s, 0, "none") }];
}
function fresh(is) {
  document.body.classList.toggle("stale", !is);
  if (!is && seen) { // neither the tab nor the headline may go on saying that all is well
    document.title = `✕ no answer – ${seen.stream || seen.name}`;
    $("verdict").dataset.level = "unknown";
    say($("mark"), "✕"); say($("level"), "No answer");
    say($("words"), `${seen.name} has not answered for ${span(Date.now() - seenAt)}; it, or the way to it, is down. What follows was so at ${clock(seen.at_ns)}.${seen.kind === "node" && seen.nodes.length > 1 ? " The pages of the other nodes say how the stream is now." : ""}`);
  }
  say($("live"), is ? "● live" : seen ? `✕ stale: nothing heard for ${span(Date.now() - seenAt)}` : "✕ no answer yet");
}
const about = (path, more = "") => path + (STREAM || more ? `?${[STREAM && `stream=${encodeURIComponent(STREAM)}`, more].filter(Boolean).join("&")}` : "");
async function fetched(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error || answer.status);
  return answer.json();
}
async function look() { // what is not in the stream of events: files, a search, one session
  if (document.hidden || !seen || seen.kind === "host") return;
  try {
    const named = location.hash.startsWith("#session/") ? decodeURIComponent(location.hash.slice(9)) : "";
    if (named || search) {
      const asked = named || search, answer = await fetched(about("/sessions", `search=${encodeURIComponent(asked)}`));
      if (asked === (named || search)) found = { ...answer, name: named, exact: answer.rows.find((row) => row.session === named) };
    } else found = null;
    if (!named) { files = await fetched(about("/files")); drawFiles(); }
    sessionsTable(seen); sessionPage(seen);
  } catch { /* the watchdog says that nothing is heard */ }
}

// The connection: an EventSource gives up for good on an answer such as a proxy's 502, so a watchdog
// of our own opens another, and asks for /overview meanwhile.

function open() {
  clearTimeout(retryTimer);
  if (source) source.close();
  source = new EventSource(about("/events"));
  source.onmessage = (event) => { retryMs = 1000; show(JSON.parse(event.data)); };
}
function reopen() {
  if (source) source.close();
  source = null;
  clearTimeout(retryTimer);
  retryTimer = setTimeout(async () => {
    try { show(await fetched(about("/overview"))); } catch (error) { fresh(false); if (!seen) say($("words"), error.message); }
    open();
  }, retryMs * (0.5 + Math.random() / 2));
  retryMs = Math.min(30000, retryMs * 2);
}
setInterval(() => {
  if (document.hidden || Date.now() - seenAt < STALE_MS) return;
  fresh(false);
  if (source && (source.readyState === EventSource.CLOSED || Date.now() - seenAt > 2 * STALE_MS)) reopen();
}, 1000);
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { if (source) source.close(); source = null; clearTimeout(retryTimer); } else { open(); look(); }
});
addEventListener("hashchange", () => { found = null; if (seen && seen.kind !== "host") sessionPage(seen); look(); scrollTo(0, 0); });
addEventListener("resize", () => { if (seen && seen.kind !== "host") { topology(seen); drawFiles(); } });
$("stream-search").addEventListener("input", () => { wanted = $("stream-search").value.trim(); if (seen) streamsTable(seen); });
$("search").addEventListener("input", () => { search = $("search").value.trim(); if (!search) found = null; look(); });
addEventListener("keydown", (event) => {
  if (event.key === "/" && event.target.tagName !== "INPUT") { event.preventDefault(); location.hash = ""; $(seen && seen.kind === "host" ? "stream-search" : "search").focus(); }
  if (event.key === "Escape") { if (event.target.tagName === "INPUT") { event.target.value = ""; event.target.dispatchEvent(new Event("input")); } else location.hash = ""; }
});
setInterval(look, 2000);
open();
