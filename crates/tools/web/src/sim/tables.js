// Tables: services, waits, rejections, teams, pending pods, events, assumptions.

/** Hides an empty section and its entry in the contents. */
function absent(id) {
  byId(id).hidden = true;
  document.querySelector(`nav a[href="#${id}"]`)?.parentElement.remove();
}

/**
 * Rows that belong together, each an array of cells. `name()` stands beside them, or above them where
 * the window is narrow.
 */
function groupOfRows(name, rows) {
  const above = h(
    "tr",
    { class: "above" },
    h("th", { scope: "rowgroup", colspan: rows[0].flat(Infinity).length }, name()),
  );
  const beside = h("th", { class: "beside", scope: "rowgroup", rowspan: rows.length }, name());
  return h(
    "tbody",
    {},
    above,
    rows.map((cells, i) => h("tr", {}, i === 0 ? beside : null, cells)),
  );
}
const groupColumn = (name) => columnHead(name, { class: "beside" });

const runCell = (run) => h("td", { class: "run-cell" }, swatch(run.colour), run.name);

/** A bar as long as a part of what is longest; `inner` is the part of it that is filled strongly. */
const bar = (part, colour, inner = 1) =>
  h("span", {
    class: "bar-line",
    style: {
      "--part": `${Math.max(0, Math.min(1, part || 0)) * 100}%`,
      "--inner": `${Math.max(0, Math.min(1, inner || 0)) * 100}%`,
      "--c": `var(${colour})`,
    },
  });

function renderServices(report) {
  const ids = [
    ...new Set(report.runs.flatMap((run) => run.services.map((service) => service.workload))),
  ];
  if (ids.length === 0) return absent("services");
  const head = h(
    "tr",
    {},
    groupColumn("Service"),
    columnHead("Setup"),
    columnHead("p50", { class: "number" }),
    columnHead("p99", { class: "number" }),
    columnHead("p99 over time"),
    columnHead("Objective", { class: "number" }),
    columnHead("Breaches", { class: "number" }),
    columnHead("Requests", { class: "number" }),
    columnHead("Lost", { class: "number" }),
    columnHead("Replicas", { class: "number" }),
    columnHead("Aligned", { class: "number" }),
  );
  const bodies = ids.map((id) => {
    const workload = workloadOf(report, id);
    const found = report.runs.flatMap((run) =>
      run.services
        .filter((service) => service.workload === id)
        .map((service) => ({ run, service })),
    );
    const about = [workload.class, workload.team].filter(Boolean).join(", ");
    // One scale for all setups, so that their lines can be compared.
    const most = found.reduce(
      (max, { service }) =>
        list(service.p99_us_series).reduce(
          (a, b) => Math.max(a, b),
          Math.max(max, number(service.objective_us)),
        ),
      1,
    );
    const name = () => [fullName(workload), about ? h("small", {}, about) : null];
    return groupOfRows(
      name,
      found.map(({ run, service }) => [runCell(run), serviceCells(run, service, most)]),
    );
  });
  byId("services-table").append(
    tableBox("Latency of each service under each setup", head, bodies, { class: "grouped" }),
  );
}

function serviceCells(run, service, most) {
  const objective = number(service.objective_us);
  const above = objective > 0 && service.p99_us > objective;
  const cell = (...content) => h("td", { class: "number" }, content);
  return [
    cell(latency(service.p50_us)),
    h(
      "td",
      { class: above ? "number bad" : "number" },
      above ? h("span", { "aria-hidden": "true" }, "▲ ") : null,
      latency(service.p99_us),
      above ? hiddenText(" above its objective") : null,
    ),
    h("td", {}, sparkline(list(service.p99_us_series), run.colour, objective || null, most)),
    cell(objective > 0 ? latency(objective) : NONE),
    h("td", { class: service.breaches > 0 ? "number bad" : "number" }, count(service.breaches)),
    cell(count(service.requests)),
    h(
      "td",
      { class: service.requests_lost > 0 ? "number bad" : "number" },
      count(service.requests_lost),
    ),
    cell(trim(service.replicas, 1)),
    cell(share(service.aligned, 0)),
  ];
}

/** Waits range from zero to days, hence the logarithmic scale. */
function renderClasses(report) {
  const names = [...new Set(report.runs.flatMap((run) => run.classes.map((c) => c.class)))];
  if (names.length === 0) return absent("waits");
  const longest = Math.max(
    MINUTE,
    ...report.runs.flatMap((run) => run.classes.map((c) => number(c.wait_max_ms))),
  );
  const place = (ms) =>
    ms <= SECOND ? 0 : Math.min(1, Math.log(ms / SECOND) / Math.log(longest / SECOND));
  const head = h(
    "tr",
    {},
    groupColumn("Class"),
    columnHead("Setup"),
    columnHead([h("span", { class: "wait-axis" }, waitTicks(longest, place))], {
      class: "wait-head",
    }),
    ["p50", "p90", "p99", "longest", "pods", "started", "preempted"].map((name) =>
      columnHead(name, { class: "number" }),
    ),
  );
  const bodies = names.map((name) => {
    const found = report.runs.flatMap((run) =>
      run.classes.filter((c) => c.class === name).map((c) => ({ run, c })),
    );
    const head = () =>
      h("span", { class: "run-name" }, swatch(classColour(name)), name || "no class");
    return groupOfRows(
      head,
      found.map(({ run, c }) => [
        runCell(run),
        h("td", {}, waitRange(c, place, run.colour)),
        [c.wait_p50_ms, c.wait_p90_ms, c.wait_p99_ms, c.wait_max_ms].map((ms) =>
          h("td", { class: "number" }, c.pods > 0 ? span(number(ms)) : NONE),
        ),
        [c.pods, c.started, c.preempted].map((n) => h("td", { class: "number" }, count(number(n)))),
      ]),
    );
  });
  byId("waits-table").append(
    tableBox("How long pods waited, by class of work", head, bodies, { class: "grouped" }),
  );
}

function waitTicks(longest, place) {
  return [
    [SECOND, "1 s"],
    [MINUTE, "1 min"],
    [HOUR, "1 h"],
    [DAY, "1 d"],
    [30 * DAY, "30 d"],
  ]
    .filter(([ms]) => ms <= longest)
    .map(([ms, label]) => h("i", { style: { "--at": `${place(ms) * 100}%` } }, label));
}

/** From the median to p99, with marks at p90 and at the longest. */
function waitRange(c, place, colour) {
  const at = (ms) => `${place(number(ms)) * 100}%`;
  return h(
    "span",
    {
      class: "wait",
      "aria-hidden": "true",
      style: {
        "--c": `var(${colour})`,
        "--p50": at(c.wait_p50_ms),
        "--p90": at(c.wait_p90_ms),
        "--p99": at(c.wait_p99_ms),
        "--max": at(c.wait_max_ms),
      },
    },
    ["tail", "body", "median", "longest"].map((name) => h("i", { class: `wait-${name}` })),
  );
}

/** One row of bars per name, one bar per run. */
function barTable(report, caption, nameHead, names, cells) {
  const head = h("tr", {}, groupColumn(nameHead), columnHead("Setup"), cells.heads);
  const bodies = names.map((name) =>
    groupOfRows(
      () => name || "no team",
      report.runs.map((run) => [runCell(run), cells.of(run, name)]),
    ),
  );
  return tableBox(caption, head, bodies, { class: "grouped" });
}

function renderRejections(report) {
  const total = new Map();
  for (const run of report.runs) {
    for (const [reason, n] of Object.entries(run.rejections))
      total.set(reason, (total.get(reason) ?? 0) + number(n));
  }
  if (total.size === 0) return absent("rejections");
  const reasons = [...total].sort((a, b) => b[1] - a[1]).map(([reason]) => reason);
  const most = Math.max(
    1,
    ...report.runs.flatMap((run) => Object.values(run.rejections).map(number)),
  );
  byId("rejections-table").append(
    barTable(report, "Pods rejected by kubelets, by reason", "Reason", reasons, {
      heads: [
        columnHead(hiddenText("Bar"), { class: "wide" }),
        columnHead("Pods", { class: "number" }),
      ],
      of: (run, reason) => {
        const n = number(run.rejections[reason]);
        return [h("td", {}, bar(n / most, run.colour)), h("td", { class: "number" }, count(n))];
      },
    }),
  );
}

function renderTeams(report) {
  const cost = new Map();
  for (const run of report.runs) {
    for (const team of run.teams)
      cost.set(
        words(team.team),
        Math.max(cost.get(words(team.team)) ?? 0, number(team.cost_microusd)),
      );
  }
  if (cost.size === 0) return absent("teams");
  const names = [...cost].sort((a, b) => b[1] - a[1]).map(([team]) => team);
  const most = Math.max(1, ...cost.values());
  byId("teams-table").append(
    barTable(report, "GPU hours and cost by team", "Team", names, {
      heads: [
        columnHead(hiddenText("Bar"), { class: "wide" }),
        ["Cost", "GPU hours", "busy"].map((name) => columnHead(name, { class: "number" })),
      ],
      of: (run, name) => {
        const team = run.teams.find((t) => words(t.team) === name);
        const busy = team && team.gpu_hours > 0 ? team.busy_gpu_hours / team.gpu_hours : NaN;
        return [
          h("td", {}, bar(number(team?.cost_microusd) / most, run.colour, busy)),
          h("td", { class: "number" }, team ? money(number(team.cost_microusd)) : NONE),
          h("td", { class: "number" }, team ? count(number(team.gpu_hours)) : NONE),
          h("td", { class: "number" }, share(busy, 0)),
        ];
      },
    }),
  );
}

const glyphOf = (kind, colour) =>
  s(
    "svg",
    { class: "mark", viewBox: "-7 -7 14 14", width: 14, height: 14, "aria-hidden": "true" },
    s("path", {
      class: kindOf(kind).line ? "glyph outlined" : "glyph",
      style: { "--c": `var(${colour})` },
      d: kindOf(kind).glyph,
    }),
  );

const HAPPENINGS_SHOWN = 100;

function renderHappenings(report) {
  const all = report.runs
    .flatMap((run) => run.happenings.map((what) => ({ run, what })))
    .sort((a, b) => a.what.at_ms - b.what.at_ms || a.run.index - b.run.index);
  if (all.length === 0) return absent("happenings");
  const kinds = [...new Set(all.map(({ what }) => words(what.kind)))];
  kinds.sort((a, b) => Object.keys(KINDS).indexOf(a) - Object.keys(KINDS).indexOf(b));
  let limit = HAPPENINGS_SHOWN;
  const body = h("tbody");
  const info = h("p", { class: "note", "aria-live": "polite" });
  const more = h(
    "button",
    {
      type: "button",
      onclick: () => {
        limit = Infinity;
        show();
      },
    },
    "Show all",
  );
  const runSelect = select(
    "Setup",
    [["", "All setups"], ...report.runs.map((run) => [String(run.index), run.name])],
    () => show(),
  );
  const kindSelect = select(
    "Kind",
    [["", "All kinds"], ...kinds.map((kind) => [kind, kindOf(kind).name])],
    () => show(),
  );
  function show() {
    const [run, kind] = [runSelect.value(), kindSelect.value()];
    const chosen = all.filter(
      (row) =>
        (run === "" || String(row.run.index) === run) &&
        (kind === "" || words(row.what.kind) === kind),
    );
    body.replaceChildren(...chosen.slice(0, limit).map(happeningRow));
    more.hidden = chosen.length <= limit;
    info.textContent =
      chosen.length > limit
        ? `${count(limit)} of ${plural(chosen.length, "entry", "entries")} shown.`
        : plural(chosen.length, "entry", "entries");
  }
  show();
  const head = h(
    "tr",
    {},
    columnHead("When"),
    columnHead("Kind"),
    columnHead("Setup"),
    columnHead("Event"),
  );
  const box = tableBox("Events in order of time", head, body, { class: "stack" });
  box.classList.add("tall");
  byId("happenings-table").append(
    h("div", { class: "controls" }, runSelect.element, kindSelect.element),
    box,
    h("div", { class: "controls" }, info, more),
  );
}

function happeningRow({ run, what }) {
  const show = () => {
    shared.now.set(what.at_ms);
    chooseRun(run.index);
    byId("map").scrollIntoView();
  };
  return h(
    "tr",
    {},
    h(
      "td",
      {},
      h(
        "button",
        {
          type: "button",
          class: "link",
          onclick: show,
          title: "Show the map at this time",
        },
        moment(number(what.at_ms)),
      ),
    ),
    h("td", { class: "kind" }, glyphOf(what.kind, run.colour), kindOf(words(what.kind)).name),
    runCell(run),
    h("td", { class: "prose" }, words(what.text)),
  );
}

/** A labelled `<select>`. */
function select(label, options, changed) {
  const control = h(
    "select",
    { onchange: () => changed(control.value) },
    options.map(([value, text]) => h("option", { value }, text)),
  );
  return {
    element: h("label", { class: "field" }, h("span", {}, label), control),
    value: () => control.value,
    set: (value) => {
      control.value = value;
    },
  };
}

function renderWaiting(report) {
  const all = report.runs.flatMap((run) => run.waiting.map((group) => ({ run, group })));
  if (all.length === 0) return absent("waiting");
  const head = h(
    "tr",
    {},
    columnHead("Workload"),
    columnHead("Setup"),
    columnHead("Pods", { class: "number" }),
    columnHead("Reasons and remedies"),
  );
  const rows = all.map(({ run, group }) => {
    const workload = workloadOf(report, group.workload);
    const about = [workload.kind, workload.class, workload.team].filter(Boolean).join(", ");
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, fullName(workload), about ? h("small", {}, about) : null),
      runCell(run),
      h(
        "td",
        { class: "number" },
        count(number(group.pods)),
        h("span", { class: "narrow" }, number(group.pods) === 1 ? " pod" : " pods"),
      ),
      h("td", { class: "prose" }, words(group.why)),
    );
  });
  byId("waiting-table").append(
    tableBox("Pods pending at the end", head, h("tbody", {}, rows), { class: "stack" }),
  );
}

function renderAssumptions(report) {
  if (report.assumptions.length === 0) return absent("assumptions");
  const head = h("tr", {}, columnHead("Name"), columnHead("Value"), columnHead("Source"));
  const rows = report.assumptions.map((a) =>
    h(
      "tr",
      {},
      h("th", { scope: "row" }, words(a.name)),
      h("td", { class: "prose" }, words(a.value)),
      h("td", { class: "prose quiet" }, words(a.source)),
    ),
  );
  byId("assumptions-table").append(
    tableBox("Assumptions", head, h("tbody", {}, rows), { class: "stack" }),
  );
}
