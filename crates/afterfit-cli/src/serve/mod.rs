//! `afterfit serve`: a page whose slider reads models off a dial and has them evaluated, on loopback.

mod cache;
mod http;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use afterfit::checkpoint::{Format, Layout};
use afterfit::dial::DialFile;
use afterfit::files::atomic::{Existing, FolderDraft};
use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::dial::{page, strength, write_one};
use crate::evaluate::{self, Best};
use crate::layout::LayoutArgs;
use crate::output::{self, folder_of, short};
use crate::page::Page;
use cache::Cache;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// A dial, from `afterfit average --dial`, `afterfit fit --dial` or a training loop.
    #[arg(value_parser = crate::place::local())]
    dial: PathBuf,
    /// Command that scores a model, with {} in the place of its file or folder; the last number it prints is the score.
    #[arg(long, value_name = "CMD")]
    eval: String,
    /// Which score is best.
    #[arg(long, value_enum, default_value_t = Best::Max)]
    best: Best,
    /// Port on 127.0.0.1 (0: any that is free).
    #[arg(long, value_name = "N", default_value_t = 0)]
    port: u16,
    #[command(flatten)]
    layout: LayoutArgs,
    /// Print one line of JSON, with the address.
    #[arg(long)]
    json: bool,
    /// No messages on stderr.
    #[arg(short, long)]
    quiet: bool,
}

/// What the page asks about: everything that was measured, and what is being measured.
struct Desk {
    file: PathBuf,
    dial: DialFile,
    layout: Layout,
    page: Page,
    best: Best,
    work: Mutex<Work>,
    wake: Condvar,
}

struct Work {
    cache: Cache,
    /// Rows of the strengths in the cache, in its order.
    measured: Vec<Value>,
    evaluating: Option<f64>,
    waiting: VecDeque<f64>,
    /// Why the last evaluation gave no score.
    failure: Option<String>,
}

/// Strengths that may wait: whoever moves a slider does not need every strength it passed.
const MOST_WAITING: usize = 3;
/// The largest model that a browser, which keeps all of it in memory, is given.
const MOST_BYTES: u64 = 2 << 30;

impl Desk {
    fn work(&self) -> MutexGuard<'_, Work> {
        // (Nothing that holds it can stop halfway.)
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a page shows of a strength that was measured.
    fn row(&self, l2: f64, score: f64) -> Value {
        match strength(&self.dial, l2) {
            Ok(mut strength) => {
                strength.score = Some(score);
                strength.row()
            }
            Err(_) => json!({ "l2": l2, "validation_score": score }),
        }
    }

    /// Everything that is known.
    fn known(&self) -> Value {
        let work = self.work();
        let own = self.page.rows.iter().filter(|row| !work.cache.scores.iter().any(|(l2, _)| row["l2"] == *l2));
        let rows: Vec<&Value> = work.measured.iter().chain(own).collect();
        let best = evaluate::best(work.cache.scores.iter().map(|(_, score)| Some(*score)), self.best);
        json!({
            "rows": rows, "best": best, "one_se": null, "evaluating": work.evaluating, "waiting": work.waiting.len(),
            "failure": work.failure,
        })
    }

    /// The page as it is now.
    fn html(&self) -> Result<String> {
        let mut known = self.known();
        let rows = serde_json::from_value(known["rows"].take())?;
        let page = Page { rows, best: serde_json::from_value(known["best"].take())?, ..self.page.clone() };
        Ok(page.html()?)
    }

    /// Refuses a strength that the dial has no model of.
    fn require(&self, l2: f64) -> Result<(), String> {
        let ends = |row: Option<&Value>| row.and_then(|row| row["l2"].as_f64()).unwrap_or(f64::NAN);
        let (from, to) = (ends(self.page.rows.first()), ends(self.page.rows.last()));
        match (from..=to).contains(&l2) {
            true => Ok(()),
            false => Err(format!("λ of {l2} is not possible: it must be from {from} to {to}")),
        }
    }

    /// The model at a strength as one file, as `dial read -o` writes it.
    fn model(&self, l2: f64, format: Format) -> Result<Vec<u8>, String> {
        self.require(l2)?;
        let layout = Layout { format, single: true, shard_bytes: None, ..self.layout.clone() };
        self.with_model(l2, &layout, |file| {
            let size = file.metadata().map_err(|error| error.to_string())?.len();
            match size <= MOST_BYTES {
                true => std::fs::read(file).map_err(|error| error.to_string()),
                false => Err(format!(
                    "the model is {} GB, and a browser is given at most {} GB: afterfit dial read writes it",
                    size >> 30,
                    MOST_BYTES >> 30
                )),
            }
        })
    }

    /// Does something with a model's file or folder, which is gone afterwards.
    fn with_model<R>(
        &self,
        l2: f64,
        layout: &Layout,
        act: impl FnOnce(&Path) -> Result<R, String>,
    ) -> Result<R, String> {
        // (A folder that never gets its name, and is gone when it is dropped.)
        let folder =
            FolderDraft::create(&folder_of(&self.file).join("served"), Existing::Keep).map_err(|e| e.to_string())?;
        let model = write_one(&self.dial, &self.file, l2, folder.folder(), layout);
        act(&model.map_err(|error| format!("{error:#}"))?)
    }

    /// Has a strength measured, unless it is or will be. The newest comes first, and few wait.
    fn ask(&self, l2: f64) -> Result<(), String> {
        self.require(l2)?;
        let mut work = self.work();
        if work.cache.score(l2).is_none() && work.evaluating != Some(l2) {
            work.waiting.retain(|other| *other != l2);
            work.waiting.push_front(l2);
            work.waiting.truncate(MOST_WAITING);
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Measures what is asked for, one after the other, for as long as the process lives.
    fn measure(&self, command: &str, quiet: bool) {
        loop {
            let mut work = self.work();
            let l2 = loop {
                match work.waiting.pop_front() {
                    Some(l2) => break l2,
                    None => work = self.wake.wait(work).unwrap_or_else(PoisonError::into_inner),
                }
            };
            work.evaluating = Some(l2);
            work.failure = None;
            drop(work);
            let score = self.with_model(l2, &self.layout, |model| evaluate::run(command, model, true));
            let row = score.as_ref().ok().map(|score| self.row(l2, *score));
            let mut work = self.work();
            work.evaluating = None;
            let kept = match (score, row) {
                (Ok(score), Some(row)) => {
                    work.measured.push(row);
                    work.cache.add(l2, score).map_err(|error| error.to_string())
                }
                (Err(reason), _) => Err(format!("λ {}: {reason}", short(l2))),
                (Ok(_), None) => Ok(()),
            };
            if let Err(reason) = kept {
                if !quiet {
                    output::note(&reason);
                }
                work.failure = Some(reason);
            }
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    evaluate::require_place(&args.eval)?;
    let dial = DialFile::open(&args.dial)?;
    dial.require_within_reach(&args.dial)?;
    let mut page = page(&dial, &args.dial)?;
    page.live = true;
    page.score = Some("score".into());
    page.notes.push(format!("scores: the last number that `{}` prints", args.eval));
    let cache = Cache::open(&args.dial, &dial, &args.eval)?;
    let layout = args.layout.of(Path::new("model"), Format::Safetensors, false)?;
    let listener = std::net::TcpListener::bind(("127.0.0.1", args.port))
        .with_context(|| format!("port {} of 127.0.0.1 cannot be listened on", args.port))?;
    let port = listener.local_addr()?.port();
    let scores = cache.scores.clone();
    let place = cache.file.clone();
    let work = Work { cache, measured: Vec::new(), evaluating: None, waiting: VecDeque::new(), failure: None };
    let (file, work, wake) = (args.dial.clone(), Mutex::new(work), Condvar::new());
    let desk = Arc::new(Desk { file, dial, layout, page, best: args.best, work, wake });
    desk.work().measured = scores.iter().map(|&(l2, score)| desk.row(l2, score)).collect();
    let (measuring, command, quiet) = (desk.clone(), args.eval.clone(), args.quiet);
    std::thread::Builder::new().name("measure".into()).spawn(move || measuring.measure(&command, quiet))?;
    let gate = http::Gate::new(port)?;
    let url = gate.url();
    if args.json {
        output::json(&json!({ "url": url, "scores": place.display().to_string(), "measured": scores.len() }))?;
    } else {
        output::text(&format!("{url}\n"))?;
    }
    if !args.quiet {
        output::say(&format!(
            "open this address in a browser on this machine; scores are kept in {} ({} so far); Ctrl-C stops",
            place.display(),
            scores.len()
        ));
    }
    http::serve(listener, gate, desk)
}
