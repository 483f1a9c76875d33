//! Reads Rust source just well enough for the tidy rules: which characters are code, comment or
//! literal, which tokens belong to tests, and which paths the code names.
//!
//! It owns no rule and knows nothing of crates. It is a scanner, not a parser: macros are read as
//! the tokens they are written in, and names are resolved through the `use` lines of one file only.

use std::collections::BTreeMap;

/// What an item or a statement can begin with, after its attributes and its visibility.
const ITEM_KEYWORDS: [&str; 16] = [
    "async",
    "const",
    "enum",
    "extern",
    "fn",
    "impl",
    "let",
    "macro_rules",
    "mod",
    "static",
    "struct",
    "trait",
    "type",
    "union",
    "unsafe",
    "use",
];

/// One token of code: an identifier (or number), `::`, or a single punctuation character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// Line of the token, from 1.
    pub(crate) line: usize,
}

/// A path that the code names, with aliases resolved: `["std", "time", "Instant"]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedPath {
    pub(crate) segments: Vec<String>,
    /// Whether this is an import that ends in `::*`.
    pub(crate) glob: bool,
    /// Line of the last segment, from 1.
    pub(crate) line: usize,
}

/// The source with literals blanked out, and with comments too unless `keep_comments`. Every line
/// keeps its number.
pub(crate) fn blank(source: &str, keep_comments: bool) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut out = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let (end, keep) = match span(&chars, at) {
            Span::Code(end) => (end, true),
            Span::Comment(end) => (end, keep_comments),
            Span::Literal(end) => (end, false),
        };
        for &c in &chars[at..end] {
            out.push(if keep || c == '\n' { c } else { ' ' });
        }
        at = end;
    }
    out
}

/// What starts at one character, and where it ends.
enum Span {
    Code(usize),
    Comment(usize),
    Literal(usize),
}

fn span(chars: &[char], at: usize) -> Span {
    let peek = |offset: usize| chars.get(at + offset).copied();
    match chars[at] {
        '/' if peek(1) == Some('/') => {
            let end = chars[at..].iter().position(|&c| c == '\n').map_or(chars.len(), |n| at + n);
            Span::Comment(end)
        }
        '/' if peek(1) == Some('*') => Span::Comment(block_comment_end(chars, at)),
        '"' => Span::Literal(string_end(chars, at)),
        '\'' => match char_literal_end(chars, at) {
            Some(end) => Span::Literal(end),
            None => Span::Code(at + 1),
        },
        c if is_ident(c) => {
            let end =
                chars[at..].iter().position(|&c| !is_ident(c)).map_or(chars.len(), |n| at + n);
            let prefix: String = chars[at..end].iter().collect();
            let raw = matches!(prefix.as_str(), "r" | "br" | "cr");
            match (raw, raw_string_end(chars, end)) {
                (true, Some(end)) => Span::Literal(end),
                _ => Span::Code(end),
            }
        }
        _ => Span::Code(at + 1),
    }
}

fn is_ident(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn block_comment_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0usize;
    let mut at = start;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                at += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    chars.len()
}

/// End of the string whose opening quote is at `open`.
fn string_end(chars: &[char], open: usize) -> usize {
    let mut at = open + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// End of the raw string whose hashes or opening quote are at `at`, if there is one.
fn raw_string_end(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars.get(at..)?.iter().take_while(|&&c| c == '#').count();
    let open = at + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let closes = |from: usize| {
        chars[from] == '"' && (1..=hashes).all(|n| chars.get(from + n).is_some_and(|&c| c == '#'))
    };
    let end = (open + 1..chars.len()).find(|&from| closes(from));
    Some(end.map_or(chars.len(), |from| from + 1 + hashes))
}

/// End of the character literal at `open`; none when the quote begins a lifetime or a label.
fn char_literal_end(chars: &[char], open: usize) -> Option<usize> {
    match chars.get(open + 1)? {
        '\\' => {
            let close = chars.get(open + 3..)?.iter().position(|&c| c == '\'')?;
            Some(open + 3 + close + 1)
        }
        _ if chars.get(open + 2) == Some(&'\'') => Some(open + 3),
        _ => None,
    }
}

/// The tokens of the code, without comments and literals.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::new();
    for (index, text) in blank(source, false).lines().enumerate() {
        let line = index + 1;
        let chars: Vec<char> = text.chars().collect();
        let mut at = 0;
        while at < chars.len() {
            let start = at;
            while at < chars.len() && is_ident(chars[at]) {
                at += 1;
            }
            if at == start {
                at += if chars[at] == ':' && chars.get(at + 1) == Some(&':') { 2 } else { 1 };
            }
            let text: String = chars[start..at].iter().collect();
            if !text.trim().is_empty() {
                tokens.push(Token { text, line });
            }
        }
    }
    tokens
}

/// The tokens of what ships: without the items under `#[cfg(test)]`, and nothing at all where the
/// whole file is under `#![cfg(test)]`.
pub(crate) fn shipped_tokens(source: &str) -> Vec<Token> {
    let all = tokens(source);
    let mut kept = Vec::with_capacity(all.len());
    let mut at = 0;
    while at < all.len() {
        if is(&all, at, "#") && is(&all, at + 1, "!") && is_test_cfg(&all, at + 2) {
            return Vec::new();
        }
        if is(&all, at, "#") && is_test_cfg(&all, at + 1) {
            at = item_end(&all, at);
        } else {
            kept.push(all[at].clone());
            at += 1;
        }
    }
    kept
}

fn is(tokens: &[Token], at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|token| token.text == text)
}

/// Whether `[cfg(…)]` with `test` in it, and no `not`, starts at `open`.
fn is_test_cfg(tokens: &[Token], open: usize) -> bool {
    if !(is(tokens, open, "[") && is(tokens, open + 1, "cfg")) {
        return false;
    }
    let inside = &tokens[open..group_end(tokens, open)];
    inside.iter().any(|t| t.text == "test") && !inside.iter().any(|t| t.text == "not")
}

/// The token after the group whose opening bracket is at `open`.
fn group_end(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// The token after what the attribute at `at` belongs to: after the `;` or the braces of an item,
/// after the comma of a field or an arm, or before the brace that closes what encloses it.
fn item_end(tokens: &[Token], mut at: usize) -> usize {
    while is(tokens, at, "#") {
        at = group_end(tokens, at + 1);
    }
    if is(tokens, at, "pub") {
        at += 1;
        if is(tokens, at, "(") {
            at = group_end(tokens, at);
        }
    }
    // The tree of a `use` has braces of its own; the generics of a `fn` or an `impl`, commas.
    let import = is(tokens, at, "use");
    let item = ITEM_KEYWORDS.iter().any(|keyword| is(tokens, at, keyword));
    while at < tokens.len() {
        match tokens[at].text.as_str() {
            ";" => return at + 1,
            "," if !item => return at + 1,
            ")" | "]" | "}" => return at,
            "{" if !import => return group_end(tokens, at),
            "(" | "[" | "{" => at = group_end(tokens, at),
            _ => at += 1,
        }
    }
    tokens.len()
}

/// Every import, and every path of two segments or more, in these tokens. The first segment of a
/// path is resolved through the imports, wherever in the file they stand.
pub(crate) fn named_paths(tokens: &[Token]) -> Vec<NamedPath> {
    let mut paths = Vec::new();
    let mut aliases = BTreeMap::new();
    let mut at = 0;
    while at < tokens.len() {
        // `use<'a>` is a bound, not an import.
        if tokens[at].text == "use" && !is(tokens, at + 1, "<") {
            at += 1;
            import(tokens, &mut at, &[], &mut paths, &mut aliases);
        } else {
            at += 1;
        }
    }
    at = 0;
    while at < tokens.len() {
        if tokens[at].text == "use" && !is(tokens, at + 1, "<") {
            while at < tokens.len() && tokens[at].text != ";" {
                at += 1;
            }
            continue;
        }
        let start = at;
        at += 1;
        if !starts_ident(&tokens[start]) {
            continue;
        }
        while is(tokens, at, "::") && tokens.get(at + 1).is_some_and(starts_ident) {
            at += 2;
        }
        if at == start + 1 {
            continue;
        }
        let mut segments: Vec<String> =
            tokens[start..at].iter().step_by(2).map(|token| token.text.clone()).collect();
        let absolute = start > 0 && tokens[start - 1].text == "::";
        if let Some(full) = aliases.get(&segments[0]).filter(|_| !absolute) {
            segments.splice(0..1, full.iter().cloned());
        }
        paths.push(NamedPath { segments, glob: false, line: tokens[at - 1].line });
    }
    paths.sort_by_key(|path| path.line);
    paths
}

fn starts_ident(token: &Token) -> bool {
    token.text.starts_with(is_ident)
}

/// Reads one tree of a `use` at `at`, up to and without the `,`, `}` or `;` that ends it.
fn import(
    tokens: &[Token],
    at: &mut usize,
    prefix: &[String],
    paths: &mut Vec<NamedPath>,
    aliases: &mut BTreeMap<String, Vec<String>>,
) {
    let mut segments = prefix.to_vec();
    let mut line = 0;
    let mut alias = None;
    while let Some(token) = tokens.get(*at) {
        match token.text.as_str() {
            "," | "}" | ";" => break,
            "{" => {
                *at += 1;
                while *at < tokens.len() && !is(tokens, *at, "}") && !is(tokens, *at, ";") {
                    import(tokens, at, &segments, paths, aliases);
                    if is(tokens, *at, ",") {
                        *at += 1;
                    }
                }
                *at += usize::from(is(tokens, *at, "}"));
                return;
            }
            "*" => {
                paths.push(NamedPath { segments: segments.clone(), glob: true, line: token.line });
                *at += 1;
                return;
            }
            "as" => {
                alias = tokens.get(*at + 1).map(|token| token.text.clone());
                *at += 1;
            }
            "::" => {}
            // `a::{self}` names `a`; a leading `self` is this module.
            "self" if !segments.is_empty() => line = token.line,
            _ => {
                line = token.line;
                segments.push(token.text.clone());
            }
        }
        *at += 1;
    }
    if let Some(name) = alias.or_else(|| segments.last().cloned()) {
        aliases.insert(name, segments.clone());
        paths.push(NamedPath { segments, glob: false, line });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<String> {
        tokens(source).into_iter().map(|token| token.text).collect()
    }

    fn paths(source: &str) -> Vec<String> {
        let rendered = |path: NamedPath| {
            format!("{}{}", path.segments.join("::"), if path.glob { "::*" } else { "" })
        };
        named_paths(&shipped_tokens(source)).into_iter().map(rendered).collect()
    }

    #[test]
    fn literals_and_comments_are_not_code() {
        let source = r##"a /* b /* c */ d */ "e \" f" r#"g " h"# b"i" 'j' '\'' '\u{1F600}' // k
            l"##;
        assert_eq!(words(source), ["a", "b", "l"]);
    }

    #[test]
    fn lifetimes_and_labels_are_code() {
        assert_eq!(words("&'a T 'x: loop"), ["&", "'", "a", "T", "'", "x", ":", "loop"]);
    }

    #[test]
    fn lines_keep_their_numbers() {
        let found = tokens("\"a\nb\" /*\n*/ c\nd");
        assert_eq!(found, [("c", 3), ("d", 4)].map(|(t, line)| Token { text: t.into(), line }));
    }

    #[test]
    fn comments_can_be_kept() {
        assert_eq!(blank("x \"y\" // z", true), "x     // z");
    }

    #[test]
    fn unterminated_source_ends_where_the_file_ends() {
        for source in ["\"a", "r#\"a", "/* a", "'\\", "#[cfg(test)]", "use a::{b", "#[cfg(test"] {
            let _ = named_paths(&shipped_tokens(source));
        }
    }

    #[test]
    fn test_items_do_not_ship() {
        let source = "fn a() {} #[cfg(test)] #[x] mod t { fn b() {} } #[cfg(test)] mod u; fn c() {}
            #[cfg(all(test, unix))] use x::{y, z}; #[cfg(not(test))] fn d() {}";
        let shipped = shipped_tokens(source);
        let names: Vec<&str> = shipped
            .windows(2)
            .filter(|pair| matches!(pair[0].text.as_str(), "fn" | "mod"))
            .map(|pair| pair[1].text.as_str())
            .collect();
        assert_eq!(names, ["a", "c", "d"]);
        assert!(shipped_tokens("#![cfg(test)] fn a() {}").is_empty());

        let parts = "struct S { #[cfg(test)] a: Vec<u8>, b: u8, #[cfg(test)] c: u8 } fn d() {}
            #[cfg(test)] pub(crate) use x::{y, z}; #[cfg(test)] impl<A, B> T<A, B> for S {} e";
        let shipped: Vec<String> = shipped_tokens(parts).into_iter().map(|t| t.text).collect();
        assert_eq!(shipped.join(" "), "struct S { b : u8 , } fn d ( ) { } e");
    }

    #[test]
    fn imports_are_flattened() {
        assert_eq!(
            paths("use a::{self, b::{c, d as e}, f::*}; pub use ::g;"),
            ["a", "a::b::c", "a::b::d", "a::f::*", "g"]
        );
        assert_eq!(paths("use self::rand::X;"), ["self::rand::X"]);
    }

    #[test]
    fn paths_resolve_through_imports() {
        assert_eq!(
            paths(
                "use std::time; use std::fs as disk; fn f() { time::Instant::now(); disk::read }"
            ),
            ["std::time", "std::fs", "std::time::Instant::now", "std::fs::read"]
        );
        assert_eq!(
            paths("use a::b; ::b::c; x.b::<u8>(); fn f<'a>() -> impl use<'a> {}"),
            ["a::b", "b::c"]
        );
    }
}
