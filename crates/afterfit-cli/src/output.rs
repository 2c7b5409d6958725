//! How results and errors reach a person or a program.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// An error with advice on what to do about it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Advice {
    pub(crate) message: String,
    pub(crate) hint: String,
}

impl Advice {
    pub(crate) fn error(message: impl Into<String>, hint: impl Into<String>) -> anyhow::Error {
        anyhow::Error::new(Self { message: message.into(), hint: hint.into() })
    }
}

/// Prints `error: …`, the causes it does not already name, and `hint: …`.
pub(crate) fn report(error: &anyhow::Error) {
    let mut message = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !message.contains(&cause) {
            message = format!("{message}: {cause}");
        }
    }
    eprintln!("error: {message}");
    if let Some(advice) = error.chain().find_map(|cause| cause.downcast_ref::<Advice>()) {
        eprintln!("hint: {}", advice.hint);
    }
}

/// `afterfit … | head` closes the pipe early; that is not an error.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kind =
        |cause: &(dyn std::error::Error + 'static)| cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    error.chain().any(|cause| kind(cause) == Some(std::io::ErrorKind::BrokenPipe))
}

/// One line of JSON on stdout.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let mut line = serde_json::to_string(value)?;
    line.push('\n');
    text(&line)
}

/// Text on stdout.
pub(crate) fn text(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(())
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
    }
    Ok(())
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a whole file under a temporary name and renames it: never half a file under the final name.
pub(crate) fn write_file(file: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    Ok(afterfit::files::atomic::write(file, bytes)?)
}

/// Shows that long work goes on, and for how long already; nothing when stderr is not a terminal.
pub(crate) fn working<T>(what: &str, quiet: bool, work: impl FnOnce() -> T) -> T {
    if quiet {
        return work();
    }
    let spinner = indicatif::ProgressBar::new_spinner();
    let style = indicatif::ProgressStyle::with_template("{spinner} {msg} {elapsed}");
    spinner.set_style(style.unwrap_or_else(|_| indicatif::ProgressStyle::default_spinner()));
    spinner.set_message(what.to_owned());
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
