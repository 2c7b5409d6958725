//! How results and errors reach a person or a program.

use std::borrow::Cow;
use std::io::Write;
use std::path::{Path, PathBuf};

use afterfit::files::atomic::{Existing, Registered, require_writable};
use afterfit::files::text::{by_url, is_active, plain, sentence};
use afterfit::files::{FileError, Stamp};
use afterfit::watch::{Stopped, Watch};
use anyhow::Context;
use serde::Serialize;

/// An error with advice on what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Advice {
    pub(crate) message: String,
    pub(crate) hint: String,
    /// The library's error that it is about, for programs.
    #[source]
    about: Option<afterfit::Error>,
}

impl Advice {
    pub(crate) fn error(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { message: message.into(), hint: hint.into(), about: None })
    }

    /// The library's own words, and what to do about them.
    pub(crate) fn about(error: impl Into<afterfit::Error>, hint: impl Into<String>) -> anyhow::Error {
        let error = error.into();
        anyhow::Error::new(Self { message: error.to_string(), hint: hint.into(), about: Some(error) })
    }
}

/// What went wrong, in words: the error, the causes it does not already name, and what to do about it.
pub(crate) fn in_words(error: &anyhow::Error) -> (String, Option<String>) {
    let mut message = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    let advice = error.chain().find_map(|cause| cause.downcast_ref::<Advice>());
    let hint = match advice {
        Some(advice) => Some(sentence(&advice.hint).into_owned()),
        None => error.chain().find_map(hint_of).map(str::to_owned),
    };
    (sentence(&message).into_owned(), hint)
}

/// Prints `error: …` and `hint: …`.
pub(crate) fn report(error: &anyhow::Error) {
    let (message, hint) = in_words(error);
    say(&format!("error: {message}"));
    if let Some(hint) = hint {
        say(&format!("hint: {hint}"));
    }
}

/// The way on after errors of files, whichever command met them.
fn hint_of(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    match file_error(cause)? {
        FileError::Appeared { .. } => Some("name another output, or run again with --force to replace it"),
        FileError::Changed { .. } => Some("wait until nothing writes to it, and run again"),
        _ => None,
    }
}

/// The error of a file, whatever it is wrapped in.
fn file_error<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a FileError> {
    use afterfit::checkpoint::CheckpointError;
    match (cause.downcast_ref(), cause.downcast_ref(), cause.downcast_ref()) {
        (Some(error), _, _)
        | (_, Some(CheckpointError::File(error)), _)
        | (_, _, Some(afterfit::Error::File(error) | afterfit::Error::Checkpoint(CheckpointError::File(error)))) => {
            Some(error)
        }
        _ => None,
    }
}

/// A line on stderr. Where stderr is closed or full nobody hears it, and the work continues.
pub(crate) fn say(message: &str) {
    let mut line = plain_text(message).into_owned();
    line.push('\n');
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

/// Something a user should know, on stderr.
pub(crate) fn note(note: &str) {
    say(&format!("note: {}", sentence(note)));
}

/// What layouts of ours consist of; every other control character in a text is somebody else's.
const KEPT: &[char] = &['\n', '\t'];

/// `afterfit … | head` closes the pipe early; that is not an error.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kind =
        |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    error.chain().any(|cause| kind(cause) == Some(std::io::ErrorKind::BrokenPipe))
}

/// One line of JSON.
pub(crate) fn json_line(value: &impl Serialize) -> anyhow::Result<String> {
    let mut line = json_text(&serde_json::to_string(value)?);
    line.push('\n');
    Ok(line)
}

/// One line of JSON on stdout.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    data(&json_line(value)?)
}

/// JSON escapes the control characters of ASCII; some terminals obey others, too.
pub(crate) fn json_text(json: &str) -> String {
    let json = by_url(json);
    let mut safe = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            c if is_active(c) => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => safe.push(c),
        }
    }
    safe
}

/// Text for a person: nothing that a terminal would obey, and no names but those that were given.
pub(crate) fn plain_text(text: &str) -> Cow<'_, str> {
    match by_url(text) {
        Cow::Borrowed(text) => plain(text, KEPT),
        Cow::Owned(text) => Cow::Owned(plain(&text, KEPT).into_owned()),
    }
}

/// Text for a person, on stdout.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    data(&plain_text(text))
}

/// Data on stdout, as they are.
pub(crate) fn data(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).context("stdout")
}

/// A number as short as it can be without losing its meaning: 0.01, 1e-5, 0.7651.
pub(crate) fn short(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || (1e-3..1e6).contains(&size) {
        let digits = (4 - size.max(1e-3).log10().floor() as i32 - 1).max(0) as usize;
        let text = format!("{value:.digits$}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
    } else {
        let text = format!("{value:.3e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        format!("{}e{exponent}", mantissa.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// A file that need not be there yet, however its folder is spelled.
fn place_of(file: &Path) -> PathBuf {
    let folder = folder_of(file);
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.into());
    folder.join(file.file_name().unwrap_or_default())
}

/// Refuses, before any work is done, output files that exist (unless forced), that are inputs or each other, that are
/// not plain files, or whose folder does not exist.
pub(crate) fn require_outputs(files: &[&PathBuf], inputs: &[&PathBuf], force: bool) -> anyhow::Result<()> {
    for (place, file) in files.iter().enumerate() {
        let name = file.display();
        if file.as_os_str() == "-" {
            return Err(Advice::error("`-` is not a file", "results go to stdout when no file is named"));
        }
        if files[..place].iter().any(|other| place_of(other) == place_of(file)) {
            return Err(Advice::error(format!("{name} is named twice"), "give each output a file of its own"));
        }
        let same = |other: &&&PathBuf| match (file.canonicalize(), other.canonicalize()) {
            (Ok(a), Ok(b)) => a == b,
            _ => false,
        };
        if let Some(input) = inputs.iter().find(same) {
            return Err(Advice::error(
                format!("{name} is an input, too"),
                format!("{} would be lost", input.display()),
            ));
        }
        if file.is_dir() {
            return Err(Advice::error(format!("{name} is a folder"), "name a file"));
        }
        if let Ok(details) = file.symlink_metadata() {
            if !details.is_file() {
                return Err(Advice::error(format!("{name} is not a plain file"), "name another"));
            }
            if !force {
                return Err(Advice::error(format!("{name} exists already"), "use --force to replace it"));
            }
        }
        let folder = folder_of(file);
        if !folder.is_dir() {
            return Err(Advice::error(format!("there is no folder {}", folder.display()), "make it first"));
        }
        // (Tried, not guessed from permission bits: file systems are read-only or full for other reasons, too.)
        require_writable(folder).map_err(|error| {
            Advice::error(
                format!("{name} cannot be written: {error}"),
                "name an output in a folder that can be written to",
            )
        })?;
    }
    Ok(())
}

/// What `--force` says about files that are there.
pub(crate) fn existing(force: bool) -> Existing {
    if force { Existing::Replace } else { Existing::Keep }
}

/// How input files look before they are read, to be looked at again afterwards.
pub(crate) struct Inputs(Vec<(PathBuf, Stamp)>);

impl Inputs {
    pub(crate) fn of(files: &[&PathBuf]) -> Self {
        // (One that is not there is an error of its own, when it is read.)
        Self(files.iter().filter_map(|file| Some(((*file).clone(), Stamp::of(file).ok()?))).collect())
    }

    /// Refuses files that something wrote to in the meantime.
    pub(crate) fn require_unchanged(&self) -> anyhow::Result<()> {
        for (file, stamp) in &self.0 {
            stamp.require(Stamp::of(file)?, file)?;
        }
        Ok(())
    }
}

/// Whether a folder is there, and nothing in it.
pub(crate) fn is_empty_folder(path: &Path) -> bool {
    std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

/// Folders made for outputs. Unless they are kept, those that are still empty go again: nothing of a failed run stays.
pub(crate) struct Folders(Vec<(PathBuf, Registered)>);

impl Folders {
    /// Makes a folder and those above it, as far as they are missing.
    pub(crate) fn make(folder: &Path) -> anyhow::Result<Self> {
        let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.is_dir();
        let mut made = Self(Vec::new());
        let wanted: Vec<&Path> = folder.ancestors().take_while(missing).collect();
        for folder in wanted.into_iter().rev() {
            match std::fs::create_dir(folder) {
                Ok(()) => made.0.push((folder.into(), Registered::new(folder))),
                // Another run was faster; it is that one's to remove.
                Err(_) if folder.is_dir() => {}
                Err(error) => {
                    let what = format!("{}: {error}", folder.display());
                    return Err(Advice::error(what, "name a folder that can be made"));
                }
            }
        }
        Ok(made)
    }

    pub(crate) fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        for (folder, _) in self.0.iter().rev() {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

pub(crate) fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a whole file under a temporary name and renames it: never half a file under the final name.
pub(crate) fn write_file(file: &Path, bytes: &[u8], existing: Existing) -> anyhow::Result<()> {
    Ok(afterfit::files::atomic::write(file, bytes, existing)?)
}

/// Saves what took long to make. Where something took its name in the meantime, it goes to `NAME-2` beside it: an error, and
/// nothing is lost.
pub(crate) fn save<E: Into<anyhow::Error>>(
    file: &Path,
    mut put: impl FnMut(&Path) -> Result<(), E>,
) -> anyhow::Result<()> {
    let mut put = |file: &Path| put(file).map_err(Into::into);
    let is_taken = |error: &anyhow::Error| {
        error.chain().any(|cause| matches!(file_error(cause), Some(FileError::Appeared { .. })))
    };
    let Err(error) = put(file) else { return Ok(()) };
    if !is_taken(&error) {
        return Err(error);
    }
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let ending = file.extension().map_or_else(String::new, |ending| format!(".{}", ending.to_string_lossy()));
    for number in 2..100 {
        let beside = file.with_file_name(format!("{stem}-{number}{ending}"));
        match put(&beside) {
            Err(error) if is_taken(&error) => {}
            Err(error) => return Err(error),
            Ok(()) => {
                let (file, beside) = (file.display(), beside.display());
                return Err(Advice::error(
                    format!("{file} was not there when this run began, and is left as it is"),
                    format!("what was made is saved as {beside}"),
                ));
            }
        }
    }
    Err(error)
}

/// Shows that long work continues, and for how long already; nothing when stderr is not a terminal.
pub(crate) fn working<T>(what: &str, quiet: bool, work: impl FnOnce() -> T) -> T {
    if quiet {
        return work();
    }
    let spinner = indicatif::ProgressBar::new_spinner();
    let style = indicatif::ProgressStyle::with_template("{spinner} {msg} {elapsed}");
    spinner.set_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_spinner()));
    spinner.set_message(plain(what, &[]).into_owned());
    spinner.enable_steady_tick(std::time::Duration::from_millis(120));
    let result = work();
    spinner.finish_and_clear();
    result
}

/// Bytes done of bytes to do; nothing when quiet or when stderr is not a terminal.
pub(crate) fn progress_bar(bytes: u64, quiet: bool) -> indicatif::ProgressBar {
    if quiet {
        return indicatif::ProgressBar::hidden();
    }
    let style = indicatif::ProgressStyle::with_template("{bar:40} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    indicatif::ProgressBar::new(bytes).with_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar()))
}

/// Work that is nothing to see on most paths and minutes on those of millions of steps: a bar counts its parts, and a program that
/// waits for it may stop it.
pub(crate) struct Work<'a> {
    bar: indicatif::ProgressBar,
    watch: &'a Watch,
}

impl<'a> Work<'a> {
    pub(crate) fn new(what: &'static str, watch: &'a Watch, quiet: bool) -> Self {
        let bar = if quiet { indicatif::ProgressBar::hidden() } else { indicatif::ProgressBar::new(0) };
        let style = indicatif::ProgressStyle::with_template("{msg} {bar:40} {percent} % {eta}");
        let style = style.unwrap_or_else(|_| indicatif::ProgressStyle::default_bar());
        Self { bar: bar.with_style(style).with_message(what), watch }
    }

    /// So many parts more are to be done.
    pub(crate) fn expect(&self, parts: u64) {
        self.bar.inc_length(parts);
    }

    /// So many are; whether to go on.
    pub(crate) fn goes_on(&self, parts: u64) -> bool {
        self.bar.inc(parts);
        !self.watch.stopped()
    }

    /// An error if it was stopped.
    pub(crate) fn require(&self) -> anyhow::Result<()> {
        if self.watch.stopped() { Err(Stopped.into()) } else { Ok(()) }
    }

    /// Does a part of it.
    pub(crate) fn part<T>(&self, part: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        self.require()?;
        let done = part();
        self.bar.inc(1);
        done
    }
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A number of bytes, written and read as `5GB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == ' ');
        let unit = text[digits.len()..].trim().to_lowercase();
        let scale: f64 = match unit.as_str() {
            "" | "b" => 1.0,
            "k" | "kb" => 1e3,
            "m" | "mb" => 1e6,
            "g" | "gb" => 1e9,
            "t" | "tb" => 1e12,
            "kib" => 1024.0,
            "mib" => 1024.0 * 1024.0,
            "gib" => 1024.0 * 1024.0 * 1024.0,
            _ => return Err(format!("`{text}` is not a size such as 64MB or 5GB")),
        };
        let value: f64 = digits.trim().parse().map_err(|_| format!("`{text}` is not a size such as 64MB or 5GB"))?;
        let bytes = value * scale;
        if (1.0..1e18).contains(&bytes) {
            Ok(Self(bytes as u64))
        } else {
            Err(format!("a size of {text} is not possible: from 1 byte to 1e18"))
        }
    }
}

impl std::fmt::Display for Bytes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = ["B", "kB", "MB", "GB", "TB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1000.0 && unit + 1 < units.len() {
            value /= 1000.0;
            unit += 1;
        }
        write!(formatter, "{} {}", short(value), units[unit])
    }
}
