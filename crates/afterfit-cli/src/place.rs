//! Paths on the command line: files, folders, and URLs of object stores.

use std::convert::Infallible;
use std::path::PathBuf;

use afterfit::files::atomic::Existing;
use afterfit::files::stores::{self, Session, url_of};
use afterfit::watch::Watch;
use anyhow::Result;
use clap::builder::{PathBufValueParser, TypedValueParser};

use crate::output::{Bytes, note, progress_bar, say};

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

/// (Never an error: clap would print what was given, signatures included. What is wrong with it is said when the command begins.)
fn by_url(path: PathBuf, direction: Direction) -> Result<PathBuf, Infallible> {
    let Some(url) = url_of(&path) else { return Ok(path) };
    Ok(match direction {
        Direction::In => stores::input(&url),
        Direction::Out => stores::output(&url),
        Direction::Neither => stores::elsewhere(&url),
    })
}

/// Runs a command between listing what it reads from object stores and sending what it wrote for them.
pub(crate) fn between(existing: Existing, quiet: bool, watch: &Watch, run: impl FnOnce() -> Result<()>) -> Result<()> {
    let Some(mut session) = Session::take() else { return run() };
    session.lay_out()?;
    let done = run();
    if !session.has_outputs() || watch.stopped() {
        return done;
    }
    // As on a disk, what is complete stays, whatever came after it: an evaluation that failed, a reader that closed its pipe.
    if done.is_err() {
        session.remove_nothing();
    }
    let bar = progress_bar(session.bytes_to_send(), quiet);
    let sent = session.send(existing, &|bytes| {
        bar.inc(bytes);
        !watch.stopped()
    });
    bar.finish_and_clear();
    if stores::is_to_stop() {
        // A signal's thread is at it, and says with what status.
        loop {
            std::thread::park();
        }
    }
    match (done, sent) {
        (done, Ok(bytes)) => {
            if !quiet && bytes > 0 {
                say(&format!("sent {} to the object store", Bytes(bytes)));
            }
            done
        }
        (Ok(()), Err(error)) => Err(error.into()),
        (Err(error), Err(unsent)) => {
            note(&unsent.to_string());
            Err(error)
        }
    }
}
