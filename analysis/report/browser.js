// The rollout browser. Everything shown comes from the JSON beside it and is written as text (textContent), never as
// HTML: episodes hold what models and websites wrote.
"use strict";
(() => {
  const source = document.getElementById("rollout-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const byId = (id) => document.getElementById(id);
  const list = byId("rollout-list");
  const detail = byId("rollout-detail");
  const count = byId("rollout-count");
  const filters = [...document.querySelectorAll("#rollout-filters [data-filter]")];
  const SIGNS = { demonstrates: "+", violates: "−", error: "?" };
  const WORDS = { demonstrates: "demonstrated", violates: "violated", error: "no verdict" };
  let shown = [];
  let current = -1;

  /** An element with attributes and children; strings become text nodes. */
  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === true) element.setAttribute(name, "");
      else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== "" && child !== false));
    return element;
  }
  const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
  const words = (name) => name.replaceAll("_", " ");
  const fixed = (value) => (value === null ? "–" : value.toFixed(3));
  const stepOf = (rollout) => (rollout.split === "training" ? data.steps[`${rollout.method}/${rollout.step}`] : undefined);
  const groupOf = (rollout) => stepOf(rollout)?.groups.find((group) => group[0] === rollout.group);
  const selectedOf = (rollout) => {
    const group = groupOf(rollout);
    return group ? (group[3] === null ? "no" : "yes") : "";
  };

  // ---- filters
  const tests = {
    environment: (rollout, value) => rollout.environment === value,
    method: (rollout, value) => rollout.method === value,
    split: (rollout, value) => rollout.split === value,
    step: (rollout, value) => String(rollout.step) === value,
    outcome: (rollout, value) => rollout.outcome === value,
    stop: (rollout, value) => rollout.stop === value,
    selected: (rollout, value) => selectedOf(rollout) === value,
    rubric: (rollout, value, chosen) => {
      const verdict = chosen.verdict;
      const found = rollout.tags.filter((tag) => data.rubrics[tag[0]][0] === value);
      if (verdict === "absent") return rollout.tagged > 0 && found.length === 0;
      return found.some((tag) => !verdict || tag[1] === verdict);
    },
    verdict: (rollout, value, chosen) => {
      if (chosen.rubric) return true; // the rubric's own test heeds it
      return value === "absent" ? rollout.tagged > rollout.tags.length : rollout.tags.some((tag) => tag[1] === value);
    },
    text: (rollout, value) => textOf(rollout).includes(value.toLowerCase()),
  };
  const texts = new Map();
  function textOf(rollout) {
    if (!texts.has(rollout)) {
      const parts = [rollout.task, rollout.id, rollout.final, rollout.steering, ...(rollout.turns ?? []).flat()];
      texts.set(rollout, parts.filter((part) => typeof part === "string").join("\n").toLowerCase());
    }
    return texts.get(rollout);
  }
  function chosenFilters() {
    const chosen = {};
    for (const filter of filters) chosen[filter.dataset.filter] = filter.value.trim();
    return chosen;
  }
  function apply(keepId) {
    const chosen = chosenFilters();
    const active = Object.entries(chosen).filter(([, value]) => value);
    shown = data.rollouts.filter((rollout) => active.every(([name, value]) => tests[name](rollout, value, chosen)));
    list.replaceChildren(...shown.map(item));
    count.textContent = `${shown.length} of ${plural(data.rollouts.length, "rollout")}`;
    const kept = shown.findIndex((rollout) => rollout.id === keepId);
    open(shown.length ? Math.max(kept, 0) : -1, false);
  }
  function fill(name, entries) {
    const select = filters.find((filter) => filter.dataset.filter === name);
    for (const [value, label] of new Map(entries)) select.append(make("option", { value }, label));
  }

  // ---- the list
  function item(rollout, index) {
    const selected = selectedOf(rollout);
    return make(
      "li",
      { role: "option", id: `rollout-${index}`, "aria-selected": "false", "data-index": index },
      make("span", { class: "line" }, make("span", { class: `dot ${rollout.outcome}` }), make("b", {}, rollout.environmentName),
        make("span", { class: `outcome ${rollout.outcome}` }, rollout.outcome)),
      make("span", { class: "line muted" }, `${rollout.methodName} · ${rollout.split}, update ${rollout.step}`),
      make("span", { class: "line muted" }, `${rollout.task} · ${plural(rollout.turnCount, "turn")}`,
        selected && ` · ${selected === "yes" ? "selected" : "not selected"}`),
    );
  }
  function open(index, move = true) {
    list.children[current]?.setAttribute("aria-selected", "false");
    current = index;
    const entry = list.children[index];
    if (!entry) {
      list.removeAttribute("aria-activedescendant");
      detail.replaceChildren(make("p", { class: "muted" }, "No rollout of the sample matches these filters."));
      return;
    }
    entry.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", entry.id);
    if (move) {
      const top = entry.offsetTop - list.offsetTop;
      if (top < list.scrollTop) list.scrollTop = top;
      const bottom = top + entry.offsetHeight - list.clientHeight;
      if (bottom > list.scrollTop) list.scrollTop = bottom;
      history.replaceState(null, "", `#rollout=${encodeURIComponent(shown[index].id)}`);
    }
    show(shown[index]);
  }

  // ---- one rollout
  function chip(tag) {
    const [name, , definition] = data.rubrics[tag[0]];
    const reason = tag[3] ? `${definition}\n${tag[3]}` : definition;
    return make("span", { class: `chip ${tag[1]}`, title: reason }, `${SIGNS[tag[1]]} ${words(name)}`);
  }
  function turnElement(rollout, turn, index) {
    const [observation, action, executed, accepted, cut] = turn;
    const tags = rollout.tags.filter((tag) => tag[2] === index);
    return make(
      "section",
      { class: "turn", id: `turn-${index}`, tabindex: "-1", "aria-label": `Turn ${index + 1}` },
      make("span", { class: "turn-index" }, String(index + 1)),
      make("div", {},
        make("pre", { class: "observation" }, observation),
        make("pre", { class: accepted ? "action" : "action bad" }, action),
        executed && make("p", { class: "muted" }, "executed as ", make("code", {}, executed)),
        !accepted && make("p", { class: "muted" }, "not accepted by the environment"),
        cut && make("p", { class: "muted" }, "cut at the token limit of a turn"),
        tags.length > 0 && make("p", {}, ...tags.flatMap((tag) => [chip(tag), " "]))),
    );
  }
  function verdicts(rollout) {
    if (!rollout.tagged) return make("p", { class: "muted" }, "Not tagged.");
    const absent = rollout.tagged - rollout.tags.length;
    const rows = rollout.tags.map((tag) => {
      const [name, , definition] = data.rubrics[tag[0]];
      const place = tag[2] === null ? "–"
        : rollout.turns && tag[2] < rollout.turns.length
          ? make("button", { type: "button", class: "link", "data-turn": tag[2] }, `turn ${tag[2] + 1}`)
          : `turn ${tag[2] + 1}`;
      return make("tr", {},
        make("td", {}, make("span", { class: `chip ${tag[1]}` }, `${SIGNS[tag[1]]} ${WORDS[tag[1]]}`)),
        make("td", {}, make("b", {}, words(name)), make("span", { class: "definition" }, definition),
          tag[3] && make("span", { class: "definition" }, `Reason: ${tag[3]}`)),
        make("td", {}, place));
    });
    const head = `Verdicts: ${rollout.tags.length} shown, ${plural(absent, "rubric")} absent`;
    return make("details", { class: "part", open: rows.length > 0 && rows.length <= 12 }, make("summary", {}, head),
      make("table", { class: "verdicts" }, make("tbody", {}, ...rows)));
  }
  function selection(rollout) {
    const step = stepOf(rollout);
    if (!step || !step.groups.length) return null;
    const own = groupOf(rollout);
    const taken = step.groups.filter((group) => group[3] !== null).length;
    let said = "Its group is not among the stored candidates.";
    if (own) {
      const numbers = [["similarity", own[4]], ["redundancy", own[5]], ["score", own[6]]]
        .filter(([, value]) => value !== null).map(([name, value]) => `${name} ${fixed(value)}`).join(", ");
      said = (own[3] === null ? "Its group was not selected" : `Its group was selected as number ${own[3] + 1} of ${taken}`)
        + (numbers ? ` (${numbers}).` : ".");
    }
    const sampled = new Set(data.rollouts.filter((r) => r.split === "training" && r.method === rollout.method
      && r.step === rollout.step).map((r) => r.group));
    const heads = ["Choice", "Task", "Environment", "Similarity", "Redundancy", "Score", "Succeeded"];
    const rows = step.groups.map((group) => make("tr", { class: group[0] === rollout.group ? "own" : null },
      make("td", {}, group[3] === null ? "–" : String(group[3] + 1)),
      make("td", {}, sampled.has(group[0])
        ? make("button", { type: "button", class: "link", "data-group": group[0] }, group[1]) : group[1]),
      make("td", {}, words(group[2])), make("td", {}, fixed(group[4])), make("td", {}, fixed(group[5])),
      make("td", {}, fixed(group[6])), make("td", {}, `${group[7]} of ${group[8]}`)));
    return make("div", { class: "selection" },
      make("p", {}, said, " ", make("span", { class: "muted" }, step.rule)),
      make("details", { class: "part" },
        make("summary", {}, `What the selector saw at update ${rollout.step}: ${taken} of ${step.groups.length} groups taken`),
        make("div", { class: "scroll" }, make("table", { class: "candidates" },
          make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
          make("tbody", {}, ...rows)))));
  }
  function show(rollout) {
    const facts = [`reward ${rollout.reward === null ? "none" : rollout.reward}`, `ended by: ${words(rollout.stop)}`,
      plural(rollout.turnCount, "turn"), `${rollout.tokens.toLocaleString("en")} tokens`, `seed ${rollout.runSeed}`];
    const places = rollout.turns ? rollout.turns.length : 0;
    const loose = rollout.tags.filter((tag) => tag[2] === null || tag[2] >= places);
    detail.replaceChildren(
      make("h3", {}, make("span", { class: `dot ${rollout.outcome}` }),
        ` ${rollout.environmentName}, ${rollout.methodName}, ${rollout.split} at update ${rollout.step}: ${rollout.outcome}`),
      make("p", { class: "muted" }, "Task ", make("code", {}, rollout.task), ` · ${facts.join(" · ")}`),
      ...[selection(rollout), verdicts(rollout)].filter(Boolean),
      ...(rollout.prompt === null ? [] : [make("details", { class: "part" }, make("summary", {}, "System prompt"),
        make("pre", { class: "observation" }, data.prompts[rollout.prompt]))]),
      ...(rollout.steering ? [make("p", { class: "muted" }, "Steering text in the prompt:"),
        make("pre", { class: "steering" }, rollout.steering)] : []),
      ...(rollout.turns ? rollout.turns.map((turn, index) => turnElement(rollout, turn, index))
        : [make("p", { class: "muted" }, "This compacted run keeps no texts; the full run has them.")]),
      ...(rollout.final ? [make("section", { class: "turn" }, make("span", { class: "turn-index" }, "end"),
        make("div", {}, make("pre", { class: "observation" }, rollout.final)))] : []),
      ...(loose.length ? [make("p", {}, "Not tied to a turn: ", ...loose.flatMap((tag) => [chip(tag), " "]))] : []),
    );
    detail.scrollTop = 0;
  }

  // ---- keys and clicks
  list.addEventListener("click", (event) => {
    const entry = event.target.closest("[data-index]");
    if (entry) open(Number(entry.dataset.index));
  });
  list.addEventListener("keydown", (event) => {
    const page = 8;
    const last = shown.length - 1;
    const moves = { ArrowDown: current + 1, ArrowUp: current - 1, PageDown: current + page, PageUp: current - page, Home: 0, End: last };
    if (event.key in moves && last >= 0) {
      event.preventDefault();
      open(Math.min(Math.max(moves[event.key], 0), last));
    } else if (event.key === "Enter" && last >= 0) {
      event.preventDefault();
      detail.focus();
    }
  });
  detail.addEventListener("keydown", (event) => {
    if (event.key === "Escape") list.focus();
  });
  detail.addEventListener("click", (event) => {
    const { turn, group } = event.target.dataset;
    if (turn !== undefined) {
      const target = byId(`turn-${turn}`);
      target.scrollIntoView({ block: "nearest" });
      target.focus();
    } else if (group !== undefined) {
      const here = shown[current];
      const wanted = data.rollouts.find((r) => r.group === group && r.method === here.method && r.step === here.step
        && r.split === "training");
      if (!shown.includes(wanted)) {
        for (const filter of filters) filter.value = "";
        apply(wanted.id);
      }
      open(shown.indexOf(wanted));
    }
  });
  byId("rollout-filters").addEventListener("input", () => apply(shown[current]?.id));
  byId("rollout-filters").addEventListener("submit", (event) => event.preventDefault());
  byId("rollout-reset").addEventListener("click", () => {
    for (const filter of filters) filter.value = "";
    apply(shown[current]?.id);
  });
  function fromAddress() {
    const match = /^#rollout=(.+)$/.exec(location.hash);
    if (!match) return;
    const wanted = data.rollouts.findIndex((rollout) => encodeURIComponent(rollout.id) === match[1]);
    if (wanted < 0) return;
    for (const filter of filters) filter.value = "";
    apply(data.rollouts[wanted].id);
    byId("rollouts").scrollIntoView();
  }
  window.addEventListener("hashchange", fromAddress);

  const numeric = (a, b) => Number(a[0]) - Number(b[0]);
  fill("environment", data.rollouts.map((r) => [r.environment, r.environmentName]));
  fill("method", data.rollouts.map((r) => [r.method, r.methodName]));
  fill("step", data.rollouts.map((r) => [String(r.step), String(r.step)]).sort(numeric));
  fill("stop", data.rollouts.map((r) => [r.stop, words(r.stop)]).sort());
  fill("rubric", data.rubrics.map(([name]) => [name, words(name)]).sort());
  apply();
  fromAddress();
})();
