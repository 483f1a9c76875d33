//! CEL values with cel-go's rules of equality and order, asymmetries included.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use berth_model::quantity::Quantity;

use super::EvalError;
use super::version::Version;

#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(Arc<str>),
    Bytes(Arc<[u8]>),
    List(Arc<[Value]>),
    Map(Arc<Map>),
    Quantity(Amount),
    Version(Arc<Version>),
    Optional(Option<Arc<Value>>),
    Type(&'static str),
    /// Nanoseconds since 1970.
    Timestamp(i128),
    /// Nanoseconds.
    Duration(i64),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Amount {
    pub(super) quantity: Quantity,
    /// Whether it is the result of `add` or `sub`. Kubernetes then has it by reference, and it does
    /// not equal anything when on the left.
    pub(super) computed: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Map {
    pub(super) entries: BTreeMap<Key, Value>,
    /// The result of looking up any other key, which is not in the map all the same.
    pub(super) otherwise: Option<Value>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    Bool(bool),
    Int(i64),
    Uint(u64),
    Text(Arc<str>),
}

impl Key {
    pub(super) fn of(value: &Value) -> Result<Self, EvalError> {
        match value {
            Value::Bool(one) => Ok(Self::Bool(*one)),
            Value::Int(one) => Ok(Self::Int(*one)),
            Value::Uint(one) => Ok(Self::Uint(*one)),
            Value::Text(one) => Ok(Self::Text(one.clone())),
            other => Err(EvalError::new(format!("unsupported key type {}", other.type_name()))),
        }
    }

    pub(super) fn value(&self) -> Value {
        match self {
            Self::Bool(one) => Value::Bool(*one),
            Self::Int(one) => Value::Int(*one),
            Self::Uint(one) => Value::Uint(*one),
            Self::Text(one) => Value::Text(one.clone()),
        }
    }
}

impl Map {
    /// The value under `key`; integers match whatever their type.
    pub(super) fn stored(&self, key: &Value) -> Option<&Value> {
        let text;
        let key = match key {
            Value::Bool(one) => Key::Bool(*one),
            Value::Text(one) => {
                text = one.clone();
                Key::Text(text)
            }
            Value::Int(_) | Value::Uint(_) | Value::Double(_) => return self.numbered(key),
            _ => return None,
        };
        self.entries.get(&key)
    }

    fn numbered(&self, key: &Value) -> Option<&Value> {
        let whole = match key {
            Value::Int(one) => i128::from(*one),
            Value::Uint(one) => i128::from(*one),
            Value::Double(one) if *one == one.trunc() && one.abs() < 1.8e19 => *one as i128,
            _ => return None,
        };
        let int = i64::try_from(whole).ok().and_then(|one| self.entries.get(&Key::Int(one)));
        int.or_else(|| u64::try_from(whole).ok().and_then(|one| self.entries.get(&Key::Uint(one))))
    }

    /// The result of looking up `key`.
    pub(super) fn find(&self, key: &Value) -> Option<&Value> {
        self.stored(key).or(self.otherwise.as_ref())
    }
}

impl Value {
    pub(super) fn text(text: impl Into<Arc<str>>) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn list(values: Vec<Value>) -> Self {
        Self::List(values.into())
    }

    pub(super) fn some(value: Value) -> Self {
        Self::Optional(Some(Arc::new(value)))
    }

    pub(super) const fn none() -> Self {
        Self::Optional(None)
    }

    pub(super) fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::Text(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::List(_) => "list",
            Self::Map(_) => "map",
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Version(_) => "kubernetes.Semver",
            Self::Optional(_) => "optional_type",
            Self::Type(_) => "type",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Duration(_) => "google.protobuf.Duration",
        }
    }

    /// `==`. Values of different types are not equal, except that comparing a quantity or a version
    /// with something else fails.
    pub(super) fn equals(&self, other: &Self) -> Result<bool, EvalError> {
        Ok(match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Null, _) | (_, Self::Null) => false,
            (Self::Bool(one), Self::Bool(two)) => one == two,
            (Self::Text(one), Self::Text(two)) => one == two,
            (Self::Bytes(one), Self::Bytes(two)) => one == two,
            (Self::Type(one), Self::Type(two)) => one == two,
            (Self::Timestamp(one), Self::Timestamp(two)) => one == two,
            (Self::Duration(one), Self::Duration(two)) => one == two,
            (Self::Quantity(one), Self::Quantity(two)) if !two.computed => {
                one.quantity == two.quantity
            }
            (Self::Version(one), Self::Version(two)) => one.compare(two) == Ordering::Equal,
            (Self::Quantity(_) | Self::Version(_), _) => {
                return Err(EvalError::no_overload("==", &[self.clone(), other.clone()]));
            }
            (Self::Optional(one), Self::Optional(two)) => match (one, two) {
                (None, None) => true,
                (Some(one), Some(two)) => one.equals(two)?,
                _ => false,
            },
            (Self::List(one), Self::List(two)) => {
                one.len() == two.len() && one.iter().zip(two.iter()).all(|(a, b)| alike(a, b))
            }
            (Self::Map(one), Self::Map(two)) => {
                one.entries.len() == two.entries.len()
                    && one.entries.iter().all(|(key, value)| {
                        two.find(&key.value()).is_some_and(|other| alike(value, other))
                    })
            }
            _ => self.compare_numbers(other) == Some(Ordering::Equal),
        })
    }

    fn compare_numbers(&self, other: &Self) -> Option<Ordering> {
        let whole = |value: &Self| match value {
            Self::Int(one) => Some(i128::from(*one)),
            Self::Uint(one) => Some(i128::from(*one)),
            _ => None,
        };
        match (self, other) {
            (Self::Double(one), Self::Double(two)) => one.partial_cmp(two),
            (Self::Double(one), _) => compare_double(*one, whole(other)?),
            (_, Self::Double(two)) => compare_double(*two, whole(self)?).map(Ordering::reverse),
            _ => Some(whole(self)?.cmp(&whole(other)?)),
        }
    }

    /// `None` if `<` does not support the types, or one is NaN.
    pub(super) fn order(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Bool(one), Self::Bool(two)) => Some(one.cmp(two)),
            (Self::Text(one), Self::Text(two)) => Some(one.cmp(two)),
            (Self::Bytes(one), Self::Bytes(two)) => Some(one.cmp(two)),
            (Self::Timestamp(one), Self::Timestamp(two)) => Some(one.cmp(two)),
            (Self::Duration(one), Self::Duration(two)) => Some(one.cmp(two)),
            _ => self.compare_numbers(other),
        }
    }

    /// Whether `<` supports its type.
    pub(super) fn is_ordered(&self) -> bool {
        matches!(
            self,
            Self::Bool(_)
                | Self::Int(_)
                | Self::Uint(_)
                | Self::Double(_)
                | Self::Text(_)
                | Self::Bytes(_)
                | Self::Timestamp(_)
                | Self::Duration(_)
        )
    }

    /// Whether it is the default value of its type.
    pub(super) fn is_zero(&self) -> bool {
        match self {
            Self::Null => true,
            Self::Bool(one) => !one,
            Self::Int(one) => *one == 0,
            Self::Uint(one) => *one == 0,
            Self::Double(one) => *one == 0.0,
            Self::Text(one) => one.is_empty(),
            Self::Bytes(one) => one.is_empty(),
            Self::List(one) => one.is_empty(),
            Self::Map(one) => one.entries.is_empty(),
            Self::Optional(one) => one.is_none(),
            Self::Duration(one) => *one == 0,
            Self::Quantity(_) | Self::Version(_) | Self::Type(_) | Self::Timestamp(_) => false,
        }
    }
}

/// Equality of elements of lists and maps: true also if comparing them fails.
fn alike(one: &Value, two: &Value) -> bool {
    one.equals(two).unwrap_or(true)
}

fn compare_double(one: f64, two: i128) -> Option<Ordering> {
    if one.is_nan() {
        return None;
    }
    // Beyond 64 bits every integer is on the same side.
    if one.abs() >= 1e30 {
        return Some(if one > 0.0 { Ordering::Greater } else { Ordering::Less });
    }
    let whole = one.trunc();
    Some((whole as i128).cmp(&two).then(one.partial_cmp(&whole)?))
}
