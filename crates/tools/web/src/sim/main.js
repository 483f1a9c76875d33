// Reads the embedded report and draws it. A part that fails shows its error in its own place.

function start() {
  const text = byId("report").textContent;
  let report;
  try {
    report = readReport(text);
  } catch (error) {
    byId("title").textContent = "Invalid report";
    byId("description").textContent = `The page cannot read its data: ${error.message}`;
    document.querySelector("main").hidden = true;
    document.querySelector("nav").hidden = true;
    return;
  }
  // Seeds can exceed the exact range of JavaScript numbers, so the text is used.
  renderHead(report, /"seed":\s*(\d+)/.exec(text)?.[1] ?? String(report.seed));
  shared.now.set(busiestMoment(report));
  const parts = [
    ["comparison", renderTiles],
    ["comparison", renderComparison],
    ["over-time", renderCharts],
    ["map", renderMap],
    ["services", renderServices],
    ["waits", renderClasses],
    ["rejections", renderRejections],
    ["teams", renderTeams],
    ["waiting", renderWaiting],
    ["happenings", renderHappenings],
    ["assumptions", renderAssumptions],
  ];
  const nothing = report.runs.length === 0;
  byId("nothing").hidden = !nothing;
  for (const [id, render] of parts) {
    if (nothing && id !== "assumptions") {
      absent(id);
      continue;
    }
    try {
      render(report);
    } catch (error) {
      console.error(error);
      byId(id).append(
        h("p", { class: "notice" }, `Cannot draw this part: ${error.message}`),
      );
    }
  }
  followContents();
  document.documentElement.dataset.ready = "true";
}

/** The first time of the last run at which the most GPUs were allocated. */
function busiestMoment(report) {
  const series = report.runs[report.runs.length - 1]?.series;
  if (!series || series.allocated.length === 0) return Math.round(report.duration_ms / 2);
  const most = series.allocated.reduce((a, b) => Math.max(a, b));
  const step = series.allocated.indexOf(most);
  return Math.min(report.duration_ms, Math.round((step + 0.5) * series.step_ms));
}

/** Marks the visible section in the contents. */
function followContents() {
  const links = new Map(
    [...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]),
  );
  const watcher = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting) continue;
        for (const link of links.values()) link.removeAttribute("aria-current");
        links.get(target.id)?.setAttribute("aria-current", "true");
      }
    },
    { rootMargin: "-20% 0px -75% 0px" },
  );
  for (const section of document.querySelectorAll("main > section:not([hidden])"))
    watcher.observe(section);
}

start();
