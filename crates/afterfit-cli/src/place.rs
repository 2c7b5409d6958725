//! Paths on the command line: files, folders, and URLs of object stores.

use std::path::PathBuf;

use afterfit::files::atomic::Existing;
use afterfit::files::stores::{self, Session, url_of};
use anyhow::Result;
use clap::builder::{PathBufValueParser, TypedValueParser};

use crate::output::{Bytes, progress_bar, say};

/// Something to read.
pub(crate) fn input() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| by_url(path, Direction::In))
}

/// Something to write.
pub(crate) fn output() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| by_url(path, Direction::Out))
}

/// Something that stays on this machine.
pub(crate) fn local() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| by_url(path, Direction::Neither))
}

enum Direction {
    In,
    Out,
    Neither,
}

fn by_url(path: PathBuf, direction: Direction) -> Result<PathBuf, String> {
    let Some(url) = url_of(&path) else { return Ok(path) };
    match direction {
        Direction::In => Ok(stores::input(&url)),
        Direction::Out => Ok(stores::output(&url)),
        Direction::Neither => Err("it must be on this machine: copy it here first".into()),
    }
}

/// Runs a command between listing what it reads from object stores and sending what it wrote for them.
pub(crate) fn between(existing: Existing, quiet: bool, run: impl FnOnce() -> Result<()>) -> Result<()> {
    let Some(mut session) = Session::take() else { return run() };
    session.lay_out()?;
    run()?;
    if session.has_outputs() {
        let bar = progress_bar(session.bytes_to_send(), quiet);
        let sent = session.send(existing, &|bytes| bar.inc(bytes));
        bar.finish_and_clear();
        let bytes = sent?;
        if !quiet && bytes > 0 {
            say(&format!("sent {} to the object store", Bytes(bytes)));
        }
    }
    Ok(())
}
