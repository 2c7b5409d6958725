//! Where the records of a CSV end: a scan that sees every byte once, and notices a quote that swallows rows.

use super::show;

/// A quoted field may go on over this many lines.
const MOST_LINES: u64 = 1000;
/// This many lines of a quoted field that look like rows of the table are rows of the table.
const MOST_ALIKE: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    Start,
    Bare,
    Quoted,
    /// After a quote in a quoted field: its end, or the first of two.
    Closing,
}

/// What separates the fields of a table whose header this begins with: a comma, or, in a header without one, a semicolon or a
/// tab. What is within quotes does not count.
fn separator(header: &[u8]) -> u8 {
    let (mut quoted, mut other) = (false, None);
    for &byte in header {
        match byte {
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'\n' => break,
            b',' => return b',',
            b';' | b'\t' => _ = other.get_or_insert(byte),
            _ => {}
        }
    }
    other.unwrap_or(b',')
}

/// The state of a scan between two pieces of a file.
#[derive(Debug)]
pub(super) struct Scan {
    /// What separates fields; not known before the header.
    separator: Option<u8>,
    state: State,
    /// The line being read, from 1.
    line: u64,
    /// The line on which the open field began.
    opened: u64,
    /// Separators on this line of the open field, and lines before it with as many as a record has.
    separators: u64,
    alike: u64,
    /// Separators of the first record, and so of every one; not known while it is read.
    expected: Option<u64>,
    first: u64,
}

impl Scan {
    pub(super) fn new() -> Self {
        Self {
            separator: None,
            state: State::Start,
            line: 1,
            opened: 1,
            separators: 0,
            alike: 0,
            expected: None,
            first: 0,
        }
    }

    /// What separates fields.
    pub(super) fn separator(&self) -> u8 {
        self.separator.unwrap_or(b',')
    }

    /// Whether the file may end here.
    pub(super) fn finish(&self) -> Result<(), String> {
        match self.state {
            State::Quoted => Err(format!("line {}: a quote there is never closed", self.opened)),
            _ => Ok(()),
        }
    }

    /// Reads on; where the last whole record of `bytes` ends, if one does. The first bytes have the header in them.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Option<usize>, String> {
        let separator = *self.separator.get_or_insert_with(|| separator(bytes));
        let mut last = None;
        for (at, &byte) in bytes.iter().enumerate() {
            self.state = match (self.state, byte) {
                (State::Quoted, b'"') => State::Closing,
                (State::Quoted, b'\n') => {
                    self.swallow()?;
                    State::Quoted
                }
                (State::Quoted, _) => {
                    self.separators += u64::from(byte == separator);
                    State::Quoted
                }
                (State::Closing, b'"') => State::Quoted,
                (_, byte) if byte == separator => {
                    self.first += 1;
                    State::Start
                }
                (_, b'\n') => {
                    (self.line, last) = (self.line + 1, Some(at + 1));
                    if self.expected.is_none() && self.first > 0 {
                        self.expected = Some(self.first);
                    }
                    State::Start
                }
                (_, b'\r') => State::Start,
                (State::Closing, b' ' | b'\t') => State::Closing,
                (State::Closing, _) => {
                    let ends = |byte: &u8| [separator, b'\n'].contains(byte);
                    let end = bytes[at..].iter().position(ends).map_or(bytes.len(), |end| at + end);
                    return Err(format!(
                        "line {}: a quoted field (from line {}) continues behind its closing quote, with {}: quotes within a field are doubled (\"\")",
                        self.line,
                        self.opened,
                        show(&String::from_utf8_lossy(&bytes[at..end]))
                    ));
                }
                (State::Start, b'"') => {
                    (self.opened, self.separators, self.alike) = (self.line, 0, 0);
                    State::Quoted
                }
                (State::Start | State::Bare, _) => State::Bare,
            };
        }
        Ok(last)
    }

    /// A line's end within quotes.
    fn swallow(&mut self) -> Result<(), String> {
        self.line += 1;
        // (The first line of the field has fewer, and two columns make no pattern: texts have commas, too.)
        let whole = self.line > self.opened + 1
            && self.expected.is_some_and(|expected| expected > 1 && self.separators == expected);
        self.alike = if whole { self.alike + 1 } else { 0 };
        self.separators = 0;
        let lines = self.line - self.opened;
        let opened = self.opened;
        if self.alike >= MOST_ALIKE {
            return Err(format!(
                "line {opened}: a quote there is not closed before line {}, and what is between looks like rows: close it, or double it (\"\") if it belongs to the text",
                self.line
            ));
        }
        if lines > MOST_LINES {
            return Err(format!(
                "line {opened}: a quoted field continues for more than {MOST_LINES} lines, as if a quote there were never closed"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Behind a header of so many fields.
    fn scan(text: &str, fields: usize) -> Result<Option<usize>, String> {
        let header = format!("{}\n", ",".repeat(fields - 1));
        let (mut scan, mut whole) = (Scan::new(), Scan::new());
        scan.feed(header.as_bytes())?;
        whole.feed(header.as_bytes())?;
        // Byte by byte, and at once.
        let mut last = None;
        for (at, byte) in text.bytes().enumerate() {
            last = scan.feed(&[byte])?.map(|end| at + end).or(last);
        }
        scan.finish()?;
        assert_eq!(whole.feed(text.as_bytes())?, last);
        Ok(last)
    }

    #[test]
    fn records_end_where_they_do() {
        assert_eq!(scan("a,b\n1,2", 2), Ok(Some(4)));
        assert_eq!(scan("a,\"b\nc\"\n1,2\n", 2), Ok(Some(12)));
        assert_eq!(scan("a,\"say \"\"hi\"\"\"\r\n", 2), Ok(Some(16)));
        assert_eq!(scan("5\" pipe,b\n", 2), Ok(Some(10)));
        assert_eq!(scan("\"a\" ,b\n", 2), Ok(Some(7)));
        assert_eq!(scan("ab", 1), Ok(None));
        // Long texts with commas are texts.
        assert!(scan(&format!("1,2,\"{}\"\n", "Dear sir, or madam,\nwell.\n".repeat(100)), 3).is_ok());
    }

    #[test]
    fn the_header_says_what_separates_fields() {
        for (header, found) in [
            ("a,b", b','),
            ("a;b\n1,5;2\n", b';'),
            ("a\tb", b'\t'),
            ("a;b,c", b','),
            ("\"a,b\";c", b';'),
            ("\"a;b\"\n1;2", b','),
            ("\"a\nb\";c\n1,5;2", b';'),
            ("a", b','),
            ("", b','),
        ] {
            assert_eq!(separator(header.as_bytes()), found, "{header:?}");
        }
    }

    #[test]
    fn a_stray_quote_is_found() {
        let rows = "1,2,3\n".repeat(3000);
        let message = scan(&format!("1,\"x,3\n{rows}4,\"y,6\n"), 3).unwrap_err();
        assert!(message.starts_with("line 2: a quote there is not closed before line 6"), "{message}");
        let message = scan("1,\"x,3\n4,\"y,6\n", 3).unwrap_err();
        assert!(
            message.starts_with("line 3: a quoted field (from line 2) continues behind its closing quote, with \"y\""),
            "{message}"
        );
        assert_eq!(scan("1,\"x,3\n", 3).unwrap_err(), "line 2: a quote there is never closed");
        assert!(scan(&format!("1,\"{}\"\n", "x\n".repeat(1002)), 2).unwrap_err().contains("more than 1000 lines"));
    }
}
