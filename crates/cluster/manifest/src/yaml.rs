//! YAML with positions: anchors, merge keys, tags. The grammar is saphyr-parser's, the meaning of scalars
//! [`crate::scalar`]'s.

use std::collections::BTreeMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Tag};

use crate::limits::{ALIASED_VALUES_MAX, DEPTH_MAX, DOCUMENTS_MAX, VALUES_MAX};
use crate::node::{self, Data, Entry, Node, Text};
use crate::problem::Problem;
use crate::scalar::{self, Scalar};
use crate::source::{Source, Span};
use crate::yaml_place::Places;

/// The values of all documents that hold something.
pub(crate) fn read(source: &Source) -> Result<Vec<Node>, Problem> {
    let mut reader = Reader {
        source,
        text: &source.text,
        places: Places::new(&source.text),
        open: Vec::new(),
        anchors: BTreeMap::new(),
        documents: Vec::new(),
        values: 0,
        aliased: 0,
        last_end: 0,
    };
    for event in Parser::new_from_str(&source.text) {
        let (event, span) = event.map_err(|error| reader.syntax(&error))?;
        let span = reader.places.span(span);
        reader.event(event, span)?;
        reader.last_end = span.end();
    }
    Ok(reader.documents)
}

/// A list or a map that is not complete yet.
struct Open {
    span: Span,
    flow: bool,
    anchor: usize,
    inside: Inside,
}

enum Inside {
    List(Vec<Node>),
    Map { entries: Vec<Entry>, merges: Vec<Merge>, key: Option<Key> },
}

/// A merge key, and how many fields stand before it.
struct Merge {
    after: usize,
    key_span: Span,
    node: Node,
}

enum Key {
    Plain(Text, Span),
    /// `<<`
    Merge(Span),
}

struct Reader<'a> {
    source: &'a Source,
    text: &'a str,
    places: Places<'a>,
    open: Vec<Open>,
    /// What is meant by an anchor's number.
    anchors: BTreeMap<usize, Node>,
    documents: Vec<Node>,
    values: usize,
    aliased: usize,
    /// Where the last event ended: nothing of the next one stands before it.
    last_end: usize,
}

impl<'a> Reader<'a> {
    fn problem(&self, span: Span, message: impl Into<String>, remedy: &str) -> Problem {
        Problem::of_text(self.source, span, message).with_remedy(remedy)
    }

    fn syntax(&self, error: &ScanError) -> Problem {
        let at = self.places.byte(error.marker().index());
        if error.info() == "recursion limit exceeded" {
            return self.too_deep(Span::empty_at(at));
        }
        let problem = Problem::of_text(self.source, Span::empty_at(at), error.info());
        let line = self.source.line(self.source.position(at).line);
        if line.trim_start_matches(' ').starts_with('\t') {
            return problem.with_remedy("indent with spaces, not tabs");
        }
        if error.info().starts_with("invalid indentation") {
            return problem.with_remedy("indent it deeper than its key");
        }
        if error.info().contains("valid YAML whitespace") {
            return problem.with_remedy("use a space, not a tab");
        }
        if at >= self.text.trim_end().len() {
            return problem.with_remedy("unexpected end of file; is it truncated?");
        }
        problem
    }

    fn too_deep(&self, span: Span) -> Problem {
        let message = format!("values are nested more than {DEPTH_MAX} deep");
        self.problem(span, message, "reduce the nesting")
    }

    fn event(&mut self, event: Event<'a>, span: Span) -> Result<(), Problem> {
        match event {
            Event::DocumentStart(_) => {
                self.anchors.clear();
                Ok(())
            }
            Event::Scalar(text, style, anchor, tag) => {
                self.scalar(&text, style, tag.as_deref(), anchor, span)
            }
            Event::SequenceStart(anchor, _) => self.start(Inside::List(Vec::new()), anchor, span),
            Event::MappingStart(anchor, _) => {
                let inside = Inside::Map { entries: Vec::new(), merges: Vec::new(), key: None };
                self.start(inside, anchor, span)
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(span),
            Event::Alias(anchor) => self.alias(anchor, span),
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => Ok(()),
        }
    }

    /// Whether the next value is a key.
    fn at_key(&self) -> bool {
        matches!(self.open.last(), Some(Open { inside: Inside::Map { key: None, .. }, .. }))
    }

    fn count(&mut self, span: Span) -> Result<(), Problem> {
        self.values += 1;
        if self.values > VALUES_MAX {
            let message = format!("more than {VALUES_MAX} values");
            return Err(self.problem(span, message, "split the file"));
        }
        Ok(())
    }

    fn start(&mut self, inside: Inside, anchor: usize, span: Span) -> Result<(), Problem> {
        self.count(span)?;
        if self.at_key() {
            let message = "a list or a map cannot be a key";
            return Err(self.problem(span, message, "use a string as the key"));
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(self.too_deep(span));
        }
        let bracket = span.end().checked_sub(1).and_then(|at| self.text.as_bytes().get(at));
        let flow = !span.is_empty() && matches!(bracket, Some(b'{' | b'['));
        let span = match &inside {
            Inside::List(_) if !flow => self.places.block_list(span),
            _ => span,
        };
        self.open.push(Open { span, flow, anchor, inside });
        Ok(())
    }

    fn end(&mut self, span: Span) -> Result<(), Problem> {
        let Some(open) = self.open.pop() else { return Ok(()) };
        let (data, last) = match open.inside {
            Inside::List(items) => {
                let last = items.last().map(|item| item.span.end());
                (Data::List(items), last)
            }
            Inside::Map { entries, merges, .. } => {
                let merged =
                    merges.last().map(|merge| merge.node.span.end().max(merge.key_span.end()));
                let last = entries.last().map(|entry| entry.value.span.end()).max(merged);
                (Data::Map(self.fields(entries, merges)?), last)
            }
        };
        let end = match (open.flow, last) {
            (true, _) => span.end(),
            // The event of a block comes where the next thing starts, not where the block ends.
            (false, Some(last)) => last,
            (false, None) => open.span.end(),
        };
        let span = Span::new(open.span.start(), end);
        self.complete(Node { span, data }, open.anchor)
    }

    /// Carries out merge keys as kubectl does: in the order of the text, so that later fields win,
    /// written or merged; of a list of maps the first wins. The map is sorted then.
    fn fields(&self, entries: Vec<Entry>, merges: Vec<Merge>) -> Result<Vec<Entry>, Problem> {
        if let Some((entry, first)) = node::duplicate(&entries, self.text) {
            let key = entry.key.of(self.text);
            let line = self.source.start(first).line;
            let message = format!("duplicate key {key:?}, first on line {line}");
            return Err(self.problem(entry.key_span, message, "keep one of them"));
        }
        if merges.is_empty() {
            return Ok(entries);
        }
        let own = |entry: &Entry| Box::<str>::from(entry.key.of(self.text));
        let mut fields: BTreeMap<Box<str>, Entry> = BTreeMap::new();
        let mut written = entries.into_iter();
        let mut taken = 0;
        for merge in merges {
            let before = written.by_ref().take(merge.after - taken);
            fields.extend(before.map(|entry| (own(&entry), entry)));
            taken = merge.after;
            let maps = match merge.node.data {
                Data::List(items) => items,
                data => vec![Node { span: merge.node.span, data }],
            };
            for map in maps.into_iter().rev() {
                let what = map.what();
                let Data::Map(more) = map.data else {
                    let message = format!("<< requires a map or a list of maps, found {what}");
                    return Err(self.problem(merge.key_span, message, "use an alias of a map"));
                };
                fields.extend(more.into_iter().map(|entry| (own(&entry), entry)));
            }
        }
        fields.extend(written.map(|entry| (own(&entry), entry)));
        Ok(fields.into_values().collect())
    }

    fn alias(&mut self, anchor: usize, span: Span) -> Result<(), Problem> {
        self.count(span)?;
        let Some(meant) = self.anchors.get(&anchor) else {
            let message = "recursive alias";
            return Err(self.problem(span, message, "write out the value"));
        };
        let (size, depth) = (meant.size(), meant.depth());
        self.spend(size, span)?;
        if self.open.len() + depth > DEPTH_MAX {
            return Err(self.too_deep(span));
        }
        let Some(node) = self.anchors.get(&anchor).cloned() else { return Ok(()) };
        if self.at_key() {
            let Data::String(text) = node.data else {
                let message = format!("the alias of a key must be a string, found {}", node.what());
                return Err(self.problem(span, message, "write out the key"));
            };
            return self.key(Key::Plain(text, span));
        }
        self.complete(node, 0)
    }

    /// Copies cost what they hold.
    fn spend(&mut self, size: usize, span: Span) -> Result<(), Problem> {
        self.aliased += size;
        if self.aliased > ALIASED_VALUES_MAX {
            let message = format!("aliases expand to more than {ALIASED_VALUES_MAX} values");
            return Err(self.problem(span, message, "write out the values"));
        }
        Ok(())
    }

    fn scalar(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        anchor: usize,
        span: Span,
    ) -> Result<(), Problem> {
        self.count(span)?;
        let span = self.places.scalar(span, style, self.last_end);
        if self.at_key() {
            if anchor != 0 {
                let data = Data::String(self.places.text(text));
                self.anchors.insert(anchor, Node { span, data });
            }
            return self.scalar_key(text, style, tag, span);
        }
        let data = match meaning(text, style, tag) {
            Ok(Scalar::Null) => Data::Null,
            Ok(Scalar::Bool(value)) => Data::Bool(value),
            Ok(Scalar::Number(number)) => Data::Number(number),
            Ok(Scalar::Text) => Data::String(self.places.text(text)),
            Ok(Scalar::NotFinite) => {
                let message = format!("number {text} has no JSON form");
                return Err(self.problem(span, message, "use a finite number"));
            }
            Err(message) => return Err(self.problem(span, message, "remove the tag")),
        };
        self.complete(Node { span, data }, anchor)
    }

    fn scalar_key(
        &mut self,
        text: &str,
        style: ScalarStyle,
        tag: Option<&Tag>,
        span: Span,
    ) -> Result<(), Problem> {
        let plain = style == ScalarStyle::Plain && tag.is_none();
        if plain && text == "<<" {
            return self.key(Key::Merge(span));
        }
        if !plain || matches!(scalar::resolve(text), Scalar::Text) {
            return self.key(Key::Plain(self.places.text(text), span));
        }
        let Some(key) = scalar::key(text) else {
            let message = match text {
                "" => "missing key before the colon".to_owned(),
                _ => format!("key {text} is not a string"),
            };
            return Err(self.problem(span, message, "quote the key"));
        };
        self.key(Key::Plain(Text::Own(key.into()), span))
    }

    fn key(&mut self, new: Key) -> Result<(), Problem> {
        if let Some(Open { inside: Inside::Map { key, .. }, .. }) = self.open.last_mut() {
            *key = Some(new);
        }
        Ok(())
    }

    /// Puts a value where it belongs.
    fn complete(&mut self, node: Node, anchor: usize) -> Result<(), Problem> {
        if anchor != 0 {
            self.spend(node.size(), node.span)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|open| &mut open.inside) {
            None if matches!(node.data, Data::Null) => {}
            None => {
                if self.documents.len() >= DOCUMENTS_MAX {
                    let message = format!("more than {DOCUMENTS_MAX} objects");
                    return Err(self.problem(node.span, message, "split the file"));
                }
                self.documents.push(node);
            }
            Some(Inside::List(items)) => items.push(node),
            Some(Inside::Map { entries, merges, key }) => match key.take() {
                Some(Key::Plain(key, key_span)) => {
                    entries.push(Entry { key, key_span, value: node });
                }
                Some(Key::Merge(key_span)) => {
                    merges.push(Merge { after: entries.len(), key_span, node });
                }
                None => {}
            },
        }
        Ok(())
    }
}

/// What a scalar means, or why its tag cannot be right.
fn meaning(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Scalar, String> {
    let core = tag.filter(|tag| tag.is_yaml_core_schema());
    let Some(tag) = core else {
        // Tags of one's own say nothing about the value.
        let plain = style == ScalarStyle::Plain && tag.is_none();
        return Ok(if plain { scalar::resolve(text) } else { Scalar::Text });
    };
    let resolved = scalar::resolve(text);
    let fits = match tag.suffix.as_str() {
        "str" | "timestamp" => return Ok(Scalar::Text),
        "binary" => return Err("!!binary is not supported".to_owned()),
        "null" => matches!(resolved, Scalar::Null),
        "bool" => matches!(resolved, Scalar::Bool(_)),
        "int" => matches!(&resolved, Scalar::Number(number) if !number.is_f64()),
        "float" => matches!(resolved, Scalar::Number(_) | Scalar::NotFinite),
        _ => return Ok(Scalar::Text),
    };
    if fits { Ok(resolved) } else { Err(format!("{text:?} is not of type {}", tag.suffix)) }
}
