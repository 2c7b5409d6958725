//! Columns that are not what they look like: numbers written for people, an index written by accident, identifiers; and columns
//! that hardly go together.

use super::{Column, TableError, Values, date, show};

/// Up to so many texts, a column of `10%` and `20%` may well mean categories.
const FEW: usize = 10;

/// What nine of ten texts are, if they are numbers that no parser reads.
fn written(text: &str) -> Option<&'static str> {
    let digits = |text: &str| text.bytes().any(|byte| byte.is_ascii_digit());
    let plain = |text: &str| {
        digits(text) && text.trim_start_matches(['-', '+']).bytes().all(|byte| b"0123456789.,' ".contains(&byte))
    };
    let text = text.trim();
    if let Some(number) = text.strip_suffix('%') {
        return plain(number).then_some("percentages");
    }
    let signless = text.trim_start_matches(['-', '+', '(']).trim_end_matches(')');
    let amount = signless.strip_prefix(['$', '€', '£', '¥']).or_else(|| signless.strip_suffix(['$', '€', '£', '¥']));
    if let Some(number) = amount {
        return plain(number.trim()).then_some("amounts of money");
    }
    (plain(text) && text.contains(',')).then_some("numbers with commas")
}

/// Refuses a column of such numbers, or remarks on it where there are few.
pub(super) fn refuse_written(name: &str, levels: &[impl AsRef<str>]) -> Result<(), TableError> {
    let found: Vec<(&str, &'static str)> =
        levels.iter().filter_map(|text| written(text.as_ref()).map(|kind| (text.as_ref(), kind))).collect();
    match found.first() {
        Some((text, kind)) if levels.len() > FEW && 10 * found.len() >= 9 * levels.len() => {
            let (column, text) = (name.to_owned(), crate::files::text::shown(text).to_string());
            Err(TableError::Written { column, text, kind, count: levels.len() })
        }
        _ => Ok(()),
    }
}

/// What should be said of a column of texts.
pub(super) fn remark(name: &str, levels: &[impl AsRef<str>], rows: usize) -> Option<String> {
    let first = levels.first()?.as_ref();
    if levels.len() > 20 && 2 * levels.len() > rows {
        return Some(format!(
            "column {} holds {} different texts in {rows} rows, like {}: each becomes a feature; numbers must be written without separators or units, identifiers are best left out (--drop)",
            show(name),
            levels.len(),
            show(first)
        ));
    }
    let kind = levels.iter().map(|text| written(text.as_ref())).collect::<Option<Vec<_>>>()?;
    Some(format!(
        "column {} holds {}, like {}: each of its {} texts becomes a feature; written as plain numbers they would be one",
        show(name),
        kind.first()?,
        show(first),
        levels.len()
    ))
}

/// Whether a column has the name that a data frame's index gets when it is written.
pub(super) fn named_like_an_index(name: &str) -> bool {
    name.is_empty() || name == "Unnamed: 0"
}

pub(super) fn index_remark(name: &str) -> String {
    format!("column {} counts the rows from 0, as a data frame's index does: it is left out", show(name))
}

/// Whether a column is the index of a data frame, written by accident: no name, and the numbers of the rows.
pub(super) fn is_index(column: &Column) -> bool {
    let Values::Numeric(numbers) = &column.values else { return false };
    named_like_an_index(&column.name) && numbers.iter().enumerate().all(|(row, &value)| value == row as f64)
}

/// Columns of numbers whose scales are so many times apart are treated very differently by one strength.
const FAR_APART: f64 = 100.0;

/// The columns of numbers that spread most and least, of a table where these are far apart: their names and standard deviations.
#[derive(Debug, Clone, PartialEq)]
pub struct Scales {
    /// The column that spreads most.
    pub widest: (String, f64),
    /// The one that spreads least, of those that hold more than one value.
    pub narrowest: (String, f64),
}

impl Scales {
    /// Of columns by their name, mean and standard deviation; `None` where they are about alike.
    pub(super) fn of<'a>(columns: impl Iterator<Item = (&'a str, f64, f64)>) -> Option<Self> {
        // (What sums of equal numbers are off by is no spread.)
        let spread = |(_, mean, spread): &(&str, f64, f64)| spread.is_finite() && *spread > 1e-10 * mean.abs();
        let mut ends = None;
        for (name, _, spread) in columns.filter(spread) {
            let (widest, narrowest) = ends.get_or_insert(((name, spread), (name, spread)));
            if spread > widest.1 {
                *widest = (name, spread);
            }
            if spread < narrowest.1 {
                *narrowest = (name, spread);
            }
        }
        let owned = |(name, spread): (&str, f64)| (name.to_owned(), spread);
        let (widest, narrowest) = ends.filter(|(widest, narrowest)| widest.1 > FAR_APART * narrowest.1)?;
        Some(Self { widest: owned(widest), narrowest: owned(narrowest) })
    }
}

/// A date is neither a class nor a number.
pub(super) fn refuse_dates(name: &str, levels: &[impl AsRef<str>]) -> Result<(), TableError> {
    let is_date = |text: &str| date::days(text).is_some() || date::looks_like_one(text);
    let dates = levels.iter().filter(|text| is_date(text.as_ref())).count();
    match levels.first() {
        Some(first) if 10 * dates >= 9 * levels.len() => Err(TableError::Unusable {
            what: format!(
                "the target {} holds dates, like {}, which are neither classes nor numbers: write them as numbers, such as days since the first",
                show(name),
                show(first.as_ref())
            ),
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_that_are_far_apart_are_named() {
        let of = |columns: &[(&'static str, f64, f64)]| Scales::of(columns.iter().copied());
        let found = of(&[("a", 0.0, 3.0), ("b", 1e4, 2e3), ("c", 7.0, 0.0), ("d", 1.0, 0.5)]);
        assert_eq!(found, Some(Scales { widest: ("b".into(), 2e3), narrowest: ("d".into(), 0.5) }));
        // Rounding is no scale, nor is a column of one value.
        assert_eq!(of(&[("a", 0.0, 3.0), ("b", 0.1, 1e-17), ("c", 5.0, 0.0), ("d", 0.0, f64::NAN)]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn numbers_for_people_are_known() {
        for (text, kind) in [
            ("1,5", "numbers with commas"),
            ("-1,234.5", "numbers with commas"),
            ("12%", "percentages"),
            ("3.5 %", "percentages"),
            ("$5", "amounts of money"),
            ("-$1,000", "amounts of money"),
            ("5 €", "amounts of money"),
        ] {
            assert_eq!(written(text), Some(kind), "{text}");
        }
        for text in ["", "a,b", "%", "$", "1.5", "Ulm", "1,5 m", "A$5", "5'"] {
            assert_eq!(written(text), None, "{text}");
        }
    }
}
