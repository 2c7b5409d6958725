//! The header of an npy array, checked before a parser sees it.
//!
//! npyz reads it with a grammar that tries every bracket twice, so that each further one inside another doubles the time; and it
//! sets aside what the header claims to be long, and multiplies lengths unchecked. An array of numbers needs none of that.

use std::io::Read;

use npyz::NpyHeader;

/// A header is a line of text; this is far more.
const LONGEST: usize = 64 << 10;
/// `{… [('name', '<f4')] …}`: a record, which is refused later by its name.
const DEEPEST: usize = 3;

/// The header at the start of `reader`, and how many bytes it takes.
pub(crate) fn header(mut reader: impl Read) -> Result<(NpyHeader, usize), String> {
    let io = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "not an npy array: it ends within its header".to_owned(),
        _ => format!("not an npy array: {error}"),
    };
    let mut bytes = vec![0; 10];
    reader.read_exact(&mut bytes).map_err(io)?;
    if !bytes.starts_with(b"\x93NUMPY") {
        return Err("not an npy array: it does not start with \\x93NUMPY".into());
    }
    if bytes[6] > 1 {
        bytes.resize(12, 0);
        reader.read_exact(&mut bytes[10..]).map_err(io)?;
    }
    // (Little-endian: two bytes in version 1, four in the others.)
    let length = bytes[8..].iter().rev().fold(0, |length: usize, &byte| length << 8 | usize::from(byte));
    if length > LONGEST {
        return Err(format!("claims a header of {length} bytes: at most {LONGEST} are read"));
    }
    let start = bytes.len();
    bytes.resize(start + length, 0);
    reader.read_exact(&mut bytes[start..]).map_err(io)?;
    check(&bytes[start..])?;
    let header = NpyHeader::from_reader(&bytes[..]).map_err(|error| {
        // (The parser draws a picture of the place, over several lines.)
        let text = error.to_string();
        format!("not an npy array: {}", text.lines().next().unwrap_or_default().trim_end_matches([' ', ':']))
    })?;
    Ok((header, bytes.len()))
}

/// Whether the text is shallow, and its shape can be counted.
fn check(text: &[u8]) -> Result<(), String> {
    let (mut depth, mut quote, mut escaped) = (0_usize, None, false);
    for &byte in text {
        match (quote, byte) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), b'\\') => escaped = true,
            (Some(open), _) if byte == open => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(byte),
            (None, b'{' | b'[' | b'(') => depth += 1,
            (None, b'}' | b']' | b')') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
        if depth > DEEPEST {
            return Err(format!(
                "its header has more than {DEEPEST} brackets within each other: an array of numbers has 2"
            ));
        }
    }
    let text = String::from_utf8_lossy(text);
    let Some((_, shape)) = text.split_once("'shape'").or_else(|| text.split_once("\"shape\"")) else { return Ok(()) };
    let lengths = shape.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    // (16 bytes is the widest element there is.)
    let bytes =
        lengths.map(|digits| digits.parse::<u64>().ok()).try_fold(16, |count: u64, length| count.checked_mul(length?));
    bytes.map(|_| ()).ok_or_else(|| "its shape does not fit the bytes there are".into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn array(text: &str) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes
    }

    fn refusal(bytes: &[u8]) -> String {
        header(bytes).err().unwrap()
    }

    #[test]
    fn brackets_within_each_other_are_refused_before_they_are_parsed() {
        for open in ["(", "[", "{", "[(", "({'a':"] {
            let bytes = array(&format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {}", open.repeat(40)));
            assert!(refusal(&bytes).contains("brackets within each other"), "{open}");
        }
        let good = array("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }");
        let (found, length) = header(&good[..]).unwrap();
        assert_eq!((found.shape(), length), (&[2, 3][..], good.len()));
        for cut in 0..good.len() {
            assert!(refusal(&good[..cut]).contains("ends within its header"), "{cut}");
        }
        assert!(refusal(b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{'descr'").contains("claims a header"));
    }
}
