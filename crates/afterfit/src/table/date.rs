//! Dates as numbers: days, with their fraction, since the start of 1970 in UTC.

use jiff::civil::{DateTime, date};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

/// The days of an ISO date (2024-05-01) or date-time (2024-05-01T12:00:00, with fractions of seconds, Z or an offset if need
/// be); without an offset it is taken to be in UTC.
pub(super) fn days(text: &str) -> Option<f64> {
    // Parsing hundreds of thousands of texts that are no dates must cost nothing.
    if !text.starts_with(|first: char| first.is_ascii_digit()) || !text.contains('-') {
        return None;
    }
    let local = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp());
    let instant = text.parse::<Timestamp>().ok().or_else(local)?;
    Some(instant.as_nanosecond() as f64 / 86.4e12)
}

/// A moment in ISO form, from microseconds since 1970; a text that is no date beyond the year 9999.
pub(super) fn iso(microseconds: i64) -> String {
    let instant = Timestamp::from_microsecond(microseconds);
    instant.map_or_else(|_| format!("{microseconds} µs: beyond the year 9999"), |instant| instant.to_string())
}

/// The same for a date, from days.
pub(super) fn iso_date(days: i32) -> String {
    let date = Span::new().try_days(days).and_then(|span| date(1970, 1, 1).checked_add(span));
    date.map_or_else(|_| format!("{days} days: beyond the year 9999"), |date| date.to_string())
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// Whether people would call it a date: 2024-05-01, but also 01/02/2024, 1.2.24 or 1 Feb 2024, with or without a time.
pub(super) fn looks_like_one(text: &str) -> bool {
    let day = |word: &str| word.len() <= 2 && word.parse().is_ok_and(|day: u8| (1..=31).contains(&day));
    let long_year = |word: &str| word.len() == 4 && word.parse::<u16>().is_ok();
    let year = |word: &str| long_year(word) || (word.len() == 2 && word.parse::<u8>().is_ok());
    let month = |word: &str| {
        let word = word.to_lowercase();
        word.len() >= 3 && word.chars().all(char::is_alphabetic) && MONTHS.iter().any(|name| word.starts_with(name))
    };
    let mut words = text.split(|c: char| !c.is_alphanumeric() && c != ':').filter(|word| !word.is_empty());
    let (Some(first), Some(second), Some(third)) = (words.next(), words.next(), words.next()) else {
        return false;
    };
    // The day and its time may hang together: 2024-05-01T12:00.
    let (third, joined) = third.split_once('T').map_or((third, None), |(third, time)| (third, Some(time)));
    let timed = joined.or_else(|| words.next()).is_none_or(|word| word.contains(':'));
    let numbers = (day(first) && day(second) && year(third)) || (long_year(first) && day(second) && day(third));
    let named = (day(first) && month(second) && year(third)) || (month(first) && day(second) && year(third));
    timed && (numbers || named)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn iso_dates_become_days() {
        assert_eq!(days("1970-01-01"), Some(0.0));
        assert_eq!(days("2024-05-01"), Some(19844.0));
        assert_eq!(days("1969-12-31T12:00:00"), Some(-0.5));
        assert_eq!(days("2024-05-01T12:00:00"), Some(19844.5));
        assert_eq!(days("2024-05-01 12:00"), Some(19844.5));
        assert_eq!(days("2024-05-01T18:00:00.000Z"), Some(19844.75));
        assert_eq!(days("2024-05-01T00:00:00+06:00"), Some(19843.75));
        assert!((days("2024-05-01T00:00:00.5").unwrap() - 19844.0 - 0.5 / 86400.0).abs() < 1e-11);
        for text in ["", "2024", "20240501", "2024-05", "2024-13-01", "2023-02-29", "01/02/2024", "12:00", "1-2", "x-1"]
        {
            assert_eq!(days(text), None, "{text}");
        }
        assert_eq!(days(&iso(19844 * 86_400_000_000)), Some(19844.0));
        assert_eq!((iso_date(19844).as_str(), iso_date(-1).as_str()), ("2024-05-01", "1969-12-31"));
        assert_eq!((days(&iso(i64::MAX)), days(&iso_date(i32::MAX)), days(&iso_date(i32::MIN))), (None, None, None));
    }

    #[test]
    fn dates_of_other_kinds_are_known_as_such() {
        let dates = [
            "01/02/2024",
            "1/2/24",
            "31.12.1999",
            "2024/05/01",
            "2024-05-01",
            "1 Feb 2024",
            "1-Feb-24",
            "February 1, 2024",
            "01/02/2024 12:30",
            "2024-05-01T12:00:00",
        ];
        for text in dates {
            assert!(looks_like_one(text), "{text}");
        }
        for text in [
            "1.2.3",
            "10.0.0.1",
            "99/99/2024",
            "red",
            "a b c",
            "1/2",
            "S-12-24",
            "12-24-X",
            "1 maybe 2024x",
            "555-12-3456",
        ] {
            assert!(!looks_like_one(text), "{text}");
        }
    }
}
