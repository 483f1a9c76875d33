//! Byte replacements for one step of an edit. The caller verifies the result by reading it again.

use berth_api::{FieldPath, Step};
use serde_json::Value;

use super::Edit;
use super::render::{self, Style};
use crate::document::Document;
use crate::json;
use crate::node::{Data, Entry, Node};
use crate::problem::Problem;
use crate::source::{Source, Span};
use crate::yaml_place::dash_before;

/// Text in place of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Splice {
    span: Span,
    text: String,
}

impl Splice {
    fn new(start: usize, end: usize, text: impl Into<String>) -> Self {
        Self { span: Span::new(start, end), text: text.into() }
    }
}

/// The text with all of them made; those that overlap an earlier one are left out.
pub(super) fn carry_out(text: &str, mut splices: Vec<Splice>) -> String {
    splices.sort_by_key(|splice| splice.span);
    let mut out = String::with_capacity(text.len() + 256);
    let mut at = 0;
    for splice in splices {
        let Some(kept) = text.get(at..splice.span.start()) else { continue };
        out.push_str(kept);
        out.push_str(&splice.text);
        at = splice.span.end();
    }
    out.push_str(text.get(at..).unwrap_or_default());
    out
}

pub(super) fn splices(
    document: &Document,
    step: &Edit,
    form: Form,
) -> Result<Vec<Splice>, Problem> {
    let page = Page { document, text: &document.source().text, style: style(document, form) };
    let path = step.path();
    let failed = || {
        let problem = document.problem(path.clone(), "cannot be changed in place");
        problem.with_remedy("change it by hand")
    };
    let (last, parent_path) = split(path).ok_or_else(failed)?;
    let parent = document.root().find(&parent_path, page.text).ok_or_else(failed)?;
    let made = match (step, &last) {
        (Edit::Set { value, .. }, Step::Key(key)) => page.set_field(parent, key, value),
        (Edit::Set { value, .. }, Step::At(index)) => page.set_item(parent, *index, value),
        (Edit::Remove { .. }, Step::Key(key)) => page.remove_field(&parent_path, parent, key),
        (Edit::Remove { .. }, Step::At(index)) => page.remove_item(&parent_path, parent, *index),
        (Edit::Insert { value, .. }, Step::At(index)) => {
            page.insert(&parent_path, parent, *index, value)
        }
        (Edit::Insert { .. }, Step::Key(_)) => None,
    };
    made.ok_or_else(failed)
}

fn split(path: &FieldPath) -> Option<(Step, FieldPath)> {
    let (last, parents) = path.steps().split_last()?;
    let parent = parents.iter().fold(FieldPath::root(), |path, step| match step {
        Step::Key(key) => path.key(key.clone()),
        Step::At(index) => path.at(*index),
    });
    Some((last.clone(), parent))
}

/// How a whole text is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    json: bool,
    newline: &'static str,
}

impl Form {
    pub(super) fn of(source: &Source) -> Self {
        let json = source.text.trim_start().starts_with('{') && json::read(source).is_ok();
        Self { json, newline: if source.text.contains("\r\n") { "\r\n" } else { "\n" } }
    }
}

fn style(document: &Document, Form { json, newline }: Form) -> Style {
    let mut style = Style { json, indent: 2, list_indent: 0, newline };
    let page = Page { document, text: &document.source().text, style };
    let mut habits = Habits::default();
    page.habits(document.root(), &mut habits);
    style.indent = habits.indent.unwrap_or(style.indent);
    style.list_indent = habits.list_indent.unwrap_or(style.list_indent);
    style
}

#[derive(Default)]
struct Habits {
    indent: Option<usize>,
    list_indent: Option<usize>,
}

struct Page<'a> {
    document: &'a Document,
    text: &'a str,
    style: Style,
}

impl<'a> Page<'a> {
    /// Spaces before a key, or as many as there are characters.
    fn column(&self, byte: usize) -> usize {
        self.document.source().position(byte).column - 1
    }

    fn line_start(&self, byte: usize) -> usize {
        self.text.get(..byte).and_then(|text| text.rfind('\n')).map_or(0, |at| at + 1)
    }

    /// Where the line ends, before what ends it.
    fn line_end(&self, byte: usize) -> usize {
        let rest = self.text.get(byte..).unwrap_or_default();
        let line = rest.split('\n').next().unwrap_or_default();
        byte + line.trim_end_matches('\r').len()
    }

    fn next_line(&self, byte: usize) -> usize {
        let rest = self.text.get(byte..).unwrap_or_default();
        rest.find('\n').map_or(self.text.len(), |at| byte + at + 1)
    }

    /// Whether only space is before it on its line.
    fn is_first(&self, byte: usize) -> bool {
        self.text.get(self.line_start(byte)..byte).is_some_and(|before| before.trim().is_empty())
    }

    /// Whether a comment or nothing is after it on its line.
    fn is_last(&self, byte: usize) -> bool {
        let after = self.text.get(byte..self.line_end(byte)).unwrap_or_default();
        let trimmed = after.trim_start();
        trimmed.is_empty() || (trimmed.starts_with('#') && trimmed.len() < after.len())
    }

    /// The first bracket of a flow list or map, behind anchors and tags.
    fn bracket(&self, node: &Node) -> Option<usize> {
        let mut at = node.span.start();
        loop {
            let rest = self.text.get(at..node.span.end())?;
            match rest.as_bytes().first()? {
                b'{' | b'[' => return Some(at),
                b'&' | b'!' => at += rest.find(char::is_whitespace)?,
                b' ' => at += 1,
                _ => return None,
            }
        }
    }

    fn is_flow(&self, node: &Node) -> bool {
        self.bracket(node).is_some()
    }

    /// The fields that a map has itself, as they stand in the text.
    fn fields(&self, map: &'a Node) -> Option<Vec<&'a Entry>> {
        let Data::Map(entries) = &map.data else { return None };
        let inside = |entry: &&Entry| map.span.range().contains(&entry.key_span.start());
        let mut fields: Vec<&Entry> = entries.iter().filter(inside).collect();
        fields.sort_by_key(|entry| entry.key_span);
        Some(fields)
    }

    /// The byte after the colon of a field.
    fn after_colon(&self, entry: &Entry) -> Option<usize> {
        let rest = self.text.get(entry.key_span.end()..)?;
        let spaces = rest.len() - rest.trim_start_matches(' ').len();
        rest.get(spaces..)?.starts_with(':').then_some(entry.key_span.end() + spaces + 1)
    }

    /// The byte after the last of a field.
    fn field_end(&self, entry: &Entry) -> usize {
        let colon = self.after_colon(entry).unwrap_or(entry.key_span.end());
        entry.value.span.end().max(colon)
    }

    fn is_empty_text(&self, node: &Node) -> bool {
        self.text.get(node.span.range()).is_none_or(|text| text.trim().is_empty())
    }

    fn set_field(&self, parent: &'a Node, key: &str, value: &Value) -> Option<Vec<Splice>> {
        let fields = self.fields(parent)?;
        if let Some(entry) = fields.iter().find(|entry| entry.key.of(self.text) == key) {
            if self.is_flow(parent) {
                return self.replace_in_flow(entry, value);
            }
            let indent = self.column(entry.key_span.start());
            return self.replace_after(
                self.after_colon(entry)?,
                &entry.value,
                |style| render::after_key(value, indent, style),
                value,
            );
        }
        let last = fields.last()?;
        if let Some(bracket) = self.bracket(parent) {
            return Some(vec![self.add_to_flow(bracket, self.field_end(last), |style| {
                let key = if style.json { render::quoted(key) } else { render::scalar_text(key) };
                format!("{key}: {}", render::flow(value, style))
            })]);
        }
        let indent = self.column(fields.first()?.key_span.start());
        let end = self.line_end(self.field_end(last));
        let field = render::field(key, value, indent, self.style);
        let text = format!("{}{}{field}", self.style.newline, " ".repeat(indent));
        Some(vec![Splice::new(end, end, text)])
    }

    fn replace_in_flow(&self, entry: &Entry, value: &Value) -> Option<Vec<Splice>> {
        if self.is_empty_text(&entry.value) {
            let at = self.after_colon(entry)?;
            return Some(vec![Splice::new(
                at,
                at,
                format!(" {}", render::flow(value, self.style)),
            )]);
        }
        let span = entry.value.span;
        Some(vec![Splice::new(span.start(), span.end(), self.one_line(&entry.value, value))])
    }

    /// A value on one line, in the quotes of the one it replaces.
    fn one_line(&self, old: &Node, value: &Value) -> String {
        let old = self.text.get(old.span.range()).unwrap_or_default();
        let text = value.as_str().filter(|_| !self.style.json);
        let requoted = text.and_then(|text| match old.as_bytes().first()? {
            b'"' => Some(render::quoted(text)),
            b'\'' => render::single_quoted(text),
            _ => None,
        });
        requoted.unwrap_or_else(|| render::flow(value, self.style))
    }

    /// Replaces what follows a colon or a dash in a block.
    fn replace_after(
        &self,
        start: usize,
        old: &Node,
        rendered: impl Fn(Style) -> String,
        value: &Value,
    ) -> Option<Vec<Splice>> {
        let end = old.span.end().max(start);
        let one_line = !self.text.get(start..end)?.contains('\n');
        if !one_line {
            return Some(vec![Splice::new(start, end, rendered(self.style))]);
        }
        if !render::is_block(value) {
            if self.is_empty_text(old) {
                return Some(vec![Splice::new(start, start, rendered(self.style))]);
            }
            let span = old.span;
            return Some(vec![Splice::new(span.start(), span.end(), self.one_line(old, value))]);
        }
        // A comment stays on the line of the key; the lines come below.
        let line_end = self.line_end(end);
        let below = rendered(self.style);
        if self.is_last(end) && below.starts_with(self.style.newline) {
            let comment = self.text.get(end..line_end)?.trim();
            let space = if comment.is_empty() { "" } else { " " };
            return Some(vec![Splice::new(start, line_end, format!("{space}{comment}{below}"))]);
        }
        Some(vec![Splice::new(start, end, below)])
    }

    fn set_item(&self, list: &'a Node, index: usize, value: &Value) -> Option<Vec<Splice>> {
        let Data::List(items) = &list.data else { return None };
        let item = items.get(index)?;
        if self.is_flow(list) {
            let span = item.span;
            return Some(vec![Splice::new(span.start(), span.end(), self.one_line(item, value))]);
        }
        let dash = self.dash(list, items, index)?;
        let indent = self.column(dash) + 2;
        let rendered = |style| format!(" {}", render::block(value, indent, style));
        if render::is_block(value) {
            let end = item.span.end().max(dash + 1);
            return Some(vec![Splice::new(dash + 1, end, rendered(self.style))]);
        }
        self.replace_after(dash + 1, item, rendered, value)
    }

    fn dash(&self, list: &Node, items: &[Node], index: usize) -> Option<usize> {
        let item = items.get(index)?;
        // Nothing is after the dash of an empty item, and so its place is there.
        if self.is_empty_text(item) {
            let before = self.text.get(..item.span.start())?;
            return before.ends_with('-').then(|| before.len() - 1);
        }
        let dash = dash_before(self.text, item.span.start())?;
        (dash >= list.span.start()).then_some(dash)
    }

    fn remove_field(&self, path: &FieldPath, map: &'a Node, key: &str) -> Option<Vec<Splice>> {
        let fields = self.fields(map)?;
        let position = fields.iter().position(|entry| entry.key.of(self.text) == key)?;
        let entry = fields.get(position)?;
        let (start, end) = (entry.key_span.start(), self.field_end(entry));
        let next = fields.get(position + 1).map(|entry| entry.key_span.start());
        let previous = position.checked_sub(1).and_then(|at| fields.get(at));
        let previous = previous.map(|entry| self.field_end(entry));
        if self.is_flow(map) {
            return Some(vec![cut_from_flow(start, end, next, previous)]);
        }
        if fields.len() == 1 {
            return self.set_whole(path, &Value::Object(serde_json::Map::new()));
        }
        self.cut_from_block(start, end, next)
    }

    fn remove_item(&self, path: &FieldPath, list: &'a Node, index: usize) -> Option<Vec<Splice>> {
        let Data::List(items) = &list.data else { return None };
        let item = items.get(index)?;
        if self.is_flow(list) {
            let next = items.get(index + 1).map(|next| next.span.start());
            let previous = index.checked_sub(1).and_then(|at| items.get(at));
            let previous = previous.map(|previous| previous.span.end());
            return Some(vec![cut_from_flow(item.span.start(), item.span.end(), next, previous)]);
        }
        if items.len() == 1 {
            return self.set_whole(path, &Value::Array(Vec::new()));
        }
        let dash = self.dash(list, items, index)?;
        let next = items.get(index + 1).and_then(|_| self.dash(list, items, index + 1));
        self.cut_from_block(dash, item.span.end().max(dash + 1), next)
    }

    /// Replaces a list or a map as a whole.
    fn set_whole(&self, path: &FieldPath, value: &Value) -> Option<Vec<Splice>> {
        let (last, parent_path) = split(path)?;
        let parent = self.document.root().find(&parent_path, self.text)?;
        match last {
            Step::Key(key) => self.set_field(parent, &key, value),
            Step::At(index) => self.set_item(parent, index, value),
        }
    }

    /// Whole lines where it has them for itself, else up to what comes next.
    fn cut_from_block(&self, start: usize, end: usize, next: Option<usize>) -> Option<Vec<Splice>> {
        if !self.is_first(start) {
            return Some(vec![Splice::new(start, next?, "")]);
        }
        if !self.is_last(end) {
            return None;
        }
        let mut from = self.line_start(start);
        let to = self.next_line(end);
        if to == self.text.len() && !self.text.ends_with('\n') {
            // The last line has no end to take along, so the one before gives its own.
            from = self.text.get(..from)?.trim_end_matches(['\n', '\r']).len();
        }
        Some(vec![Splice::new(from, to, "")])
    }

    fn insert(
        &self,
        path: &FieldPath,
        list: &'a Node,
        index: usize,
        value: &Value,
    ) -> Option<Vec<Splice>> {
        let items: &[Node] = match &list.data {
            Data::List(items) => items,
            Data::Null => &[],
            _ => return None,
        };
        let Some(last) = items.last() else {
            return self.set_whole(path, &Value::Array(vec![value.clone()]));
        };
        if let Some(bracket) = self.bracket(list) {
            return Some(vec![match items.get(index) {
                Some(before) => {
                    let text = format!("{}, ", render::flow(value, self.style));
                    Splice::new(before.span.start(), before.span.start(), text)
                }
                None => {
                    self.add_to_flow(bracket, last.span.end(), |style| render::flow(value, style))
                }
            }]);
        }
        let first_dash = self.dash(list, items, 0)?;
        let indent = self.column(first_dash);
        let item = format!("- {}", render::block(value, indent + 2, self.style));
        let spaces = " ".repeat(indent);
        if index < items.len() {
            let dash = self.dash(list, items, index)?;
            let text = format!("{item}{}{spaces}", self.style.newline);
            return Some(vec![Splice::new(dash, dash, text)]);
        }
        let last_dash = self.dash(list, items, items.len() - 1)?;
        let end = self.line_end(last.span.end().max(last_dash + 1));
        Some(vec![Splice::new(end, end, format!("{}{spaces}{item}", self.style.newline))])
    }

    /// One more at the end of a flow list or map: on a line of its own if the others are.
    fn add_to_flow(
        &self,
        bracket: usize,
        end: usize,
        rendered: impl Fn(Style) -> String,
    ) -> Splice {
        let inside = self.text.get(bracket + 1..end).unwrap_or_default();
        let lead = inside.len() - inside.trim_start().len();
        let space = inside.get(..lead).unwrap_or_default();
        let space = if space.contains('\n') { space } else { " " };
        Splice::new(end, end, format!(",{space}{}", rendered(self.style)))
    }

    /// How maps and lists are indented, as far as it shows.
    fn habits(&self, node: &Node, habits: &mut Habits) {
        if self.is_flow(node) || (habits.indent.is_some() && habits.list_indent.is_some()) {
            return;
        }
        match &node.data {
            Data::Map(entries) => {
                for entry in entries {
                    self.habit(entry, habits);
                    self.habits(&entry.value, habits);
                }
            }
            Data::List(items) => items.iter().for_each(|item| self.habits(item, habits)),
            _ => {}
        }
    }

    fn habit(&self, entry: &Entry, habits: &mut Habits) {
        let value = &entry.value;
        if self.is_flow(value) || !self.is_first(value.span.start()) {
            return;
        }
        let key = self.column(entry.key_span.start());
        let Some(more) = self.column(value.span.start()).checked_sub(key) else { return };
        match &value.data {
            Data::Map(_) if more > 0 => habits.indent = habits.indent.or(Some(more)),
            Data::List(_) => habits.list_indent = habits.list_indent.or(Some(more)),
            _ => {}
        }
    }
}

fn cut_from_flow(start: usize, end: usize, next: Option<usize>, previous: Option<usize>) -> Splice {
    match (next, previous) {
        (Some(next), _) => Splice::new(start, next, ""),
        (None, Some(previous)) => Splice::new(previous, end, ""),
        (None, None) => Splice::new(start, end, ""),
    }
}
