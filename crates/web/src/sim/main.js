// Reads the report out of the page and shows it. A part that fails says so in its own place, so that
// the others can still be read.

function start() {
  const text = byId("report").textContent;
  let report;
  try {
    report = readReport(text);
  } catch (error) {
    byId("title").textContent = "This report cannot be read";
    byId("description").textContent = `Its data is not what the page expects: ${error.message}`;
    document.querySelector("main").hidden = true;
    document.querySelector("nav").hidden = true;
    return;
  }
  // The seed may be larger than what JavaScript keeps exactly, so it is taken from the text.
  renderHead(report, /"seed":\s*(\d+)/.exec(text)?.[1] ?? String(report.seed));
  shared.now.set(Math.round(report.duration_ms / 2));
  if (report.runs.length === 0) {
    for (const section of document.querySelectorAll("main > section")) absent(section.id);
    byId("nothing").hidden = false;
    renderAssumptions(report);
    byId("assumptions").hidden = report.assumptions.length === 0;
    return;
  }
  renderTiles(report);
  renderComparison(report);
  renderCharts(report);
  renderMap(report);
  renderServices(report);
  renderClasses(report);
  renderRejections(report);
  renderTeams(report);
  renderWaiting(report);
  renderHappenings(report);
  renderAssumptions(report);
  followContents();
  document.documentElement.dataset.ready = "true";
}

/** Marks in the contents which section is being read. */
function followContents() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
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
  for (const section of document.querySelectorAll("main > section:not([hidden])")) watcher.observe(section);
}

start();
