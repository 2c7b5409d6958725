//! What a pickle holds, as plain data. A call is kept as "this name, these arguments".
//!
//! Values live in one list and refer to each other by position, so cycles and deep nesting cost nothing here.

use std::collections::HashMap;

/// Position of a value in its pickle.
pub(crate) type Id = u32;

#[derive(Debug)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits, little-endian.
    Long(Vec<u8>),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Id>),
    /// A set, frozen or not.
    Set(Vec<Id>),
    Tuple(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    /// A name that would be imported.
    Global(String),
    /// What would be called, with what, and the state and items the result would be given.
    Call {
        callee: Id,
        arguments: Id,
        state: Option<Id>,
        items: Vec<(Id, Id)>,
        how: How,
    },
    /// A reference to something stored outside the pickle: a tensor's storage.
    Persistent(Id),
}

/// How a call is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// `callee(*arguments)`.
    Called,
    /// `callee.__new__(callee, *arguments)`.
    New,
    /// With keywords, or with list items added later: more than is kept here.
    More,
}

/// What a dictionary is besides its entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    /// Its class (a name) and what that is called with; a plain dictionary has none.
    pub(crate) class: Option<(Id, Id)>,
    /// Its attributes, such as the version numbers that torch keeps with state dictionaries.
    pub(crate) state: Option<Id>,
}

#[derive(Debug)]
pub(crate) struct Pickle {
    pub(super) values: Vec<Value>,
    pub(super) kinds: HashMap<Id, Kind>,
    pub(crate) root: Id,
}

impl Pickle {
    pub(crate) fn get(&self, id: Id) -> &Value {
        &self.values[id as usize]
    }

    /// Every value there is.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> {
        0..self.values.len() as Id
    }

    pub(crate) fn text(&self, id: Id) -> Option<&str> {
        match self.get(id) {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn int(&self, id: Id) -> Option<i64> {
        match *self.get(id) {
            Value::Int(value) => Some(value),
            Value::Bool(value) => Some(i64::from(value)),
            _ => None,
        }
    }

    pub(crate) fn float(&self, id: Id) -> Option<f64> {
        match *self.get(id) {
            Value::Float(value) => Some(value),
            Value::Int(value) => Some(value as f64),
            _ => None,
        }
    }

    /// What a dictionary is besides its entries.
    pub(crate) fn kind(&self, id: Id) -> Kind {
        self.kinds.get(&id).copied().unwrap_or(Kind { class: None, state: None })
    }

    /// The items of a tuple, list or set.
    pub(crate) fn items(&self, id: Id) -> Option<&[Id]> {
        match self.get(id) {
            Value::List(items) | Value::Tuple(items) | Value::Set(items) => Some(items),
            _ => None,
        }
    }

    /// The entries of a dictionary, or of an object that behaves like one.
    pub(crate) fn entries(&self, id: Id) -> Option<&[(Id, Id)]> {
        match self.get(id) {
            Value::Dict(entries) => Some(entries),
            Value::Call { items, .. } if !items.is_empty() => Some(items),
            _ => None,
        }
    }

    /// What a dictionary holds under a name. As in Python, the last of several wins.
    pub(crate) fn lookup(&self, id: Id, name: &str) -> Option<Id> {
        self.entries(id)?.iter().rev().find(|(key, _)| self.text(*key) == Some(name)).map(|(_, value)| *value)
    }

    /// The name called and its arguments.
    pub(crate) fn call(&self, id: Id) -> Option<(&str, &[Id])> {
        match self.get(id) {
            Value::Call { callee, arguments, .. } => match self.get(*callee) {
                Value::Global(name) => Some((name, self.items(*arguments)?)),
                _ => None,
            },
            _ => None,
        }
    }
}
