//! Whom a command works for: a terminal, or a program that calls it in its own process.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use afterfit::watch::Watch;
use anyhow::Result;
use serde::Serialize;

use crate::evaluate;
use crate::output::{data, json_line, plain_text};

/// A score for the model at a path, or what went wrong.
pub type Evaluate<'a> = dyn Fn(&Path) -> Result<f64, String> + 'a;

/// What a program that calls a command lends it.
#[derive(Default)]
pub struct Caller<'a> {
    /// Scores outputs in the place of `--eval`'s command.
    pub evaluate: Option<&'a Evaluate<'a>>,
    /// How far it is, and whether it is to stop.
    pub watch: Arc<Watch>,
}

/// Where a command's data go, and what it is lent.
pub(crate) struct Host<'a> {
    caller: Option<Caller<'a>>,
    said: String,
    /// The arguments as they were typed, the program's name first.
    pub(crate) line: Vec<OsString>,
}

impl<'a> Host<'a> {
    /// Data go to stdout.
    pub(crate) fn terminal(line: Vec<OsString>) -> Self {
        Self { caller: None, said: String::new(), line }
    }

    /// Data are kept for the caller.
    pub(crate) fn caller(caller: Caller<'a>, line: Vec<OsString>) -> Self {
        Self { caller: Some(caller), said: String::new(), line }
    }

    /// What was kept.
    pub(crate) fn said(self) -> String {
        self.said
    }

    fn data(&mut self, text: &str) -> Result<()> {
        if self.caller.is_none() {
            return data(text);
        }
        self.said.push_str(text);
        Ok(())
    }

    /// One line of JSON.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        self.data(&json_line(value)?)
    }

    /// Text for a person.
    pub(crate) fn text(&mut self, text: &str) -> Result<()> {
        self.data(&plain_text(text))
    }

    /// The score of a model: the caller's, or the last number that `--eval`'s command prints.
    pub(crate) fn score(&self, command: &str, file: &Path, quiet: bool) -> Result<f64, String> {
        match self.caller.as_ref().and_then(|caller| caller.evaluate) {
            Some(score) => score(file),
            None => evaluate::run(command, file, quiet),
        }
    }

    /// Whether a program calls, not a person.
    pub(crate) fn is_called(&self) -> bool {
        self.caller.is_some()
    }

    /// What to count bytes on.
    pub(crate) fn watch(&self) -> Arc<Watch> {
        self.caller.as_ref().map(|caller| caller.watch.clone()).unwrap_or_default()
    }
}
