//! Where a tensor's numbers lie, and how a stretch of them is read: row by row in one file, with strides, or in pieces that are
//! joined while they are read.

use std::sync::Arc;

use super::{DataFile, Result};

/// Gaps up to this many bytes are read over rather than skipped, in tensors that do not lie row by row.
const MOST_GAP: u64 = 4096;

/// Where a tensor's first number lies, and how to continue from there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    /// Which of the checkpoint's files.
    pub(crate) file: u32,
    /// In bytes.
    pub(crate) offset: u64,
    /// In elements, for tensors that do not lie row by row.
    pub(crate) strides: Option<Box<[u64]>>,
    /// All of the pieces of a tensor that lies in several. (What stands above is the first one's.)
    pub(crate) pieces: Option<Arc<[Piece]>>,
}

/// A box of a tensor's elements.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Piece {
    /// Its own place, as a tensor of its own.
    pub(crate) place: Place,
    /// Where it begins in the whole, by dimension, and how long it is there.
    pub(crate) at: Box<[u64]>,
    pub(crate) sizes: Box<[usize]>,
    /// The whole's elements that it begins with and ends before, counted row by row.
    first: u64,
    end: u64,
    /// The last end of all pieces up to this one.
    reach: u64,
}

impl Place {
    /// Of a tensor that lies row by row.
    pub(crate) fn plain(file: u32, offset: u64) -> Self {
        Self { file, offset, strides: None, pieces: None }
    }

    /// The same in a list of files that begins with so many others.
    #[must_use]
    pub(crate) fn behind(mut self, others: u32) -> Self {
        self.file += others;
        self.pieces = self.pieces.map(|pieces| {
            let moved = pieces.iter().cloned();
            moved.map(|piece| Piece { place: piece.place.behind(others), ..piece }).collect()
        });
        self
    }

    /// The places of all its pieces; itself where it is whole.
    pub(crate) fn spots(&self) -> impl Iterator<Item = &Self> {
        let whole = self.pieces.is_none().then_some(self);
        whole.into_iter().chain(self.pieces.iter().flat_map(|pieces| pieces.iter().map(|piece| &piece.place)))
    }

    /// The one of them that has an element.
    pub(crate) fn spot_of(&self, shape: &[usize], element: u64) -> &Self {
        let mut pieces = self.pieces.iter().flat_map(|pieces| within(pieces, element, element + 1));
        let holds = |piece: &&Piece| piece.before(shape, element + 1) > piece.before(shape, element);
        pieces.find(holds).map_or(self, |piece| &piece.place)
    }

    /// Joins boxes (a place, where it begins, how long it is) to a tensor of this shape; says what is wrong with them if they do
    /// not cover it, or one another's elements.
    pub(crate) fn join(shape: &[usize], boxes: Vec<(Self, Vec<u64>, Vec<usize>)>) -> Result<Self, String> {
        if let Some((_, at, sizes)) = boxes.iter().find(|(_, at, sizes)| !is_inside(shape, at, sizes)) {
            return Err(format!("a piece of {sizes:?} at {at:?} is not inside of {shape:?}"));
        }
        let volume = |sizes: &[usize]| super::elements(&sizes.iter().map(|&size| size as u64).collect::<Vec<_>>());
        let whole = volume(shape).ok_or_else(|| format!("the elements of shape {shape:?} cannot be counted"))?;
        // (Each is inside of the whole.)
        let covered = boxes.iter().filter_map(|(_, _, sizes)| volume(sizes)).fold(0, u64::saturating_add);
        let count = boxes.len();
        if count == 0 {
            return Err(format!("it has 0 pieces for its {whole} elements"));
        }
        require_apart(shape.len(), &boxes)?;
        if covered != whole {
            return Err(format!("its {count} pieces have {covered} of its {whole} elements"));
        }
        let strides = super::contiguous(shape);
        let position = |index: &mut dyn Iterator<Item = u64>| index.zip(&strides).map(|(i, stride)| i * stride).sum();
        let mut pieces: Vec<Piece> = boxes
            .into_iter()
            .map(|(place, at, sizes)| {
                let first = position(&mut at.iter().copied());
                let end = 1 + position(&mut at.iter().zip(&sizes).map(|(at, &size)| at + size as u64 - 1));
                Piece { place, at: at.into(), sizes: sizes.into(), first, end, reach: 0 }
            })
            .collect();
        pieces.sort_unstable_by_key(|piece| piece.first);
        let mut reach = 0;
        for piece in &mut pieces {
            reach = piece.end.max(reach);
            piece.reach = reach;
        }
        let place = |piece: &Piece| piece.place.clone();
        let first = pieces.first().map(place).ok_or("it has no pieces")?;
        // (One that is all of it needs no joining.)
        Ok(if count == 1 { first } else { Self { strides: None, pieces: Some(pieces.into()), ..first } })
    }
}

fn is_inside(shape: &[usize], at: &[u64], sizes: &[usize]) -> bool {
    let fits = |((&length, &at), &size): ((&usize, &u64), &usize)| {
        size > 0 && at.checked_add(size as u64).is_some_and(|end| end <= length as u64)
    };
    (shape.len(), shape.len()) == (at.len(), sizes.len()) && shape.iter().zip(at).zip(sizes).all(fits)
}

/// Cells of the grid that all cuts together make, for each piece: where a tensor is cut the same way everywhere there is one.
const MOST_CELLS: u64 = 16;
const FREE_CELLS: u64 = 1024;

/// Refuses boxes of which two have an element in common: each marks the cells of the grid that all of their cuts make.
fn require_apart(dimensions: usize, boxes: &[(Place, Vec<u64>, Vec<usize>)]) -> Result<(), String> {
    let mut cuts: Vec<Vec<u64>> = Vec::with_capacity(dimensions);
    for dimension in 0..dimensions {
        let ends =
            |(_, at, sizes): &(Place, Vec<u64>, Vec<usize>)| [at[dimension], at[dimension] + sizes[dimension] as u64];
        let mut all: Vec<u64> = boxes.iter().flat_map(ends).collect();
        all.sort_unstable();
        all.dedup();
        cuts.push(all);
    }
    let cells = cuts.iter().try_fold(1_u64, |cells, cuts| cells.checked_mul(cuts.len() as u64 - 1));
    let limit = FREE_CELLS + MOST_CELLS * boxes.len() as u64;
    let cells = cells.filter(|cells| *cells <= limit).ok_or_else(|| {
        format!("its {} pieces are cut in more different ways than the {limit} cells allowed", boxes.len())
    })?;
    let mut taken = vec![false; cells as usize];
    for (_, at, sizes) in boxes {
        // The cells of a box, counted through like a number with a digit for each dimension.
        let range = |d: usize| {
            let find = |cut: u64| cuts[d].partition_point(|&known| known < cut);
            (find(at[d]), find(at[d] + sizes[d] as u64))
        };
        let ranges: Vec<(usize, usize)> = (0..dimensions).map(range).collect();
        let mut digits: Vec<usize> = ranges.iter().map(|(from, _)| *from).collect();
        loop {
            let cell = digits.iter().zip(&cuts).fold(0, |cell, (&digit, cuts)| cell * (cuts.len() - 1) + digit);
            if std::mem::replace(&mut taken[cell], true) {
                return Err(format!("a piece of {sizes:?} at {at:?} has elements that another one has, too"));
            }
            let Some(d) = (0..dimensions).rev().find(|&d| digits[d] + 1 < ranges[d].1) else { break };
            digits[d] += 1;
            digits[d + 1..].iter_mut().zip(&ranges[d + 1..]).for_each(|(digit, (from, _))| *digit = *from);
        }
    }
    Ok(())
}

/// Those pieces that may have elements from `start` to `end`.
fn within(pieces: &[Piece], start: u64, end: u64) -> &[Piece] {
    let from = pieces.partition_point(|piece| piece.reach <= start);
    let to = pieces.partition_point(|piece| piece.first < end);
    pieces.get(from..to).unwrap_or_default()
}

impl Piece {
    /// How many of its elements come before an element of the whole.
    fn before(&self, shape: &[usize], element: u64) -> u64 {
        let (mut rest, mut whole) = (element, 1_u64);
        shape.iter().for_each(|&length| whole *= length as u64);
        let mut own: u64 = self.sizes.iter().map(|&size| size as u64).product();
        let mut count = 0;
        for ((&length, &at), &size) in shape.iter().zip(&self.at).zip(&self.sizes) {
            whole /= length as u64;
            own /= size as u64;
            let index = rest / whole;
            rest %= whole;
            count += index.saturating_sub(at).min(size as u64) * own;
            if index < at || index >= at + size as u64 {
                return count;
            }
        }
        count
    }

    /// Its elements lie in runs: how long each is, and where in the whole the nth begins.
    fn runs(&self, shape: &[usize]) -> (u64, impl Fn(u64) -> u64) {
        // Behind the last dimension that is cut, rows are whole.
        let cut = (0..shape.len()).rfind(|&d| self.sizes[d] != shape[d]).unwrap_or(0);
        let strides = super::contiguous(shape);
        let length = self.sizes[cut] as u64 * strides[cut];
        let start = move |run: u64| {
            let (mut rest, mut position) = (run, self.at[cut] * strides[cut]);
            for d in (0..cut).rev() {
                position += (self.at[d] + rest % self.sizes[d] as u64) * strides[d];
                rest /= self.sizes[d] as u64;
            }
            position
        };
        (length, start)
    }
}

/// Reads stretches of tensors, whatever way they lie, into buffers it keeps.
#[derive(Default)]
pub(super) struct Gather {
    scattered: Scattered,
    /// Runs of a piece, on their way to where they belong.
    runs: Vec<u8>,
}

impl Gather {
    /// Elements `start..start + count` of a tensor, counted row by row.
    pub(super) fn read(
        &mut self,
        files: &[DataFile],
        place: &Place,
        shape: &[usize],
        start: u64,
        count: usize,
        into: &mut [u8],
    ) -> Result<()> {
        let Some(pieces) = &place.pieces else {
            return self.scattered.read(files, place, shape, start, count, into);
        };
        let (size, end) = (into.len() / count, start + count as u64);
        for piece in within(pieces, start, end) {
            // What it has of them lies together in it.
            let (from, to) = (piece.before(shape, start), piece.before(shape, end));
            if from == to {
                continue;
            }
            let (length, begins) = piece.runs(shape);
            let (first, last) = (from / length, (to - 1) / length);
            // (Counted from where the first run begins, as far as it is before the stretch.)
            let target = |run: u64| (begins(run) + from.saturating_sub(run * length) - start) as usize * size;
            let bytes = (to - from) as usize * size;
            if first == last {
                let into = &mut into[target(first)..][..bytes];
                self.scattered.read(files, &piece.place, &piece.sizes, from, (to - from) as usize, into)?;
                continue;
            }
            self.runs.resize(bytes, 0);
            self.scattered.read(files, &piece.place, &piece.sizes, from, (to - from) as usize, &mut self.runs)?;
            let mut rest = &self.runs[..];
            for run in first..=last {
                let elements = (to.min((run + 1) * length) - from.max(run * length)) as usize;
                let (own, others) = rest.split_at(elements * size);
                into[target(run)..][..own.len()].copy_from_slice(own);
                rest = others;
            }
        }
        Ok(())
    }
}

/// Reads tensors that may not lie row by row: a stretch's elements are sorted by where they lie and read in stretches.
#[derive(Default)]
struct Scattered {
    /// What the plan below is for.
    plan_for: Option<(Vec<u64>, Vec<usize>, u64, usize)>,
    /// Byte offsets of the elements from the tensor's first, and which element each is, sorted by offset.
    order: Vec<(u64, u32)>,
    bytes: Vec<u8>,
}

impl Scattered {
    fn read(
        &mut self,
        files: &[DataFile],
        place: &Place,
        shape: &[usize],
        start: u64,
        count: usize,
        into: &mut [u8],
    ) -> Result<()> {
        let (file, offset) = (&files[place.file as usize], place.offset);
        let size = into.len() / count;
        let Some(strides) = &place.strides else {
            return Ok(file.read(into, offset + start * size as u64)?);
        };
        let wanted = (strides.to_vec(), shape.to_vec(), start, count);
        if self.plan_for.as_ref() != Some(&wanted) {
            self.order.clear();
            self.order.extend((0..count as u32).map(|element| {
                let mut rest = start + u64::from(element);
                let mut place = 0;
                for (&length, &stride) in shape.iter().zip(strides).rev() {
                    place += rest % length as u64 * stride;
                    rest /= length as u64;
                }
                (place * size as u64, element)
            }));
            self.order.sort_unstable();
            self.plan_for = Some(wanted);
        }
        // Stretches end at a wide gap, or when they have grown to what a chunk may take.
        let most = (16 * into.len()) as u64;
        let mut from = 0;
        while from < self.order.len() {
            let first = self.order[from].0;
            let mut to = from + 1;
            while to < self.order.len()
                && self.order[to].0 - self.order[to - 1].0 <= MOST_GAP
                && self.order[to].0 - first < most
            {
                to += 1;
            }
            self.bytes.resize((self.order[to - 1].0 - first) as usize + size, 0);
            file.read_scattered(&mut self.bytes, offset + first)?;
            for &(place, element) in &self.order[from..to] {
                into[element as usize * size..][..size]
                    .copy_from_slice(&self.bytes[(place - first) as usize..][..size]);
            }
            from = to;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use super::*;

    type Boxes = Vec<(Place, Vec<u64>, Vec<usize>)>;

    /// A grid of boxes with these cuts, and a file in which their elements (u16, numbered through the whole) lie one box after the other.
    fn cut(shape: &[usize], cuts: &[Vec<usize>]) -> (Boxes, Vec<DataFile>) {
        let edges: Vec<Vec<usize>> =
            cuts.iter().zip(shape).map(|(cuts, &length)| [&[0], &cuts[..], &[length]].concat()).collect();
        let (mut boxes, mut bytes) = (Vec::new(), Vec::new());
        let count: usize = edges.iter().map(|edges| edges.len() - 1).product();
        for mut number in 0..count {
            let (mut at, mut sizes) = (Vec::new(), Vec::new());
            for edges in &edges {
                let digit = number % (edges.len() - 1);
                number /= edges.len() - 1;
                at.push(edges[digit] as u64);
                sizes.push(edges[digit + 1] - edges[digit]);
            }
            boxes.push((Place::plain(0, bytes.len() as u64), at.clone(), sizes.clone()));
            let strides = super::super::contiguous(shape);
            for mut element in 0..sizes.iter().product::<usize>() as u64 {
                let mut position = 0;
                for d in (0..shape.len()).rev() {
                    position += (at[d] + element % sizes[d] as u64) * strides[d];
                    element /= sizes[d] as u64;
                }
                bytes.extend((position as u16).to_le_bytes());
            }
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&bytes).unwrap();
        let files = vec![DataFile::new(file.path(), crate::files::source::Input::File(file.reopen().unwrap()))];
        (boxes, files)
    }

    #[test]
    fn any_stretch_of_any_grid_is_read_in_order() {
        let shapes: [(Vec<usize>, Vec<Vec<usize>>); 5] = [
            (vec![13], vec![vec![1, 5, 6]]),
            (vec![7, 5], vec![vec![3, 4], vec![]]),
            (vec![7, 5], vec![vec![], vec![1, 4]]),
            (vec![6, 9], vec![vec![2, 3], vec![4, 5, 8]]),
            (vec![4, 3, 6], vec![vec![1], vec![2], vec![3, 5]]),
        ];
        let mut gather = Gather::default();
        for (shape, cuts) in shapes {
            let (boxes, files) = cut(&shape, &cuts);
            let place = Place::join(&shape, boxes).unwrap();
            let all = shape.iter().product::<usize>() as u64;
            for start in 0..all {
                for count in 1..=(all - start) as usize {
                    let mut bytes = vec![0; 2 * count];
                    gather.read(&files, &place, &shape, start, count, &mut bytes).unwrap();
                    let found = bytes.as_chunks().0.iter().map(|&bits| u64::from(u16::from_le_bytes(bits)));
                    assert!(found.eq(start..start + count as u64), "{shape:?} {start} {count}");
                }
                let spot = place.spot_of(&shape, start);
                assert!(place.spots().any(|known| known == spot));
            }
        }
    }

    #[test]
    fn pieces_that_do_not_make_a_whole_are_refused() {
        let at = |at: &[u64], sizes: &[usize]| (Place::plain(0, 0), at.to_vec(), sizes.to_vec());
        let join = |boxes: Boxes| Place::join(&[4, 4], boxes).map(drop).unwrap_err();
        assert!(join(vec![at(&[0, 0], &[3, 4])]).contains("12 of its 16 elements"));
        assert!(join(vec![at(&[0, 0], &[3, 4]), at(&[2, 0], &[2, 4])]).contains("another one has, too"));
        assert!(join(vec![at(&[0, 0], &[2, 4]), at(&[1, 2], &[3, 2]), at(&[2, 0], &[2, 2])]).contains("too"));
        assert!(join(vec![at(&[0, 0], &[4, 4]), at(&[4, 0], &[1, 4])]).contains("not inside"));
        assert!(join(vec![at(&[0], &[4])]).contains("not inside"));
        assert!(join(vec![at(&[u64::MAX, 0], &[1, 4])]).contains("not inside"));
        assert!(join(Vec::new()).contains("0 pieces"));
        // A pinwheel is no grid, and fine.
        let pinwheel = vec![
            at(&[0, 0], &[1, 2]),
            at(&[0, 2], &[2, 1]),
            at(&[2, 1], &[1, 2]),
            at(&[1, 0], &[2, 1]),
            at(&[1, 1], &[1, 1]),
        ];
        assert!(Place::join(&[3, 3], pinwheel).is_ok());
        let diagonal = (0..2000).map(|i| at(&[i, i], &[1, 1])).collect();
        assert!(Place::join(&[2000, 2000], diagonal).unwrap_err().contains("cells allowed"));
    }
}
