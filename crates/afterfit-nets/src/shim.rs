//! The unsafe corner: what libtorch can do and tch does not offer (`shim/shim.cpp`).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};

use anyhow::{Context, Result, bail};
use tch::{Device, Tensor};
use torch_sys::C_tensor;

unsafe extern "C" {
    fn afterfit_sgd(
        weights: *mut C_tensor,
        gradient: *mut C_tensor,
        velocity: *mut C_tensor,
        rate: *mut C_tensor,
        momentum: f64,
        nesterov: bool,
        decay: f64,
    ) -> *mut c_char;
    fn afterfit_has_graphs() -> bool;
    fn afterfit_enter_stream() -> *mut c_char;
    fn afterfit_graph_new(graph: *mut *mut c_void) -> *mut c_char;
    fn afterfit_graph_begin(graph: *mut c_void) -> *mut c_char;
    fn afterfit_graph_end(graph: *mut c_void) -> *mut c_char;
    fn afterfit_graph_replay(graph: *mut c_void) -> *mut c_char;
    fn afterfit_graph_delete(graph: *mut c_void);
    fn free(memory: *mut c_void);
}

/// Turns a message of the shim into an error.
fn checked(message: *mut c_char) -> Result<()> {
    if message.is_null() {
        return Ok(());
    }
    // SAFETY: a message is a string made by strdup, ours to free.
    let text = unsafe {
        let text = CStr::from_ptr(message).to_string_lossy().into_owned();
        free(message.cast());
        text
    };
    // (libtorch adds its own call stack after the first line.)
    bail!("{}", text.lines().next().unwrap_or_default())
}

/// How `torch.optim.SGD` moves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// μ, 0 for plain SGD.
    pub momentum: f64,
    /// Look-ahead momentum.
    pub nesterov: bool,
    /// Weight decay.
    pub decay: f64,
}

impl Sgd {
    /// One step of all weights, in one kernel. `rate` is a number on their device, so that a recorded step can change
    /// it; `velocity` is needed where there is momentum.
    pub fn step(
        &self,
        weights: &mut Tensor,
        gradient: &Tensor,
        velocity: Option<&mut Tensor>,
        rate: &Tensor,
    ) -> Result<()> {
        let velocity = velocity.map_or(std::ptr::null_mut(), Tensor::as_mut_ptr);
        // SAFETY: the pointers are live tensors; those behind `as_ptr` are only read.
        checked(unsafe {
            afterfit_sgd(
                weights.as_mut_ptr(),
                gradient.as_ptr().cast_mut(),
                velocity,
                rate.as_ptr().cast_mut(),
                self.momentum,
                self.nesterov,
                self.decay,
            )
        })
    }
}

/// Whether this build can record CUDA graphs.
#[must_use]
pub(crate) fn has_graphs() -> bool {
    // SAFETY: no arguments, no state.
    unsafe { afterfit_has_graphs() }
}

/// From now on this thread works on a CUDA stream of its own, where work can be recorded.
pub(crate) fn enter_stream() -> Result<()> {
    // SAFETY: sets a thread-local of libtorch.
    checked(unsafe { afterfit_enter_stream() })
}

/// A CUDA graph.
#[derive(Debug)]
struct Graph(*mut c_void);

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `record`, and deleted nowhere else.
        unsafe { afterfit_graph_delete(self.0) }
    }
}

/// Ends a recording also when what is recorded panics: a graph must not be deleted while it records.
struct Recording<'a>(&'a Graph);

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        // SAFETY: the graph is alive, and recording.
        let _ = checked(unsafe { afterfit_graph_end(self.0.0) });
    }
}

/// Steps done one by one before they are recorded: cuDNN chooses its kernels in them.
const UNRECORDED: u32 = 3;

/// Work on a GPU that is done over and over: recorded once, then replayed without the cost of launching its hundreds of
/// kernels. Elsewhere it is simply done.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Times to do it before it is recorded; `None` where nothing is.
    unrecorded: Option<u32>,
    graph: Option<Graph>,
}

impl Recorder {
    /// For work on `device`. To record, this thread must have entered a stream.
    pub(crate) fn new(records: bool, device: Device) -> Self {
        Self { unrecorded: (records && device.is_cuda() && has_graphs()).then_some(UNRECORDED), graph: None }
    }

    /// Does the work, which must be the same every time. The tensors it reads and writes outside itself must live as
    /// long as this recorder, in the same place: whoever owns it owns them.
    pub(crate) fn run(&mut self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        match (&self.graph, self.unrecorded) {
            (None, Some(0)) => {
                let mut graph = std::ptr::null_mut();
                // SAFETY: the graph is made here, used by this thread alone, and deleted once, by `drop`.
                checked(unsafe { afterfit_graph_new(&mut graph) })?;
                let graph = Graph(graph);
                // SAFETY: as above.
                checked(unsafe { afterfit_graph_begin(graph.0) })?;
                let recording = Recording(&graph);
                let worked = work();
                std::mem::forget(recording);
                // SAFETY: it is recording.
                let ended = checked(unsafe { afterfit_graph_end(graph.0) });
                worked.and(ended).context("work on the GPU could not be recorded")?;
                self.graph = Some(graph);
            }
            (None, left) => {
                self.unrecorded = left.map(|left| left - 1);
                return work();
            }
            (Some(_), _) => {}
        }
        // SAFETY: a complete graph; its tensors are alive, as `run` asks.
        self.graph.as_ref().map_or(Ok(()), |graph| checked(unsafe { afterfit_graph_replay(graph.0) }))
    }
}
