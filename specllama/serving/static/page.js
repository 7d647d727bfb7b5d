// The chat page. One reply at a time; nothing is loaded from, or sent to, anywhere but this server.
"use strict";

const at = (id) => document.getElementById(id);
const messages = [];
let model = "";
let reply = null; // the AbortController of the reply under way

// Talking to the server

function headers() {
  const key = at("key").value || sessionStorage.getItem("specllama-key") || "";
  return { "content-type": "application/json", ...(key && { authorization: `Bearer ${key}` }) };
}

async function ask(path, init = {}) {
  const response = await fetch(path, { ...init, headers: headers() });
  if (response.status === 401) askForKey();
  if (!response.ok) throw new Error(await reasonOf(response));
  if (at("key").value) sessionStorage.setItem("specllama-key", at("key").value);
  return response;
}

async function reasonOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status} ${response.statusText}.`;
  }
}

function askForKey() {
  sessionStorage.removeItem("specllama-key");
  at("key-label").hidden = false;
  at("key").focus();
}

// The objects of an event stream, as they come
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (waiting + value).split("\n");
    waiting = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") yield JSON.parse(line.slice(6));
    }
  }
}

function numberIn(id) {
  const value = at(id).value;
  return value === "" ? undefined : Number(value);
}

function request() {
  const system = at("system").value.trim();
  return {
    model,
    stream: true,
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    temperature: numberIn("temperature"),
    max_tokens: numberIn("max-tokens"),
    seed: numberIn("seed"),
    "speculative.n_max": numberIn("n-max"),
  };
}

// What people see

function show(role, text = "") {
  at("empty")?.remove();
  const turn = document.createElement("div");
  turn.className = `turn ${role}`;
  turn.textContent = text;
  at("log").append(turn);
  scrollDown(true);
  return turn;
}

function scrollDown(always) {
  const log = at("log");
  if (always || log.scrollHeight - log.scrollTop - log.clientHeight < 80) {
    log.scrollTop = log.scrollHeight;
  }
}

function append(turn, text, source) {
  const kind = source ? "drafted" : "own";
  let last = turn.lastElementChild;
  if (!last || last.dataset.source !== source) {
    last = document.createElement("span");
    last.className = kind;
    last.dataset.source = source;
    if (source) last.title = `drafted: ${source}`;
    turn.append(last);
  }
  last.append(text);
  scrollDown(false);
}

function note(turn, text) {
  const line = document.createElement("div");
  line.className = "note";
  line.textContent = text;
  turn.append(line);
}

function fail(text) {
  at("error").textContent = text;
  at("error").hidden = !text;
}

function busy(is) {
  at("send").hidden = is;
  at("stop").hidden = !is;
  at("clear").disabled = is;
}

// Figures of the reply under way: every round ends with one token of the target's own
class Figures {
  constructor() {
    this.asked = performance.now();
    this.first = 0;
    this.tokens = this.rounds = 0;
  }

  count({ source, tokens }) {
    const now = performance.now();
    if (!this.first) {
      this.first = now;
      this.before = tokens;
      at("first").textContent = `${((now - this.asked) / 1000).toFixed(2)} s`;
    }
    this.tokens += tokens;
    if (!source) this.rounds += tokens;
    const seconds = (now - this.first) / 1000;
    if (seconds > 0.2) this.rate((this.tokens - this.before) / seconds);
    if (this.rounds) at("per-round").textContent = (this.tokens / this.rounds).toFixed(2);
  }

  rate(value) {
    at("rate").textContent = value.toFixed(1);
  }

  end(timings, speculation) {
    if (timings.predicted_per_second) this.rate(timings.predicted_per_second);
    at("per-round").textContent = speculation.tokens_per_round.toFixed(2);
    const drafted = timings.draft_n;
    at("accepted").textContent = drafted
      ? `${Math.round((100 * timings.draft_n_accepted) / drafted)} % of ${drafted}`
      : "–";
    at("inexact").hidden = speculation.lossless;
    at("inexact").textContent = speculation.lossless ? "" : speculation.guarantee;
    showDepths(speculation.by_depth.filter((depth) => depth.tested));
  }
}

function showDepths(depths) {
  at("no-depths").hidden = depths.length > 0;
  at("depths").replaceChildren(...depths.map(depthRow));
}

function depthRow({ tested, accepted }, index) {
  const row = document.createElement("li");
  row.title = `${accepted} of ${tested}`;
  const [place, bar, share] = ["span", "div", "span"].map((tag) => document.createElement(tag));
  const percent = Math.round((100 * accepted) / tested);
  place.textContent = index + 1;
  share.textContent = `${percent} %`;
  bar.className = "bar";
  const filled = document.createElement("span");
  filled.style.width = `${percent}%`;
  bar.append(filled);
  row.append(place, bar, share);
  return row;
}

// One turn

async function send(text) {
  fail("");
  messages.push({ role: "user", content: text });
  const question = show("user", text);
  const turn = show("assistant");
  turn.setAttribute("aria-busy", "true");
  reply = new AbortController();
  busy(true);
  try {
    await follow(turn, reply.signal);
  } catch (error) {
    if (error.name === "AbortError") note(turn, "(stopped)");
    else fail(error.message || String(error));
  } finally {
    turn.removeAttribute("aria-busy");
    keep(question, turn);
    reply = null;
    busy(false);
  }
}

async function follow(turn, signal) {
  const figures = new Figures();
  const init = { method: "POST", body: JSON.stringify(request()), signal };
  const response = await ask("v1/chat/completions", init);
  for await (const chunk of eventsOf(response)) {
    if (chunk.error) throw new Error(chunk.error.message);
    const choice = chunk.choices[0];
    if (!choice) continue;
    if (choice.delta.content) append(turn, choice.delta.content, chunk.specllama?.source ?? "");
    if (chunk.specllama?.tokens) figures.count(chunk.specllama);
    if (choice.finish_reason) figures.end(chunk.timings, chunk.specllama);
    if (choice.finish_reason === "length") note(turn, "(cut: no room for more)");
  }
}

// A reply that has said something is part of the conversation; a question without one is not
function keep(question, turn) {
  const said = [...turn.querySelectorAll("span")].map((span) => span.textContent).join("");
  if (said) {
    messages.push({ role: "assistant", content: said });
    return;
  }
  messages.pop();
  if (!at("message").value) at("message").value = question.textContent;
  question.remove();
  turn.remove();
}

async function start() {
  try {
    const found = await (await ask("v1/models")).json();
    const { id, meta } = found.data[0];
    model = id;
    at("models").textContent = meta.draft ? `${id} · draft ${meta.draft}` : `${id} · no draft model`;
    showDefaults((await (await ask("props")).json()).default_generation_settings);
    fail("");
  } catch (error) {
    fail(error.message || String(error));
  }
}

function showDefaults({ sampling, max_tokens, seed, draft_max }) {
  at("temperature").placeholder = sampling.temperature;
  at("max-tokens").placeholder = max_tokens ?? "no limit";
  at("seed").placeholder = seed ?? "any";
  at("n-max").placeholder = draft_max;
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (reply) return;
  if (!model) await start();
  const text = at("message").value.trim();
  if (!model || !text) return;
  at("message").value = "";
  send(text);
});

at("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    at("form").requestSubmit();
  }
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") reply?.abort();
});

at("stop").addEventListener("click", () => {
  reply?.abort();
  at("message").focus();
});

at("clear").addEventListener("click", () => {
  messages.length = 0;
  at("log").replaceChildren();
  fail("");
  at("message").focus();
});

start();
