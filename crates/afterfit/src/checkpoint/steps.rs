//! Numbers in the names of checkpoints, and what they may mean.

use std::path::Path;

use regex::Regex;

use super::CheckpointError;

/// How to find the number in a name.
#[derive(Debug, Clone, Default)]
pub struct StepPattern {
    regex: Option<Regex>,
}

impl StepPattern {
    /// A pattern of the user's: the number is its first group, or all of it when it has none.
    pub fn new(pattern: &str) -> Result<Self, CheckpointError> {
        let regex = Regex::new(pattern).map_err(|error| {
            // (The last line says what is wrong; those before it draw where.)
            let error = error.to_string();
            let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
            CheckpointError::Setting(format!("the step pattern `{pattern}` is not a regular expression: {reason}"))
        })?;
        Ok(Self { regex: Some(regex) })
    }

    /// Whether a user gave it.
    pub(super) fn is_given(&self) -> bool {
        self.regex.is_some()
    }
}

/// What the number in a name says it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counts {
    /// Optimizer steps: behind a word such as `step` or `iter`, or where a pattern says so.
    Steps,
    /// Epochs.
    Epochs,
    /// Steps, epochs or checkpoints: no word says which.
    Something,
}

/// The number in a checkpoint's name, and what it counts. `step`, `iter` and `update` win over `epoch`, and a word over a bare
/// number, of which the last counts. Numbers with a dot (a loss, a version) and dates are none. A weight file that is named
/// like every other (`model.safetensors`) is looked up by its folder.
#[must_use]
pub fn number_of(path: &Path, pattern: &StepPattern) -> Option<(Counts, u64)> {
    let name = path.file_name()?.to_str()?;
    if let Some(regex) = &pattern.regex {
        // The whole path is searched, its end first: the number may be in a folder's name.
        let text = path.to_str()?;
        let found = |text: &str| {
            let groups = regex.captures_iter(text).last()?;
            groups.get(1).or(groups.get(0))?.as_str().parse().ok()
        };
        return found(name).or_else(|| found(text)).map(|number| (Counts::Steps, number));
    }
    let own = || number_in(name);
    let folder = || number_in(path.parent()?.file_name()?.to_str()?);
    if super::folder::is_weight_file_of_folder(name) { folder() } else { own() }
}

const STEP_WORDS: [&str; 5] = ["global_step", "iteration", "update", "step", "iter"];
const EPOCH_WORDS: [&str; 2] = ["epoch", "ep"];

fn number_in(name: &str) -> Option<(Counts, u64)> {
    // Endings hold no numbers of interest (`.pth.tar`, `.h5`), nor does a shard's place among its kind.
    let stem = name.split_once(".pth").map_or_else(|| without_ending(name), |(stem, _)| stem);
    if is_shard(name) {
        return None;
    }
    let lower = stem.to_lowercase();
    // (Lightning tells names that would be one apart by `-v1`.)
    let lower = match lower.rsplit_once("-v") {
        Some((before, version)) if version.bytes().all(|byte| byte.is_ascii_digit()) => before.to_owned(),
        _ => lower,
    };
    let numbers = numbers(&lower);
    let behind = |words: &[&str]| {
        // The last such number counts: `epoch=3-step=5000`.
        numbers.iter().rev().find(|number| words.iter().any(|word| is_behind(&lower[..number.at], word)))
    };
    let found = |counts: Counts| move |number: &Number<'_>| Some((counts, number.value?));
    if let Some(number) = behind(&STEP_WORDS) {
        return found(Counts::Steps)(number);
    }
    if let Some(number) = behind(&EPOCH_WORDS) {
        return found(Counts::Epochs)(number);
    }
    // (A date says when, not at which step.)
    if numbers.iter().any(|number| is_date(number.digits)) || has_dashed_date(&numbers) {
        return None;
    }
    numbers.last().and_then(found(Counts::Something))
}

/// Every bare number in a name.
pub(super) fn bare_numbers(path: &Path) -> Vec<u64> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let stem = name.split_once(".pth").map_or_else(|| without_ending(name), |(stem, _)| stem).to_lowercase();
    numbers(&stem).iter().filter_map(|number| number.value).collect()
}

/// Without its ending, where it has one: a dot before letters. (`00-0.29` has none.)
fn without_ending(name: &str) -> &str {
    match name.rsplit_once('.') {
        Some((stem, ending)) if ending.starts_with(|c: char| c.is_ascii_alphabetic()) => stem,
        _ => name,
    }
}

struct Number<'a> {
    at: usize,
    digits: &'a str,
    value: Option<u64>,
}

/// Runs of digits that are no part of a number with a dot; with its exponent, one that has it: `2e+03`.
fn numbers(text: &str) -> Vec<Number<'_>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let start = at;
        let digits_from = |from: usize| bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        at += digits_from(at);
        // `1_000`. (Behind a word for steps: `checkpoint_1_100` is two numbers.)
        let in_groups = at - start <= 3 && STEP_WORDS.iter().any(|word| is_behind(&text[..start], word));
        let mut grouped = false;
        while in_groups && bytes.get(at) == Some(&b'_') && digits_from(at + 1) == 3 {
            (grouped, at) = (true, at + 4);
        }
        let mut dotted = false;
        while !grouped && bytes.get(at) == Some(&b'.') && digits_from(at + 1) > 0 {
            (dotted, at) = (true, at + 1 + digits_from(at + 1));
        }
        let digits = &text[start..at];
        let exponent = if text[at..].starts_with("e+") { digits_from(at + 2) } else { 0 };
        if exponent > 0 {
            at += 2 + exponent;
            let value = text[start..at].parse::<f64>().ok().filter(|value| value.fract() == 0.0 && *value < 1e15);
            found.extend(value.map(|value| Number { at: start, digits, value: Some(value as u64) }));
            continue;
        }
        // `2k`, `1m`: thousands and millions. (`resnet18b` is none: nothing but a separator or the end may follow.)
        let follows = |letter: u8| {
            bytes.get(at) == Some(&letter) && bytes.get(at + 1).is_none_or(|next| !next.is_ascii_alphanumeric())
        };
        let times: u64 = match () {
            () if follows(b'k') => 1000,
            () if follows(b'm') => 1_000_000,
            () => 1,
        };
        if !dotted {
            let value = digits.replace('_', "").parse::<u64>().ok().and_then(|value| value.checked_mul(times));
            found.push(Number { at: start, digits, value });
        }
    }
    found
}

/// Whether a word, or its plural, ends here, followed by nothing but a separator.
fn is_behind(before: &str, word: &str) -> bool {
    let before = before.trim_end_matches(['-', '_', '=', ' ', '.']);
    let whole = |rest: Option<&str>| rest.is_some_and(|rest| !rest.ends_with(|c: char| c.is_ascii_alphabetic()));
    whole(before.strip_suffix(word)) || whole(before.strip_suffix('s').and_then(|before| before.strip_suffix(word)))
}

/// `20261116`.
fn is_date(digits: &str) -> bool {
    let part = |range: std::ops::Range<usize>| digits.get(range).and_then(|part| part.parse::<u32>().ok()).unwrap_or(0);
    [8, 12, 14].contains(&digits.len())
        && (1990..2100).contains(&part(0..4))
        && (1..=12).contains(&part(4..6))
        && (1..=31).contains(&part(6..8))
}

/// `2026-11-16`.
fn has_dashed_date(numbers: &[Number<'_>]) -> bool {
    numbers.windows(3).any(|three| {
        let joined: String = three.iter().map(|number| number.digits).collect();
        let adjacent = three.windows(2).all(|pair| pair[1].at == pair[0].at + pair[0].digits.len() + 1);
        three[0].digits.len() == 4
            && three[1].digits.len() == 2
            && three[2].digits.len() == 2
            && adjacent
            && is_date(&joined)
    })
}

/// `model-00001-of-00003.safetensors`.
pub(super) fn is_shard(name: &str) -> bool {
    name.split_once("-of-").is_some_and(|(before, after)| {
        before.ends_with(|c: char| c.is_ascii_digit()) && after.starts_with(|c: char| c.is_ascii_digit())
    })
}

/// Whether a name says which of a run's checkpoints it is a copy of, in words: `last`, `model_best`, `final`.
#[must_use]
pub fn is_chosen_copy(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    let lower = without_ending(name.split_once(".pth").map_or(name, |(stem, _)| stem)).to_lowercase();
    let mut words = lower.split(|c: char| !c.is_ascii_alphabetic());
    words.any(|word| ["last", "best", "final", "latest", "newest", "bestmodel", "tmp"].contains(&word))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_are_found_where_people_put_them() {
        use Counts::{Epochs, Something, Steps};
        let none = StepPattern::default();
        for (name, number) in [
            ("checkpoint-500", Some((Something, 500))),
            ("step_1_000.pt", Some((Steps, 1000))),
            ("step=12_345_000-loss=0.1.ckpt", Some((Steps, 12_345_000))),
            ("checkpoint_1_100.pt", Some((Something, 100))),
            ("step_2e+03.pt", Some((Steps, 2000))),
            ("model-1.5e+03.pt", Some((Something, 1500))),
            ("checkpoint12.pt", Some((Something, 12))),
            ("checkpoint_3_5000.pt", Some((Something, 5000))),
            ("epoch-7.pth.tar", Some((Epochs, 7))),
            ("step11931", Some((Steps, 11931))),
            ("step1000-tokens4B", Some((Steps, 1000))),
            ("epoch=3-step=5000.ckpt", Some((Steps, 5000))),
            ("net-epoch=00-val_loss=0.29.ckpt", Some((Epochs, 0))),
            ("00-0.293448.ckpt", Some((Something, 0))),
            ("val=0.29.ckpt", None),
            ("model-2026-11-16.pt", None),
            ("model_20261116_130522.pt", None),
            ("resnet18-epoch_07.pth", Some((Epochs, 7))),
            ("vgg16-8.safetensors", Some((Something, 8))),
            ("runs/checkpoint-500/model.safetensors", Some((Something, 500))),
            ("run2/last.ckpt", None),
            ("steps_300.npz", Some((Steps, 300))),
            ("iter_0000100.pt", Some((Steps, 100))),
            ("swept7.pt", Some((Something, 7))),
            ("step_20k.pt", Some((Steps, 20_000))),
            ("ckpt-1M.pt", Some((Something, 1_000_000))),
            ("model.safetensors", None),
            ("model-00001-of-00003.safetensors", None),
            ("modèle7.pt", Some((Something, 7))),
            ("99999999999999999999999.pt", None),
        ] {
            assert_eq!(number_of(Path::new(name), &none), number, "{name}");
        }
        let own = StepPattern::new(r"v(\d+)").unwrap();
        assert_eq!(number_of(Path::new("run2/v12-final3.pt"), &own), Some((Steps, 12)));
        assert!(StepPattern::new("(").is_err());
    }

    #[test]
    fn copies_have_words_for_names() {
        for (name, copy) in
            [("last.ckpt", true), ("model_best.pth.tar", true), ("last-v1.ckpt", true), ("blast-3.pt", false)]
        {
            assert_eq!(is_chosen_copy(Path::new(name)), copy, "{name}");
        }
    }
}
