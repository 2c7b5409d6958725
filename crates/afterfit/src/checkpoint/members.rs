//! Which tensor is in which parameter group of the optimizer.

use std::collections::HashMap;

use afterfit_core::PathInfo;

use super::series::{Series, Treatment};
use super::training::GroupState;

/// The group of each tensor, and what proves it. Without names, parameters are in the order of the
/// optimizers and their groups: taken for the model's, if that fits in number and in shapes; else shapes alone must tell.
pub(super) fn tensors_of_groups(series: &Series, paths: &[PathInfo]) -> Option<(Vec<usize>, Proof)> {
    // (The last: before the first step there are no buffers to tell shapes by.)
    let groups = &series.trainings.iter().rev().find(|training| training.groups.len() == paths.len())?.groups;
    let named: HashMap<&str, usize> = groups
        .iter()
        .enumerate()
        .flat_map(|(group, state)| state.names.iter().map(move |name| (name.as_str(), group)))
        .collect();
    let parameters: Vec<usize> =
        (0..series.tensors.len()).filter(|&at| series.treatments[at] == Treatment::Average).collect();
    let mut found = vec![0; series.tensors.len()];
    if !named.is_empty() {
        for &at in &parameters {
            found[at] = *named.get(series.tensors[at].name.as_str())?;
        }
        return Some((found, Proof::Names));
    }
    let of_group = |(group, state): (usize, &'_ GroupState)| -> Vec<Numbered> {
        let shapes = state.numbers.iter().zip(&state.shapes);
        shapes.map(|(&number, shape)| ((state.optimizer_place, number), group, shape.clone())).collect()
    };
    let mut numbered: Vec<Numbered> = groups.iter().enumerate().flat_map(of_group).collect();
    numbered.sort();
    let shape = |at: usize| &series.tensors[at].shape;
    let fits = |(&at, (.., known)): (&usize, &Numbered)| known.as_ref().is_none_or(|known| known == shape(at));
    let in_order = numbered.len() == parameters.len() && parameters.iter().zip(&numbered).all(fits);
    // Groups of one path are as good as one.
    let first_alike = |group: usize| paths.iter().position(|path| *path == paths[group]).unwrap_or(group);
    numbered.iter_mut().for_each(|(_, group, _)| *group = first_alike(*group));
    let name = |at: usize| series.tensors[at].name.as_str();
    let by_shapes = || by_shapes(&numbered, &parameters, &shape, &name);
    let proved = by_optimizers(&numbered, &parameters, &shape)
        .or_else(by_shapes)
        .or_else(|| in_order.then(|| only_order(&numbered, &parameters, &shape)).flatten());
    // (Without the shapes of buffers, or where another order of the groups fits as well, the order is a guess.)
    let guessed = || in_order.then(|| numbered.iter().map(|(_, group, _)| *group).collect::<Vec<usize>>());
    let (groups, proof) = match proved {
        Some(groups) => (groups, Proof::Shapes),
        None => (guessed()?, Proof::Order),
    };
    parameters.iter().zip(groups).for_each(|(&at, group)| found[at] = group);
    Some((found, proof))
}

/// What says which tensor is in which parameter group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Proof {
    Names,
    Shapes,
    Order,
}

/// The order that the parameters have, if no other order of the groups fits the model's shapes.
fn only_order<'a>(
    numbered: &[Numbered],
    parameters: &[usize],
    shape: &impl Fn(usize) -> &'a Vec<usize>,
) -> Option<Vec<usize>> {
    if numbered.iter().any(|(.., shape)| shape.is_none()) {
        return None;
    }
    let blocks: Vec<&[Numbered]> = numbered.chunk_by(|a, b| a.1 == b.1).collect();
    let fits = |order: &[&[Numbered]]| {
        let shapes = order.iter().flat_map(|block| block.iter()).map(|(.., shape)| shape.as_ref());
        shapes.zip(parameters).all(|(known, &at)| known == Some(shape(at)))
    };
    // (Any two blocks in each other's place: what shuffles more of them than that is no habit.)
    for a in 0..blocks.len() {
        for b in a + 1..blocks.len() {
            let mut order = blocks.clone();
            order.swap(a, b);
            if fits(&order) {
                return None;
            }
        }
    }
    Some(numbered.iter().map(|(_, group, _)| *group).collect())
}

/// One optimizer after the other, each with the next of the model's tensors: right if their shapes are those of its parameters,
/// in whatever order, and it has one path for all.
fn by_optimizers<'a>(
    numbered: &[Numbered],
    parameters: &[usize],
    shape: &impl Fn(usize) -> &'a Vec<usize>,
) -> Option<Vec<usize>> {
    let mut groups = Vec::with_capacity(parameters.len());
    for own in numbered.chunk_by(|a, b| a.0.0 == b.0.0) {
        let tensors = parameters.get(groups.len()..groups.len() + own.len())?;
        let mut expected = own.iter().map(|(.., shape)| shape.as_ref()).collect::<Option<Vec<_>>>()?;
        let mut there: Vec<&Vec<usize>> = tensors.iter().map(|&at| shape(at)).collect();
        expected.sort_unstable();
        there.sort_unstable();
        if expected != there || own.iter().any(|(_, group, _)| *group != own[0].1) {
            return None;
        }
        groups.extend(std::iter::repeat_n(own[0].1, own.len()));
    }
    (groups.len() == parameters.len()).then_some(groups)
}

/// Every tensor is compared with every other.
const MOST_MATCHED: usize = 3000;

/// By shapes: those that one group alone has; then those whose module's other tensors are all of one group; then what is left
/// for one group alone.
fn by_shapes<'a>(
    numbered: &[Numbered],
    parameters: &[usize],
    shape: &impl Fn(usize) -> &'a Vec<usize>,
    name: &impl Fn(usize) -> &'a str,
) -> Option<Vec<usize>> {
    if parameters.len() > MOST_MATCHED || parameters.len() != numbered.len() {
        return None;
    }
    let mut left: HashMap<&[usize], Vec<usize>> = HashMap::new();
    for (_, group, shape) in numbered {
        left.entry(shape.as_deref()?).or_default().push(*group);
    }
    let mut found: HashMap<usize, usize> = HashMap::new();
    let module = |at: usize| name(at).rsplit_once('.').map_or("", |(module, _)| module);
    loop {
        let open: Vec<usize> = parameters.iter().copied().filter(|at| !found.contains_key(at)).collect();
        if open.is_empty() {
            return parameters.iter().map(|at| found.get(at).copied()).collect();
        }
        let only = |groups: &[usize]| groups.first().copied().filter(|first| groups.iter().all(|group| group == first));
        let alone = |&at: &usize| Some((at, only(left.get(&shape(at)[..])?)?));
        let with_its_module = |&at: &usize| {
            let siblings: Vec<usize> =
                found.iter().filter(|(other, _)| module(**other) == module(at)).map(|(_, group)| *group).collect();
            Some((at, only(&siblings).filter(|group| left[&shape(at)[..]].contains(group))?))
        };
        let next = open.iter().find_map(alone).or_else(|| open.iter().find_map(with_its_module));
        let (at, group) = next?;
        let groups = left.get_mut(&shape(at)[..])?;
        groups.swap_remove(groups.iter().position(|own| *own == group)?);
        found.insert(at, group);
    }
}

/// A parameter of an optimizer state: its optimizer and number, its group, the shape of its buffers.
type Numbered = ((usize, usize), usize, Option<Vec<usize>>);
