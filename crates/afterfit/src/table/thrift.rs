//! Just enough of thrift's compact protocol to check Parquet's own headers before anything trusts them.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Read, Result};

/// Structures within structures, of which Parquet needs five.
const DEEPEST: u8 = 16;

pub(super) struct Thrift<R> {
    reader: R,
    /// Bytes read so far.
    pub(super) at: u64,
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

impl<R: Read> Thrift<R> {
    pub(super) fn new(reader: R) -> Self {
        Self { reader, at: 0 }
    }

    fn byte(&mut self) -> Result<u8> {
        let mut byte = [0];
        self.reader.read_exact(&mut byte).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => std::io::Error::new(error.kind(), "it ends early"),
            _ => error,
        })?;
        self.at += 1;
        Ok(byte[0])
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(invalid("a number of more than 64 bits"))
    }

    fn number(&mut self) -> Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn skip_bytes(&mut self, count: u64) -> Result<()> {
        let skipped = std::io::copy(&mut (&mut self.reader).take(count), &mut std::io::sink())?;
        self.at += skipped;
        if skipped == count { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    /// The next field of a structure: its number and type; `None` at its end.
    pub(super) fn field(&mut self, before: i16) -> Result<Option<(i16, u8)>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Ok(None);
        }
        let number = match byte >> 4 {
            0 => i16::try_from(self.number()?).map_err(|_| invalid("a field's number is too large"))?,
            step => before.checked_add(i16::from(step)).ok_or_else(|| invalid("a field's number is too large"))?,
        };
        Ok(Some((number, byte & 15)))
    }

    /// The length and the type of a list.
    pub(super) fn list(&mut self) -> Result<(u64, u8)> {
        let byte = self.byte()?;
        let length = if byte >> 4 == 15 { self.varint()? } else { u64::from(byte >> 4) };
        Ok((length, byte & 15))
    }

    fn value(&mut self, kind: u8, depth: u8) -> Result<Option<i64>> {
        match kind {
            1 => return Ok(Some(1)),
            2 => return Ok(Some(0)),
            3 => return Ok(Some(i64::from(self.byte()? as i8))),
            4..=6 => return self.number().map(Some),
            7 => self.skip_bytes(8)?,
            8 => {
                let length = self.varint()?;
                self.skip_bytes(length)?;
            }
            // (Within a list or a map a truth takes a byte.)
            9 | 10 => {
                let (length, kind) = self.list()?;
                for _ in 0..length {
                    self.nested(kind.max(3), depth)?;
                }
            }
            11 => {
                let length = self.varint()?;
                if length > 0 {
                    let kinds = self.byte()?;
                    for _ in 0..length {
                        self.nested((kinds >> 4).max(3), depth)?;
                        self.nested((kinds & 15).max(3), depth)?;
                    }
                }
            }
            12 => {
                let mut before = 0;
                while let Some((number, kind)) = self.field(before)? {
                    self.nested(kind, depth)?;
                    before = number;
                }
            }
            _ => return Err(invalid("a type that thrift does not have")),
        }
        Ok(None)
    }

    fn nested(&mut self, kind: u8, depth: u8) -> Result<Option<i64>> {
        match depth < DEEPEST {
            true => self.value(kind, depth + 1),
            false => Err(invalid("structures within structures without end")),
        }
    }

    /// Goes past a value.
    pub(super) fn skip(&mut self, kind: u8) -> Result<()> {
        self.value(kind, 0).map(|_| ())
    }

    /// The numbers of a structure, by their fields, and of the structures in it, by theirs: `[field, 0]`, `[field, inner field]`.
    pub(super) fn numbers(&mut self) -> Result<BTreeMap<[i16; 2], i64>> {
        let (mut numbers, mut before) = (BTreeMap::new(), 0);
        while let Some((number, kind)) = self.field(before)? {
            before = number;
            if kind != 12 {
                numbers.extend(self.value(kind, 0)?.map(|value| ([number, 0], value)));
                continue;
            }
            let mut inner = 0;
            while let Some((within, kind)) = self.field(inner)? {
                numbers.extend(self.value(kind, 1)?.map(|value| ([number, within], value)));
                inner = within;
            }
        }
        Ok(numbers)
    }
}
