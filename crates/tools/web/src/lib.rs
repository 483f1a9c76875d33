//! HTML reports: pages of one file each that load nothing.
//!
//! Names in a report are text to the page, whatever they contain: JSON is embedded without a `<`,
//! scripts create text nodes only, and the page's own policy forbids requests and markup from
//! strings. Browser tests try names made to break out. What the data means is the scripts'
//! business. They are concatenated into one scope; there is no build step and no framework.

/// The frame of the page of a simulation; `{{name}}` is where the parts go.
const SIM_PAGE: &str = include_str!("sim/page.html");
const SIM_STYLE: &str = include_str!("sim/page.css");
/// In the order in which they build on each other.
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

/// The page of a simulation as one HTML file. `report_json` is the report of `berth-sim` as JSON;
/// names in it may hold anything. What is no such report gives a page that says so.
#[must_use]
pub fn sim_page(title: &str, report_json: &str) -> String {
    let mut page = String::with_capacity(report_json.len() + 256 * 1024);
    let mut rest = SIM_PAGE;
    // In one pass, so that nothing that was put in is taken for a place to put something.
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

/// JSON within a `<script>`. There `</script` ends the element and `<!--` changes how the rest is
/// read; in JSON, `<` occurs in strings only, where it may be written by its number instead.
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
