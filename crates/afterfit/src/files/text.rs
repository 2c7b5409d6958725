//! Foreign text on its way to a person: names in a stranger's file may hold control characters, which a terminal would
//! obey, and may be as long as the file.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::Path;

/// Characters of a name that are shown.
pub const MOST_SHOWN: usize = 80;
/// Characters of a sentence that are shown.
const MOST_SENTENCE: usize = 1000;

/// Whether a character does something other than appear: control characters, and those that turn text around or break
/// lines.
#[must_use]
pub fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Text in which every active character that is not allowed is written as `\x1b` or `\u{202e}`.
#[must_use]
pub fn plain<'a>(text: &'a str, allowed: &[char]) -> Cow<'a, str> {
    let is_shown = |c: char| !is_active(c) || allowed.contains(&c);
    if text.chars().all(is_shown) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if is_shown(c) => safe.push(c),
            '\n' => safe.push_str("\\n"),
            '\r' => safe.push_str("\\r"),
            '\t' => safe.push_str("\\t"),
            c if u32::from(c) < 0x100 => drop(write!(safe, "\\x{:02x}", u32::from(c))),
            c => drop(write!(safe, "\\u{{{:x}}}", u32::from(c))),
        }
    }
    Cow::Owned(safe)
}

/// A name from a file (a tensor, a column, a key, a class), as messages, tables and pages show it: on one line, without
/// control characters, cut after [`MOST_SHOWN`] characters.
#[must_use]
pub fn shown(name: &str) -> Cow<'_, str> {
    match name.char_indices().nth(MOST_SHOWN) {
        None => plain(name, &[]),
        Some((end, _)) => Cow::Owned(format!("{}…", plain(&name[..end], &[]))),
    }
}

/// A sentence that may quote foreign text (an error, a hint, a note): on one line, without control characters, cut after a
/// thousand characters.
#[must_use]
pub fn sentence(text: &str) -> Cow<'_, str> {
    let text = by_url(text);
    match (text.char_indices().nth(MOST_SENTENCE), text) {
        (None, Cow::Borrowed(text)) => plain(text, &[]),
        (None, Cow::Owned(text)) => Cow::Owned(plain(&text, &[]).into_owned()),
        (Some((end, _)), text) => Cow::Owned(format!("{}…", plain(&text[..end], &[]))),
    }
}

/// A file's place, on one line and without control characters; a URL where the file stands for an object. Not cut: someone
/// has to find it.
#[must_use]
pub fn shown_path(path: &Path) -> String {
    plain(&by_url(&path.to_string_lossy()), &[]).into_owned()
}

/// Text in which what stands for an object of a store is named by its URL.
#[must_use]
pub fn by_url(text: &str) -> Cow<'_, str> {
    #[cfg(feature = "stores")]
    return super::stores::by_url(text);
    #[cfg(not(feature = "stores"))]
    Cow::Borrowed(text)
}

/// For a shell: nothing in a text can end the quotes.
#[must_use]
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The same, as it is where a shell takes it as it is.
#[must_use]
pub fn quoted_if_needed(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%{}".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text.to_owned() } else { quoted(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_spelled_out() {
        assert_eq!(shown("größe λ"), "größe λ");
        assert_eq!(shown("a\u{1b}[2Jb\u{7}\u{9b}0m\n\r\t\u{7f}"), "a\\x1b[2Jb\\x07\\x9b0m\\n\\r\\t\\x7f");
        assert_eq!(shown("a\u{202e}b"), "a\\u{202e}b");
        assert_eq!(shown(&"ü".repeat(100)), format!("{}…", "ü".repeat(80)));
        assert_eq!(plain("two\nlines\u{1b}", &['\n']), "two\nlines\\x1b");
    }
}
