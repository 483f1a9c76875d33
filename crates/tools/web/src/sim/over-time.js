// The charts over time, their controls and their legend.

function renderCharts(report) {
  const { runs } = report;
  if (runs.length === 0 || report.duration_ms === 0) return absent("over-time");
  shared.view.set({ from: 0, to: report.duration_ms });
  const gpus = { tick: countShort, format: (v) => trim(v, 1), ceiling: (run) => run.series.gpus };
  const lines = { tick: countShort, format: (v) => trim(v, 2) };
  const sums = { tick: countShort, format: count, columns: true };
  const specs = [
    { ...gpus, title: "GPUs allocated", values: (run) => run.series.allocated },
    { ...gpus, title: "GPUs busy", values: (run) => run.series.utilised },
    latencySpec(report),
    { ...lines, title: "Pending pods", values: (run) => run.series.waiting },
    {
      ...lines,
      title: "GPUs stranded",
      unit: "free, but no typical request can use them",
      values: (run) => run.series.fragmented,
    },
    { ...sums, title: "Rejections by kubelets", values: (run) => run.series.rejections },
    { ...sums, title: "Preemptions", values: (run) => run.series.preemptions },
  ];
  // A constant zero is already in the comparison.
  const telling = specs.filter((spec) =>
    runs.some((run) => spec.values(run).some((value) => value > 0)),
  );
  if (telling.length === 0) return absent("over-time");
  for (const spec of telling) {
    const chart = new TimeChart(report, { ...spec, runs });
    spec.made?.(chart);
    byId("charts").append(chart.figure);
  }
  renderChartControls(report);
}

/** The p99 of all requests or of one service, with its objective. */
function latencySpec(report) {
  const { runs } = report;
  const ids = [...new Set(runs.flatMap((run) => run.services.map((service) => service.workload)))];
  let chosen = "";
  let chart = null;
  const of = (run) => run.services.find((service) => String(service.workload) === chosen);
  const choice = select(
    "Service",
    [["", "All requests"], ...ids.map((id) => [String(id), fullName(workloadOf(report, id))])],
    (value) => {
      chosen = value;
      chart.redraw();
    },
  );
  return {
    title: "p99 latency",
    control: ids.length > 0 ? choice.element : null,
    made: (made) => {
      chart = made;
    },
    log: true,
    gaps: true,
    tick: latencyShort,
    format: latency,
    values: (run) => (chosen === "" ? run.series.p99_us : list(of(run)?.p99_us_series)),
    limits: () => {
      const services = runs.flatMap((run) =>
        chosen === "" ? run.services : [of(run)].filter(Boolean),
      );
      const promised = [
        ...new Set(services.map((service) => number(service.objective_us)).filter((v) => v > 0)),
      ];
      // With different objectives no line applies to all requests.
      return promised.length === 1
        ? [{ value: promised[0], label: `objective ${latency(promised[0])}` }]
        : [];
    },
  };
}

function renderChartControls(report) {
  const toggles = report.runs.map((run) =>
    h(
      "label",
      { class: "toggle" },
      h("input", {
        type: "checkbox",
        checked: true,
        onchange: (event) => {
          const hidden = new Set(shared.hidden.get());
          if (event.target.checked) hidden.delete(run.index);
          else hidden.add(run.index);
          shared.hidden.set(hidden);
        },
      }),
      s(
        "svg",
        {
          class: "key",
          width: 26,
          height: 10,
          viewBox: "0 0 26 10",
          "aria-hidden": "true",
        },
        s("path", {
          class: `line dash-${run.index % 6}`,
          style: { "--c": `var(${run.colour})` },
          d: "M1,5H25",
        }),
      ),
      run.name,
    ),
  );
  const whole = h(
    "button",
    { type: "button", onclick: () => setView(report, 0, report.duration_ms) },
    "Whole time",
  );
  const info = h("span", { class: "quiet" });
  shared.view.on(({ from, to }) => {
    const all = from <= 0 && to >= report.duration_ms;
    whole.hidden = all;
    info.textContent = all
      ? "Drag across a chart to zoom in; click to show the map at that time."
      : `${moment(from)} to ${moment(to)}`;
  });
  byId("chart-controls").append(...toggles, h("span", { class: "spring" }), info, whole);
  const seen = MARKED.filter((kind) =>
    report.runs.some((run) => run.happenings.some((what) => what.kind === kind)),
  );
  byId("chart-marks").append(
    ...seen.map((kind) => h("span", {}, glyphOf(kind, "--ink-2"), kindOf(kind).name)),
  );
  if (report.runs.some((run) => run.series.gpus.length > 0)) {
    byId("chart-marks").append(
      h(
        "span",
        {},
        s(
          "svg",
          {
            class: "key",
            width: 26,
            height: 10,
            viewBox: "0 0 26 10",
            "aria-hidden": "true",
          },
          s("path", { class: "limit", d: "M1,5H25" }),
        ),
        "number of GPUs, or an objective",
      ),
    );
  }
}
