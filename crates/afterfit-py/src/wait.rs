//! Long work on a thread of its own, while the calling thread listens to Python: Ctrl-C, progress, questions.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use afterfit::watch::Watch;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// How often Python is asked whether somebody pressed Ctrl-C, and told how far the work is.
const TICK: Duration = Duration::from_millis(50);

/// How long stopped work may take to end before it is left to end by itself: a decomposition, say, looks at nothing.
const GRACE: Duration = Duration::from_millis(600);

/// From the thread that works.
enum Message<T> {
    /// The score of a file is asked for.
    Score(PathBuf, Sender<Result<f64, String>>),
    Done(T),
}

/// What the thread that works can ask of the one that waits.
pub(crate) struct Line<T>(Sender<Message<T>>);

impl<T> Line<T> {
    /// The caller's score of a file.
    pub(crate) fn score(&self, file: &Path) -> Result<f64, String> {
        let (reply, answer) = channel();
        let gone = |_| "nobody waits for it any more".to_owned();
        self.0.send(Message::Score(file.into(), reply)).map_err(|_| gone(()))?;
        answer.recv().map_err(|_| gone(()))?
    }
}

/// What the waiting thread calls.
#[derive(Default)]
pub(crate) struct Calls<'a, 'py> {
    /// With parts done, and parts in all.
    pub(crate) progress: Option<&'a Bound<'py, PyAny>>,
    /// With a path; returns its score.
    pub(crate) evaluate: Option<&'a Bound<'py, PyAny>>,
}

/// Does the work elsewhere, without the GIL. An exception (Ctrl-C's, or one of a call) stops it and is raised within a second,
/// though some step of the work may end a little later, with nobody to hear of it.
pub(crate) fn attend<T: Send + 'static>(
    py: Python<'_>,
    watch: &Arc<Watch>,
    calls: &Calls<'_, '_>,
    work: impl FnOnce(&Line<T>) -> T + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = channel();
    let worker = move || {
        let line = Line(sender);
        let done = work(&line);
        // (Who has left does not need it.)
        let _ = line.0.send(Message::Done(done));
    };
    std::thread::Builder::new().name("afterfit".into()).spawn(worker)?;
    let mut shown = (0, 0);
    loop {
        let (back, message) = next(py, receiver, TICK);
        receiver = back;
        let heard = match message {
            Ok(Message::Done(done)) => {
                tell(calls, watch, &mut shown)?;
                return Ok(done);
            }
            Ok(Message::Score(file, reply)) => score(calls, file).map(|score| drop(reply.send(Ok(score)))),
            Err(RecvTimeoutError::Timeout) => py.check_signals().and_then(|()| tell(calls, watch, &mut shown)),
            Err(RecvTimeoutError::Disconnected) => Err(PyRuntimeError::new_err("afterfit failed: this is a bug")),
        };
        if let Err(error) = heard {
            watch.stop();
            let start = Instant::now();
            while start.elapsed() < GRACE {
                let (back, message) = next(py, receiver, TICK);
                receiver = back;
                if matches!(message, Ok(Message::Done(_)) | Err(RecvTimeoutError::Disconnected)) {
                    break;
                }
            }
            return Err(error);
        }
    }
}

type Heard<T> = (Receiver<Message<T>>, Result<Message<T>, RecvTimeoutError>);

fn next<T: Send>(py: Python<'_>, receiver: Receiver<Message<T>>, patience: Duration) -> Heard<T> {
    py.detach(move || {
        let message = receiver.recv_timeout(patience);
        (receiver, message)
    })
}

/// Tells how far the work is, if that has changed.
fn tell(calls: &Calls<'_, '_>, watch: &Watch, shown: &mut (u64, u64)) -> PyResult<()> {
    let now = watch.progress();
    if let Some(progress) = calls.progress.filter(|_| now != *shown) {
        progress.call1(now)?;
    }
    *shown = now;
    Ok(())
}

fn score(calls: &Calls<'_, '_>, file: PathBuf) -> PyResult<f64> {
    let Some(evaluate) = calls.evaluate else { return Ok(f64::NAN) };
    let score: f64 = evaluate.call1((&file,))?.extract()?;
    if !score.is_finite() {
        let message = format!("evaluate gave {score} for {}: a score must be finite", file.display());
        return Err(PyValueError::new_err(message));
    }
    Ok(score)
}
