//! HTML reports: self-contained pages that load nothing.
//!
//! Names in a report come from manifests and cannot inject markup: JSON is embedded without a `<`,
//! scripts create text nodes only, and the page's policy forbids requests and markup from strings.
//! Browser tests try hostile names. Scripts are concatenated into one scope; there is no build step and
//! no framework.

/// `{{name}}` marks where the parts go.
const SIM_PAGE: &str = include_str!("sim/page.html");
const SIM_STYLE: &str = include_str!("sim/page.css");
/// In order of their dependencies.
const SIM_SCRIPTS: [&str; 11] = [
    include_str!("sim/format.js"),
    include_str!("sim/dom.js"),
    include_str!("sim/data.js"),
    include_str!("sim/chart.js"),
    include_str!("sim/compare.js"),
    include_str!("sim/tables.js"),
    include_str!("sim/over-time.js"),
    include_str!("sim/cards.js"),
    include_str!("sim/grid.js"),
    include_str!("sim/map.js"),
    include_str!("sim/main.js"),
];

/// The page of a simulation. `report_json` is a report of `berth-sim`; anything else gives a page that
/// shows an error.
#[must_use]
pub fn sim_page(title: &str, report_json: &str) -> String {
    let mut page = String::with_capacity(report_json.len() + 256 * 1024);
    let mut rest = SIM_PAGE;
    // In one pass, so that marks in inserted text are not replaced.
    while let Some((before, after)) = rest.split_once("{{") {
        page.push_str(before);
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        match name {
            "title" => push_text(&mut page, title),
            "style" => page.push_str(SIM_STYLE),
            "report" => push_json(&mut page, report_json),
            "script" => push_script(&mut page),
            _ => {}
        }
        rest = after;
    }
    page.push_str(rest);
    page
}

/// All scripts share one scope of their own.
fn push_script(page: &mut String) {
    page.push_str("\"use strict\";\n{\n");
    for script in SIM_SCRIPTS {
        page.push_str(script);
        page.push('\n');
    }
    page.push_str("}\n");
}

/// Text between tags or in quoted attributes.
fn push_text(page: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '&' => page.push_str("&amp;"),
            '<' => page.push_str("&lt;"),
            '>' => page.push_str("&gt;"),
            '"' => page.push_str("&quot;"),
            '\'' => page.push_str("&#39;"),
            _ => page.push(c),
        }
    }
}

/// JSON within a `<script>`, where `</script` and `<!--` have a meaning. In JSON, `<` occurs in strings
/// only, so it can be escaped.
fn push_json(page: &mut String, json: &str) {
    for (i, piece) in json.split('<').enumerate() {
        if i > 0 {
            page.push_str("\\u003c");
        }
        page.push_str(piece);
    }
}

#[cfg(test)]
mod tests;
