//! The parser: CEL's grammar, its macros and name resolution.

use std::sync::Arc;

use regex::Regex;

use super::library::{self, text};
use super::syntax::{Comprehension, ComprehensionKind, Expr};
use super::token::{Token, tokens};
use super::value::Value;
use super::{CompileError, DEPTH_MAX, EXPRESSION_BYTES_MAX};

const RESERVED: [&str; 17] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// Escapes for parts of field names.
const ESCAPES: [(&str, &str); 4] =
    [("__", "__underscores__"), (".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")];

/// The name of a data field as expressions must write it, with escapes for names that CEL cannot
/// write.
pub fn field_name(name: &str) -> String {
    if RESERVED.contains(&name) || ["true", "false", "null", "in"].contains(&name) {
        return format!("__{name}__");
    }
    let replace = |name: String, (sign, word): &(&str, &str)| name.replace(sign, word);
    ESCAPES.iter().fold(name.to_owned(), replace)
}

const TYPES: [&str; 10] =
    ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "type", "uint"];

/// Namespaces of functions that are called as if they were members.
const PREFIXES: [&str; 4] = ["optional", "sets", "lists", "strings"];

/// An expression and its depth.
type Nested = (Expr, usize);

/// Parses `text`, in which `subject` is the name of the root variable.
pub(super) fn parse(text: &str, subject: &'static str) -> Result<Expr, CompileError> {
    if text.len() > EXPRESSION_BYTES_MAX {
        let problem = format!("longer than {EXPRESSION_BYTES_MAX} bytes; write a shorter one");
        return Err(CompileError { at: EXPRESSION_BYTES_MAX, problem });
    }
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens, next: 0, nested: 0, subject, variables: Vec::new() };
    let (expr, _) = parser.expression()?;
    match parser.peek() {
        Token::End => Ok(expr),
        other => Err(parser.error(format!("unexpected {other:?}"))),
    }
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    nested: usize,
    /// Name of the root variable.
    subject: &'static str,
    /// Names of variables, from the outermost.
    variables: Vec<Arc<str>>,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(_, token)| token)
    }

    fn peek_after(&self, distance: usize) -> &Token {
        self.tokens.get(self.next + distance).map_or(&Token::End, |(_, token)| token)
    }

    fn error(&self, problem: impl Into<String>) -> CompileError {
        let at = self.tokens.get(self.next).or(self.tokens.last()).map_or(0, |(at, _)| *at);
        CompileError { at, problem: problem.into() }
    }

    fn is(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(one) if *one == sign)
    }

    fn accept(&mut self, sign: &str) -> bool {
        let found = self.is(sign);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), CompileError> {
        if self.accept(sign) {
            return Ok(());
        }
        Err(self.error(format!("expected {sign:?}, found {:?}", self.peek())))
    }

    fn name(&mut self) -> Result<Arc<str>, CompileError> {
        match self.peek().clone() {
            Token::Name(name) if name.as_ref() != "in" => {
                self.next += 1;
                Ok(name)
            }
            other => Err(self.error(format!("expected a name, found {other:?}"))),
        }
    }

    /// Adds one to a depth; fails at the limit.
    fn deepen(&self, depth: usize) -> Result<usize, CompileError> {
        if depth >= DEPTH_MAX {
            return Err(
                self.error(format!("expression is nested more than {DEPTH_MAX} levels deep"))
            );
        }
        Ok(depth + 1)
    }

    fn expression(&mut self) -> Result<Nested, CompileError> {
        self.nested = self.deepen(self.nested)?;
        let (condition, depth) = self.either()?;
        let parsed = if self.accept("?") {
            let (then, then_depth) = self.either()?;
            self.expect(":")?;
            let (otherwise, other_depth) = self.expression()?;
            let depth = self.deepen(depth.max(then_depth).max(other_depth))?;
            (Expr::Choice(Box::new([condition, then, otherwise])), depth)
        } else {
            (condition, depth)
        };
        self.nested -= 1;
        Ok(parsed)
    }

    fn either(&mut self) -> Result<Nested, CompileError> {
        self.joined("||", Self::both, Expr::Or)
    }

    fn both(&mut self) -> Result<Nested, CompileError> {
        self.joined("&&", |parser| parser.binary(0), Expr::And)
    }

    fn joined(
        &mut self,
        sign: &str,
        part: fn(&mut Self) -> Result<Nested, CompileError>,
        join: fn(Vec<Expr>) -> Expr,
    ) -> Result<Nested, CompileError> {
        let (first, mut depth) = part(self)?;
        if !self.is(sign) {
            return Ok((first, depth));
        }
        let mut terms = vec![first];
        while self.accept(sign) {
            let (term, term_depth) = part(self)?;
            terms.push(term);
            depth = depth.max(term_depth);
        }
        Ok((join(terms), self.deepen(depth)?))
    }

    /// Comparisons, sums and products, from the loosest.
    fn binary(&mut self, level: usize) -> Result<Nested, CompileError> {
        const LEVELS: [&[&str]; 3] =
            [&["==", "!=", "<=", ">=", "<", ">", "in"], &["+", "-"], &["*", "/", "%"]];
        let Some(signs) = LEVELS.get(level) else { return self.unary() };
        let (mut left, mut depth) = self.binary(level + 1)?;
        loop {
            let found = match self.peek() {
                Token::Sign(sign) => signs.iter().find(|one| *one == sign),
                Token::Name(name) => signs.iter().find(|one| **one == name.as_ref()),
                _ => None,
            };
            let Some(function) = found.and_then(|sign| library::operator(sign)) else {
                return Ok((left, depth));
            };
            self.next += 1;
            let (right, right_depth) = self.binary(level + 1)?;
            depth = self.deepen(depth.max(right_depth))?;
            left = match (function.name, &right) {
                // `x in []` is false without evaluating `x`.
                ("in", Expr::List(elements)) if elements.is_empty() => {
                    Expr::Constant(Value::Bool(false))
                }
                _ => Expr::Call(function, vec![left, right]),
            };
        }
    }

    fn unary(&mut self) -> Result<Nested, CompileError> {
        let mut count = 0;
        if self.is("!") {
            while self.accept("!") {
                count += 1;
            }
            let (expr, depth) = self.member()?;
            if count % 2 == 0 {
                return Ok((expr, depth));
            }
            return Ok((Expr::Not(Box::new(expr)), self.deepen(depth)?));
        }
        if !self.is("-") {
            return self.member();
        }
        if let Some(constant) = self.negative_number() {
            return self.members(constant, 1);
        }
        while self.accept("-") {
            count += 1;
        }
        let (expr, depth) = self.member()?;
        let Some(negate) = library::operator("-_").filter(|_| count % 2 == 1) else {
            return Ok((expr, depth));
        };
        Ok((Expr::Call(negate, vec![expr]), self.deepen(depth)?))
    }

    /// A negative literal, which may be the smallest integer.
    fn negative_number(&mut self) -> Option<Expr> {
        let value = match self.peek_after(1) {
            Token::Int(one) => Value::Int(i64::try_from(-i128::from(*one)).ok()?),
            Token::Double(one) => Value::Double(-one),
            _ => return None,
        };
        self.next += 2;
        Some(Expr::Constant(value))
    }

    fn member(&mut self) -> Result<Nested, CompileError> {
        let (primary, depth) = self.primary()?;
        self.members(primary, depth)
    }

    /// What follows an operand: `.name`, `.name(…)`, `[…]`.
    fn members(&mut self, mut expr: Expr, mut depth: usize) -> Result<Nested, CompileError> {
        loop {
            if self.accept("[") {
                let optional = self.accept("?");
                let (key, key_depth) = self.expression()?;
                self.expect("]")?;
                depth = self.deepen(depth.max(key_depth))?;
                let (of, key) = (Box::new(expr), Box::new(key));
                expr = if optional { Expr::IndexOptional(of, key) } else { Expr::Index(of, key) };
            } else if self.accept(".") {
                let optional = self.accept("?");
                let name = self.name()?;
                if !optional && self.accept("(") {
                    (expr, depth) = self.method(expr, depth, &name)?;
                    continue;
                }
                depth = self.deepen(depth)?;
                let of = Box::new(expr);
                expr =
                    if optional { Expr::SelectOptional(of, name) } else { Expr::Select(of, name) };
            } else {
                return Ok((expr, depth));
            }
        }
    }

    fn primary(&mut self) -> Result<Nested, CompileError> {
        let token = self.peek().clone();
        self.next += 1;
        let value = match token {
            Token::Int(one) => match i64::try_from(one) {
                Ok(one) => Value::Int(one),
                Err(_) => return Err(self.error("number does not fit 64 bits")),
            },
            Token::Uint(one) => Value::Uint(one),
            Token::Double(one) => Value::Double(one),
            Token::Text(one) => Value::Text(one),
            Token::Bytes(one) => Value::Bytes(one),
            Token::Sign("(") => {
                let inner = self.expression()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Sign("[") => return self.list(),
            Token::Sign("{") => return self.map(),
            Token::Sign(".") => {
                let name = self.name()?;
                return self.named(&name, true);
            }
            Token::Name(name) => return self.named(&name, false),
            other => {
                self.next -= 1;
                return Err(self.error(format!("expected an expression, found {other:?}")));
            }
        };
        Ok((Expr::Constant(value), 1))
    }

    /// An identifier, or a namespace before what it qualifies.
    fn named(&mut self, name: &Arc<str>, from_root: bool) -> Result<Nested, CompileError> {
        match name.as_ref() {
            "true" => return Ok((Expr::Constant(Value::Bool(true)), 1)),
            "false" => return Ok((Expr::Constant(Value::Bool(false)), 1)),
            "null" => return Ok((Expr::Constant(Value::Null), 1)),
            _ => {}
        }
        if RESERVED.contains(&name.as_ref()) || name.as_ref() == "in" {
            self.next -= 1;
            return Err(self.error(format!("{name:?} is a reserved word")));
        }
        if self.accept("(") {
            return self.function(name);
        }
        let variable = self.variables.iter().rposition(|one| one == name && !from_root);
        if let Some(at) = variable {
            return Ok((Expr::Variable(at), 1));
        }
        if name.as_ref() == self.subject {
            return Ok((Expr::Subject, 1));
        }
        if let Some(found) = TYPES.iter().find(|one| **one == name.as_ref()) {
            return Ok((Expr::Constant(Value::Type(found)), 1));
        }
        if let (Token::Sign("."), Token::Name(method), Token::Sign("(")) =
            (self.peek(), self.peek_after(1), self.peek_after(2))
        {
            let method = method.clone();
            if name.as_ref() == "cel" && method.as_ref() == "bind" {
                self.next += 3;
                return self.bind();
            }
            if PREFIXES.contains(&name.as_ref()) {
                self.next += 3;
                return self.function(&format!("{name}.{method}"));
            }
        }
        self.next -= 1;
        let subject = self.subject;
        Err(self.error(format!("unknown variable {name:?}; the only one is `{subject}`")))
    }

    /// A function call, after its opening parenthesis.
    fn function(&mut self, name: &str) -> Result<Nested, CompileError> {
        if name == "has" {
            let (argument, depth) = self.expression()?;
            self.expect(")")?;
            return match argument {
                Expr::Select(of, field) => Ok((Expr::Has(of, field), depth)),
                _ => Err(self.error("has() requires a field selection such as has(a.b)")),
            };
        }
        let (arguments, depth) = self.arguments(Vec::new(), 1)?;
        self.call(name, false, arguments, depth)
    }

    /// A member call, after its opening parenthesis.
    fn method(&mut self, of: Expr, depth: usize, name: &str) -> Result<Nested, CompileError> {
        if let (Token::Name(variable), Token::Sign(",")) = (self.peek(), self.peek_after(1)) {
            let variable = variable.clone();
            if matches!(name, "optMap" | "optFlatMap") {
                self.next += 2;
                let (then, then_depth) = self.scoped(&[variable])?;
                self.expect(")")?;
                let both = Box::new([of, then]);
                let depth = self.deepen(depth.max(then_depth))?;
                return Ok((Expr::MapOptional(both, name == "optFlatMap"), depth));
            }
            if let Some(parsed) = self.comprehension(&of, depth, name, &variable)? {
                return Ok(parsed);
            }
        }
        let (arguments, depth) = self.arguments(vec![of], depth)?;
        self.call(name, true, arguments, depth)
    }

    /// A comprehension macro; `None` if it is another call.
    fn comprehension(
        &mut self,
        over: &Expr,
        depth: usize,
        name: &str,
        first: &Arc<str>,
    ) -> Result<Option<Nested>, CompileError> {
        let (kind, one_variable) = match name {
            "all" => (ComprehensionKind::All, true),
            "exists" => (ComprehensionKind::Exists, true),
            "exists_one" | "existsOne" => (ComprehensionKind::ExistsOne, true),
            "filter" => (ComprehensionKind::Filter, true),
            "map" => (ComprehensionKind::List, true),
            "sortBy" => (ComprehensionKind::Sort, true),
            "transformList" => (ComprehensionKind::List, false),
            "transformMap" => (ComprehensionKind::Map, false),
            "transformMapEntry" => (ComprehensionKind::Entries, false),
            _ => return Ok(None),
        };
        let start = self.next;
        self.next += 2;
        let parts = self.count_parts();
        let quantifier = matches!(
            kind,
            ComprehensionKind::All | ComprehensionKind::Exists | ComprehensionKind::ExistsOne
        );
        // Parts after the first variable: [second variable,] [filter,] body.
        let two = !one_variable || quantifier && parts == 2;
        let wanted = if two { 2..=3 } else { 1..=2 };
        let filtered = parts == if two { 3 } else { 2 };
        if !wanted.contains(&parts)
            || filtered
                && (quantifier
                    || matches!(kind, ComprehensionKind::Filter | ComprehensionKind::Sort))
        {
            self.next = start;
            return Err(self.error(format!("wrong number of arguments for {name}()")));
        }
        let mut variables = vec![first.clone()];
        if two {
            variables.push(self.name()?);
            self.expect(",")?;
        }
        let mut depth = depth;
        let filter = if filtered {
            let (filter, filter_depth) = self.scoped(&variables)?;
            self.expect(",")?;
            depth = depth.max(filter_depth);
            Some(filter)
        } else {
            None
        };
        let (body, body_depth) = self.scoped(&variables)?;
        self.expect(")")?;
        let depth = self.deepen(depth.max(body_depth))?;
        Ok(Some((
            Expr::Comprehension(Box::new(Comprehension {
                kind,
                over: over.clone(),
                two,
                filter,
                body,
            })),
            depth,
        )))
    }

    /// The number of arguments until the closing parenthesis.
    fn count_parts(&self) -> usize {
        let (mut open, mut parts) = (0_usize, 1);
        for (_, token) in self.tokens.iter().skip(self.next) {
            match token {
                Token::Sign("(" | "[" | "{") => open += 1,
                Token::Sign(")" | "]" | "}") if open == 0 => break,
                Token::Sign(")" | "]" | "}") => open -= 1,
                Token::Sign(",") if open == 0 => parts += 1,
                _ => {}
            }
        }
        parts
    }

    fn bind(&mut self) -> Result<Nested, CompileError> {
        let variable = self.name()?;
        self.expect(",")?;
        let (what, what_depth) = self.expression()?;
        self.expect(",")?;
        let (then, then_depth) = self.scoped(&[variable])?;
        self.expect(")")?;
        let depth = self.deepen(what_depth.max(then_depth))?;
        Ok((Expr::Bind(Box::new([what, then])), depth))
    }

    /// An expression in which `names` are variables.
    fn scoped(&mut self, names: &[Arc<str>]) -> Result<Nested, CompileError> {
        let outside = self.variables.len();
        self.variables.extend_from_slice(names);
        let parsed = self.expression();
        self.variables.truncate(outside);
        parsed
    }

    fn arguments(
        &mut self,
        mut arguments: Vec<Expr>,
        mut depth: usize,
    ) -> Result<(Vec<Expr>, usize), CompileError> {
        while !self.accept(")") {
            let (argument, argument_depth) = self.expression()?;
            arguments.push(argument);
            depth = depth.max(argument_depth);
            if !self.is(")") {
                self.expect(",")?;
            }
        }
        Ok((arguments, depth))
    }

    fn call(
        &self,
        name: &str,
        member: bool,
        mut arguments: Vec<Expr>,
        depth: usize,
    ) -> Result<Nested, CompileError> {
        let depth = self.deepen(depth)?;
        if let (true, "matches", [_, Expr::Constant(Value::Text(pattern))]) =
            (member, name, &arguments[..])
        {
            let regex = text::compile(pattern).map_err(|failure| self.error(failure.message))?;
            let regex: Box<Regex> = Box::new(regex);
            arguments.truncate(1);
            if let Some(of) = arguments.pop() {
                return Ok((Expr::Matches(Box::new(of), regex), depth));
            }
        }
        match library::function(name, member, arguments.len()) {
            Some(function) => Ok((Expr::Call(function, arguments), depth)),
            None => {
                let count = arguments.len() - usize::from(member);
                Err(self.error(format!("unknown function {name}() with {count} arguments")))
            }
        }
    }

    fn list(&mut self) -> Result<Nested, CompileError> {
        let (mut elements, mut depth) = (Vec::new(), 1);
        while !self.accept("]") {
            let optional = self.accept("?");
            let (element, element_depth) = self.expression()?;
            elements.push((element, optional));
            depth = depth.max(element_depth);
            if !self.is("]") {
                self.expect(",")?;
            }
        }
        Ok((Expr::List(elements), self.deepen(depth)?))
    }

    fn map(&mut self) -> Result<Nested, CompileError> {
        let (mut entries, mut depth) = (Vec::new(), 1);
        while !self.accept("}") {
            let optional = self.accept("?");
            let (key, key_depth) = self.expression()?;
            self.expect(":")?;
            let (value, value_depth) = self.expression()?;
            entries.push((key, value, optional));
            depth = depth.max(key_depth).max(value_depth);
            if !self.is("}") {
                self.expect(",")?;
            }
        }
        Ok((Expr::Map(entries), self.deepen(depth)?))
    }
}
