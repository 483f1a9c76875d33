//! What must hold of the page as text, whatever the data.

use super::*;

/// All that the page consists of but the data, in bytes.
const ASSETS_BYTES_MAX: usize = 150_000;

#[test]
fn the_title_is_text_wherever_it_stands() {
    let page = sim_page("</title><script>alert(1)</script> & \"'", "{}");
    assert!(!page.contains("alert(1)</script>"));
    let title = "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt; &amp; &quot;&#39;";
    assert_eq!(page.matches(title).count(), 2, "in <title> and in <h1>");
}

#[test]
fn data_cannot_end_its_element() {
    let bare = sim_page("", "{}");
    for hostile in [
        r#"{"title":"</script><script>alert(1)</script>"}"#,
        r#"{"title":"</SCRIPT >"}"#,
        r#"{"title":"<!-- <script>"}"#,
        r#"{"title":"]]> --> <"}"#,
        "</script> not even JSON",
    ] {
        let page = sim_page("", hostile);
        for tag in ["<script", "</script", "<!--", "<SCRIPT", "</SCRIPT"] {
            assert_eq!(page.matches(tag).count(), bare.matches(tag).count(), "{tag} in {hostile}");
        }
    }
}

#[test]
fn data_arrives_as_it_was() {
    let json = r#"{"title":"a < b </script> \u003c \\ {{script}} é 🚢"}"#;
    let page = sim_page("", json);
    let (_, after) = page.split_once("id=\"report\">").unwrap();
    let (data, _) = after.split_once("</script>").unwrap();
    let read: serde_json::Value = serde_json::from_str(data).unwrap();
    assert_eq!(read["title"], "a < b </script> < \\ {{script}} é 🚢");
}

#[test]
fn what_is_put_in_is_not_filled_in_again() {
    let page = sim_page("{{report}}", r#"{"title":"{{title}}"}"#);
    assert_eq!(page.matches("{{report}}").count(), 2);
    assert_eq!(page.matches("{{title}}").count(), 1);
    assert!(!page.contains("{{style}}") && !page.contains("{{script}}"));
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    let page = sim_page("", "{}");
    let namespace = "http://www.w3.org/2000/svg";
    let rest = page.replace(namespace, "");
    for reach in ["http://", "https://", "//cdn", "src=", "@import", "url(", "fetch(", "import("] {
        assert!(!rest.contains(reach), "{reach}");
    }
    assert!(page.contains("default-src 'none'"));
    for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
        assert!(!page.contains(word), "{word} would take names for markup");
    }
}

#[test]
fn the_page_is_small() {
    let bytes = sim_page("", "").len();
    assert!(bytes < ASSETS_BYTES_MAX, "{bytes} bytes of {ASSETS_BYTES_MAX}");
}
