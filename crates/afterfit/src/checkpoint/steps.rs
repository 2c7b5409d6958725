//! Step numbers out of file and folder names.

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
            CheckpointError::Setting(format!("the step pattern `{pattern}` is not a regular expression: {error}"))
        })?;
        Ok(Self { regex: Some(regex) })
    }
}

/// The number in a checkpoint's name. `step`, `iter` and `update` win over `epoch`, and a number after a word over the
/// last number of the name; a file without any is looked up by its folder (`checkpoint-500/model.safetensors`).
#[must_use]
pub fn step_of(path: &Path, pattern: &StepPattern) -> Option<u64> {
    let name = path.file_name()?.to_str()?;
    if let Some(regex) = &pattern.regex {
        // The whole path is searched, its end first: the number may be in a folder's name.
        let text = path.to_str()?;
        let found = |text: &str| {
            let groups = regex.captures_iter(text).last()?;
            groups.get(1).or(groups.get(0))?.as_str().parse().ok()
        };
        return found(name).or_else(|| found(text));
    }
    number_in(name).or_else(|| number_in(path.parent()?.file_name()?.to_str()?))
}

fn number_in(name: &str) -> Option<u64> {
    // Endings hold no numbers of interest (`.pth.tar`, `.h5`), nor does a shard's place among its kind.
    let stem = name.split_once(".pth").or_else(|| name.rsplit_once('.')).map_or(name, |(stem, _)| stem);
    if is_shard(name) {
        return None;
    }
    let lower = stem.to_lowercase();
    for words in [&["step", "iter", "iteration", "update", "global_step"][..], &["epoch", "ep"]] {
        // The last such word counts: `epoch=3-step=5000`.
        let after = words.iter().filter_map(|word| {
            let at = lower.rmatch_indices(word).find_map(|(at, _)| {
                let rest = lower[at + word.len()..].trim_start_matches('s').trim_start_matches(['-', '_', '=', ' ']);
                leading_number(rest).map(|number| (at, number))
            })?;
            Some(at)
        });
        if let Some((_, number)) = after.max_by_key(|(at, _)| *at) {
            return Some(number);
        }
    }
    let digits = |c: char| c.is_ascii_digit();
    let end = lower.rfind(digits)? + 1;
    let start = lower[..end]
        .rfind(|c: char| !digits(c))
        .map_or(0, |at| at + lower[at..].chars().next().map_or(1, char::len_utf8));
    lower[start..end].parse().ok()
}

fn leading_number(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().ok()
}

/// `model-00001-of-00003.safetensors`.
pub(super) fn is_shard(name: &str) -> bool {
    name.split_once("-of-").is_some_and(|(before, after)| {
        before.ends_with(|c: char| c.is_ascii_digit()) && after.starts_with(|c: char| c.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_are_found_where_people_put_them() {
        let none = StepPattern::default();
        for (name, step) in [
            ("checkpoint-500", Some(500)),
            ("checkpoint12.pt", Some(12)),
            ("checkpoint_3_5000.pt", Some(5000)),
            ("epoch-7.pth.tar", Some(7)),
            ("step11931", Some(11931)),
            ("step1000-tokens4B", Some(1000)),
            ("epoch=3-step=5000.ckpt", Some(5000)),
            ("resnet18-epoch_07.pth", Some(7)),
            ("vgg16-8.safetensors", Some(8)),
            ("runs/checkpoint-500/model.safetensors", Some(500)),
            ("steps_300.npz", Some(300)),
            ("iter_0000100.pt", Some(100)),
            ("model.safetensors", None),
            ("model-00001-of-00003.safetensors", None),
            ("modèle7.pt", Some(7)),
            ("99999999999999999999999.pt", None),
        ] {
            assert_eq!(step_of(Path::new(name), &none), step, "{name}");
        }
        let own = StepPattern::new(r"v(\d+)").unwrap();
        assert_eq!(step_of(Path::new("run2/v12-final3.pt"), &own), Some(12));
        assert!(StepPattern::new("(").is_err());
    }
}
