// Shows messages of /v1/log. Payloads, keys and headers are strangers' input: they only become text.
"use strict";
const $ = (id) => document.getElementById(id);
let shown = [], next = "";

const bytesOf = (text) => Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
function dump(bytes) { // as hexdump -C prints it
  const lines = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = [...bytes.subarray(at, at + 16)];
    const hex = row.map((each) => each.toString(16).padStart(2, "0")).join(" ").padEnd(48);
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex} ${row.map((each) => (each > 31 && each < 127 ? String.fromCharCode(each) : ".")).join("")}`);
  }
  return lines.join("\n");
}
function written(message, name, form) {
  const text = message[name], binary = message[`${name}_base64`];
  if (text === undefined && binary === undefined) return "";
  if (form === "hex") return dump(text === undefined ? bytesOf(binary) : new TextEncoder().encode(text));
  if (text === undefined) return dump(bytesOf(binary));
  if (form === "JSON") try { return JSON.stringify(JSON.parse(text), null, 2); } catch { /* is shown as it is */ }
  return text;
}
function cell(text, kind) {
  const td = document.createElement("td");
  if (kind === "n") td.className = "n";
  if (kind === "pre") { const pre = document.createElement("pre"); pre.textContent = text; td.append(pre); } else td.textContent = text;
  return td;
}
function draw() {
  const form = $("form").value;
  $("messages").replaceChildren(...shown.map((each) => {
    const tr = document.createElement("tr");
    const headers = each.headers || each.headers_base64;
    tr.append(cell(each.number, "n"), cell(each.position), cell(each.session), cell(each.sequence, "n"), cell(each.time),
      cell(written(each, "key", form), form === "hex" ? "pre" : ""), cell(headers ? JSON.stringify(headers) : ""), cell(written(each, "payload", form), "pre"));
    return tr;
  }));
}
async function ask(from) {
  const query = new URLSearchParams({ from, max: $("max").value || "20" });
  if ($("session").value) query.append("session", $("session").value.trim());
  if ($("key").value) query.append("where", `key=${$("key").value}`);
  if ($("where").value) query.append("where", $("where").value);
  const token = $("token").value;
  $("answer").className = ""; $("answer").textContent = "Reading …";
  try {
    const answer = await fetch(`/v1/log?${query}`, { cache: "no-store", headers: token ? { Authorization: `Bearer ${token}` } : {} });
    const text = await answer.text();
    next = answer.headers.get("Rt-Next") || "";
    if (!answer.ok) throw new Error(text.trim() || `the gateway answered ${answer.status}`);
    shown = text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
    const damaged = answer.headers.get("Rt-Undecodable-Frames");
    const isEnd = answer.headers.get("Rt-Up-To-Date");
    $("answer").textContent = `${shown.length} message${shown.length === 1 ? "" : "s"}${damaged ? `; ${damaged} frames cannot be decoded` : ""}. ${isEnd ? "That is the end of the gateway's copy." : shown.length ? "There is more." : `Nothing found up to ${next}; the search goes on with Next.`}`;
  } catch (error) {
    shown = []; $("answer").className = "bad"; $("answer").textContent = error.message;
  }
  $("next").hidden = !next;
  draw();
}
$("question").addEventListener("submit", (event) => { event.preventDefault(); ask($("from").value.trim() || "earliest"); });
$("next").addEventListener("click", () => ask(next));
$("form").addEventListener("change", draw);
