//! `--l2 1e-4..1e2` (a log grid), `--l2 1e-4..1e2:50` (of 50 points), `--l2 0.01,0.1` (a list).

use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// A choice among names that the library knows and reads.
pub(crate) fn one_of<T>(names: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|name| name.parse::<T>())
}

/// One of the values of a table: what is typed, what it means, what it is.
pub(crate) fn choice<T>(all: &'static [(&'static str, &'static str, T)]) -> impl TypedValueParser<Value = T>
where
    T: Clone + Send + Sync + 'static,
{
    let names = all.iter().map(|(name, about, _)| PossibleValue::new(*name).help(*about));
    let named = |name: String| all.iter().find(|(known, ..)| *known == name).map(|(.., value)| value.clone());
    PossibleValuesParser::new(names).try_map(move |name| named(name).ok_or("not one of the values"))
}

/// How many points a range without `:N` gets.
const DEFAULT_POINTS: usize = 50;
/// More than anyone can look at, and a bound on memory.
const MOST_POINTS: usize = 100_000;

/// A choice of strengths, as typed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Strengths {
    values: Vec<f64>,
}

impl Strengths {
    /// The strengths, in the order typed or rising.
    pub(crate) fn values(&self) -> &[f64] {
        &self.values
    }

    /// The smallest and the largest.
    pub(crate) fn ends(&self) -> (f64, f64) {
        let fold = |pick: fn(f64, f64) -> f64| self.values.iter().copied().reduce(pick).unwrap_or(f64::NAN);
        (fold(f64::min), fold(f64::max))
    }
}

impl FromStr for Strengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let values = match text.split_once("..") {
            Some((_, rest)) if rest.starts_with('.') => return Err("a range has two dots, like 1e-4..1e2".into()),
            Some((from, rest)) => {
                let (to, count) = match rest.split_once(':') {
                    Some((to, count)) => {
                        (to, count.trim().parse().map_err(|_| format!("`{count}` is not a number of points"))?)
                    }
                    None => (rest, DEFAULT_POINTS),
                };
                log_grid(number(from)?, number(to)?, count)?
            }
            None => text.split(',').map(number).collect::<Result<_, _>>()?,
        };
        Ok(Self { values })
    }
}

fn number(text: &str) -> Result<f64, String> {
    let value: f64 = text.trim().parse().map_err(|_| format!("`{text}` is not a number"))?;
    if value > 0.0 && value.is_finite() {
        Ok(value)
    } else {
        Err(format!("a strength of {text} is not possible: it must be above 0 and finite"))
    }
}

fn log_grid(from: f64, to: f64, count: usize) -> Result<Vec<f64>, String> {
    if from >= to {
        return Err(format!("the range {from}..{to} is empty: the first end must be below the second"));
    }
    if !(2..=MOST_POINTS).contains(&count) {
        return Err(format!("{count} points: a range needs from 2 to {MOST_POINTS}"));
    }
    if !(to / from).is_finite() {
        return Err(format!(
            "the range {from:e}..{to:e} spans more than 308 decades, more than a number can: bring its ends closer together, such as 1e-8..1e4"
        ));
    }
    let step = (to / from).ln() / (count - 1) as f64;
    let point = |i: usize| match i {
        0 => from,
        i if i + 1 == count => to,
        // (Rounded to 13 digits, so that the middle of 1e-4..1e-2 is 0.001 and is named so.)
        i => {
            let value = from * (step * i as f64).exp();
            format!("{value:.12e}").parse().unwrap_or(value)
        }
    };
    Ok((0..count).map(point).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn parse(text: &str) -> Result<Vec<f64>, String> {
        text.parse().map(|strengths: Strengths| strengths.values)
    }

    #[test]
    fn ranges_and_lists() {
        assert_eq!(parse("0.01,0.1").unwrap(), [0.01, 0.1]);
        let grid = parse("1e-4..1:5").unwrap();
        assert_eq!((grid[0], grid[4], grid.len()), (1e-4, 1.0, 5));
        assert!((grid[2] / 1e-2 - 1.0).abs() < 1e-12);
        assert_eq!(parse("1e-4..1").unwrap().len(), DEFAULT_POINTS);
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "x",
            "0",
            "-1",
            "1..",
            "1..0.1",
            "1e-3..1:1",
            "1e-3..1:x",
            "nan",
            "inf",
            "0..1",
            "1e-3..1:9999999",
            "1e-5...1",
            "1e-300..1e90:5",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
