//! The one unsafe corner: what libtorch can do and tch does not offer (`shim/shim.cpp`).
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_void};

use anyhow::{Result, bail};
use tch::Tensor;
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
pub fn has_graphs() -> bool {
    // SAFETY: no arguments, no state.
    unsafe { afterfit_has_graphs() }
}

/// From now on this thread works on a CUDA stream of its own, where work can be recorded.
pub fn enter_stream() -> Result<()> {
    // SAFETY: sets a thread-local of libtorch.
    checked(unsafe { afterfit_enter_stream() })
}

/// Work on the GPU, recorded once and replayed without the cost of launching its hundreds of kernels.
#[derive(Debug)]
pub struct Graph(*mut c_void);

impl Graph {
    /// Records what `work` asks of the GPU, without doing it. Tensors it uses must outlive the graph and keep their place.
    pub fn record(work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the graph is made here, used by this thread alone, and deleted once, by `drop`.
        unsafe {
            checked(afterfit_graph_new(&mut graph))?;
            let graph = Self(graph);
            checked(afterfit_graph_begin(graph.0))?;
            let worked = work();
            let ended = checked(afterfit_graph_end(graph.0));
            worked?;
            ended?;
            Ok(graph)
        }
    }

    /// Does the recorded work.
    pub fn replay(&self) -> Result<()> {
        // SAFETY: as above.
        checked(unsafe { afterfit_graph_replay(self.0) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `record`, and deleted nowhere else.
        unsafe { afterfit_graph_delete(self.0) }
    }
}
