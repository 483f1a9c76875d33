//! A small PromQL parser: which function is applied to which metric, and what is divided by what. It accepts
//! more than Prometheus does.

use std::ops::Range;

/// Longest text that is taken for a query.
const LONGEST_BYTES: usize = 64 << 10;
/// Most words and signs of a query. Chains of operators nest, too.
const MOST_TOKENS: usize = 4096;
/// Deepest nesting that is followed.
const DEEPEST: usize = 64;

/// Part of a query, with its place in the text.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Expr {
    pub(crate) at: Range<usize>,
    pub(crate) what: Node,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Number(f64),
    Text,
    /// A metric, and what stands in braces after it.
    Metric {
        name: String,
        matchers: String,
    },
    /// A function or an aggregation.
    Call {
        name: String,
        arguments: Vec<Expr>,
    },
    Binary {
        operator: String,
        left: Box<Expr>,
        right: Box<Expr>,
    },
}

impl Expr {
    /// This part and all that are inside of it.
    pub(crate) fn parts(&self) -> Vec<&Self> {
        let mut all = vec![self];
        let mut next = 0;
        while let Some(part) = all.get(next).copied() {
            match &part.what {
                Node::Call { arguments, .. } => all.extend(arguments),
                Node::Binary { left, right, .. } => all.extend([&**left, &**right]),
                Node::Number(_) | Node::Text | Node::Metric { .. } => {}
            }
            next += 1;
        }
        all
    }

    /// Whether a metric of this name is in it.
    pub(crate) fn mentions(&self, metric: &str) -> bool {
        let mut parts = self.parts().into_iter();
        parts.any(|part| matches!(&part.what, Node::Metric { name, .. } if name == metric))
    }
}

/// Reads a query; `None` if the text is none.
pub(crate) fn parse(text: &str) -> Option<Expr> {
    if text.len() > LONGEST_BYTES {
        return None;
    }
    let tokens = tokens(text).filter(|tokens| tokens.len() <= MOST_TOKENS)?;
    let mut reader = Reader { text, tokens, next: 0, depth: 0 };
    let expr = reader.expr(0)?;
    (reader.next == reader.tokens.len()).then_some(expr)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Word,
    Number,
    Quoted,
    Braces,
    Brackets,
    Open,
    Close,
    Comma,
    Operator,
}

type Token = (Kind, Range<usize>);

fn tokens(text: &str) -> Option<Vec<Token>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(byte) = bytes.get(at).copied() {
        let while_in = |test: fn(u8) -> bool| {
            let length = bytes[at..].iter().position(|one| !test(*one));
            at + length.unwrap_or(bytes.len() - at)
        };
        let (kind, end) = match byte {
            b' ' | b'\t' | b'\r' | b'\n' => {
                at += 1;
                continue;
            }
            b'#' => {
                at = while_in(|one| one != b'\n');
                continue;
            }
            b'(' => (Kind::Open, at + 1),
            b')' => (Kind::Close, at + 1),
            b',' => (Kind::Comma, at + 1),
            b'{' => (Kind::Braces, closing(bytes, at, b'}')?),
            b'[' => (Kind::Brackets, closing(bytes, at, b']')?),
            b'"' | b'\'' | b'`' => (Kind::Quoted, quoted(bytes, at)?),
            b'0'..=b'9' | b'.' => (Kind::Number, while_in(is_number)),
            one if is_word(one) => {
                (Kind::Word, while_in(|one| is_word(one) || one.is_ascii_digit()))
            }
            b'+' | b'-' | b'*' | b'/' | b'%' | b'^' | b'@' => (Kind::Operator, at + 1),
            b'=' | b'!' | b'<' | b'>' => {
                let double = matches!(bytes.get(at + 1), Some(b'='));
                (Kind::Operator, at + 1 + usize::from(double))
            }
            _ => return None,
        };
        found.push((kind, at..end));
        at = end;
    }
    Some(found)
}

/// Grafana's variables start with a dollar sign.
fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b':' | b'$')
}

/// Numbers and durations.
fn is_number(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'.'
}

fn quoted(bytes: &[u8], at: usize) -> Option<usize> {
    let quote = *bytes.get(at)?;
    let mut next = at + 1;
    loop {
        match *bytes.get(next)? {
            b'\\' if quote != b'`' => next += 2,
            one if one == quote => return Some(next + 1),
            _ => next += 1,
        }
    }
}

/// One past the bracket that closes the one at `at`. Texts inside may hold any.
fn closing(bytes: &[u8], at: usize, close: u8) -> Option<usize> {
    let open = *bytes.get(at)?;
    let (mut next, mut depth) = (at, 0_usize);
    loop {
        match *bytes.get(next)? {
            b'"' | b'\'' | b'`' => next = quoted(bytes, next)?,
            one => {
                if one == open {
                    depth += 1;
                } else if one == close {
                    depth -= 1;
                }
                next += 1;
                if depth == 0 {
                    return Some(next);
                }
            }
        }
    }
}

struct Reader<'t> {
    text: &'t str,
    tokens: Vec<Token>,
    next: usize,
    depth: usize,
}

impl<'t> Reader<'t> {
    fn peek(&self) -> Option<(Kind, &'t str)> {
        let (kind, at) = self.tokens.get(self.next)?;
        Some((*kind, self.text.get(at.clone())?))
    }

    fn take(&mut self, kind: Kind) -> Option<&'t str> {
        let (found, text) = self.peek()?;
        (found == kind).then(|| {
            self.next += 1;
            text
        })
    }

    fn take_word(&mut self, words: &[&str]) -> bool {
        let found = self.peek().is_some_and(|(kind, text)| {
            kind == Kind::Word && words.contains(&text.to_ascii_lowercase().as_str())
        });
        self.next += usize::from(found);
        found
    }

    fn start(&self) -> usize {
        self.tokens.get(self.next).map_or(self.text.len(), |(_, at)| at.start)
    }

    fn end(&self) -> usize {
        let last = self.next.checked_sub(1).and_then(|at| self.tokens.get(at));
        last.map_or(0, |(_, at)| at.end)
    }

    fn expr(&mut self, weakest: u8) -> Option<Expr> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return None;
        }
        let start = self.start();
        let mut left = self.unary()?;
        while let Some((operator, strength)) = self.operator().filter(|(_, of)| *of >= weakest) {
            self.next += 1;
            self.take_word(&["bool"]);
            self.matching();
            let right = self.expr(strength + 1)?;
            let what = Node::Binary { operator, left: Box::new(left), right: Box::new(right) };
            left = Expr { at: start..self.end(), what };
        }
        self.depth -= 1;
        Some(left)
    }

    fn operator(&self) -> Option<(String, u8)> {
        let (kind, text) = self.peek()?;
        let operator = text.to_ascii_lowercase();
        let strength = match (kind, operator.as_str()) {
            (Kind::Word, "or") => 1,
            (Kind::Word, "and" | "unless") => 2,
            (Kind::Operator, "==" | "!=" | "<" | "<=" | ">" | ">=") => 3,
            (Kind::Operator, "+" | "-") => 4,
            (Kind::Operator, "*" | "/" | "%") | (Kind::Word, "atan2") => 5,
            (Kind::Operator, "^") => 6,
            _ => return None,
        };
        Some((operator, strength))
    }

    /// `on (…)`, `ignoring (…)`, `group_left (…)`: which series are matched does not matter here.
    fn matching(&mut self) {
        while self.take_word(&["on", "ignoring", "group_left", "group_right"]) {
            self.labels();
        }
    }

    /// Names of labels in parentheses, if they follow.
    fn labels(&mut self) {
        let start = self.next;
        if self.take(Kind::Open).is_some() {
            while self.take(Kind::Word).is_some() {
                self.take(Kind::Comma);
            }
            if self.take(Kind::Close).is_none() {
                self.next = start;
            }
        }
    }

    fn unary(&mut self) -> Option<Expr> {
        while self.peek().is_some_and(|(_, text)| matches!(text, "+" | "-")) {
            self.next += 1;
        }
        let start = self.start();
        let what = self.primary()?;
        // Ranges, offsets and moments change when, not what.
        loop {
            if self.take(Kind::Brackets).is_some() {
            } else if self.take_word(&["offset"]) {
                if self.peek().is_some_and(|(_, text)| text == "-") {
                    self.next += 1;
                }
                self.take(Kind::Number).or_else(|| self.take(Kind::Word))?;
            } else if self.peek().is_some_and(|(_, text)| text == "@") {
                self.next += 1;
                if self.take(Kind::Number).is_none() {
                    self.take(Kind::Word)?;
                    self.labels();
                }
            } else {
                break;
            }
        }
        Some(Expr { at: start..self.end(), what })
    }

    fn primary(&mut self) -> Option<Node> {
        let (kind, text) = self.peek()?;
        match kind {
            Kind::Number => {
                self.next += 1;
                Some(text.parse().map_or(Node::Text, Node::Number))
            }
            Kind::Quoted => {
                self.next += 1;
                Some(Node::Text)
            }
            Kind::Braces => {
                self.next += 1;
                Some(Node::Metric { name: String::new(), matchers: text.to_owned() })
            }
            Kind::Open => {
                self.next += 1;
                let inside = self.expr(0)?;
                self.take(Kind::Close)?;
                Some(inside.what)
            }
            Kind::Word => {
                self.next += 1;
                self.named(text)
            }
            Kind::Brackets | Kind::Close | Kind::Comma | Kind::Operator => None,
        }
    }

    fn named(&mut self, name: &str) -> Option<Node> {
        let grouped = self.take_word(&["by", "without"]);
        if grouped {
            self.labels();
        }
        if self.take(Kind::Open).is_none() {
            let matchers = self.take(Kind::Braces).unwrap_or_default().to_owned();
            return (!grouped).then(|| Node::Metric { name: name.to_owned(), matchers });
        }
        let mut arguments = Vec::new();
        while self.take(Kind::Close).is_none() {
            if !arguments.is_empty() {
                self.take(Kind::Comma)?;
            }
            arguments.push(self.expr(0)?);
        }
        if self.take_word(&["by", "without"]) {
            self.labels();
        }
        Some(Node::Call { name: name.to_ascii_lowercase(), arguments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(text: &str) -> Vec<String> {
        let expr = parse(text).unwrap();
        let parts = expr.parts();
        let calls = parts.iter().filter_map(|part| match &part.what {
            Node::Call { name, .. } => Some(name.clone()),
            _ => None,
        });
        calls.collect()
    }

    #[test]
    fn queries_of_all_shapes_are_read() {
        for (text, expected) in [
            ("sum by (namespace, team) (increase(a{b=\"c\"}[1h]))", vec!["sum", "increase"]),
            (
                "sum(rate(a[5m])) by (pod) / on (pod) group_left (x) max(b) by (pod)",
                vec!["sum", "max", "rate"],
            ),
            (
                "histogram_quantile(0.99, sum by (le) (rate(a_bucket[$__rate_interval])))",
                vec!["histogram_quantile", "sum", "rate"],
            ),
            (
                "max_over_time((a * on (b) c)[1h:1m] offset 5m) @ end() > bool 3 # why",
                vec!["max_over_time"],
            ),
            ("-a{b=~\"x|}y\"} or vector(0) unless absent(up == 0)", vec!["vector", "absent"]),
        ] {
            assert_eq!(calls(text), expected, "{text}");
        }
    }

    #[test]
    fn places_and_binding_follow_prometheus() {
        let text = "a + b / c > 0.9";
        let expr = parse(text).unwrap();
        let parts = expr.parts();
        let division = parts
            .iter()
            .find(|part| matches!(&part.what, Node::Binary { operator, .. } if operator == "/"));
        assert_eq!(&text[division.unwrap().at.clone()], "b / c");
        assert!(matches!(&expr.what, Node::Binary { operator, .. } if operator == ">"));
        assert!(expr.mentions("c") && !expr.mentions("d"));
    }

    #[test]
    fn what_is_no_query_is_refused_and_hostile_texts_end() {
        for text in [
            "",
            "GPU memory is nearly full",
            "a /",
            "sum(",
            "a{b=\"c",
            "groups:\n- name: x",
            "a ) b",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        assert_eq!(parse(&"(".repeat(50_000)), None);
        assert_eq!(parse(&format!("{}a", "a+".repeat(30_000))), None);
        assert!(parse(&format!("{}a", "a+".repeat(2_000))).is_some());
    }
}
