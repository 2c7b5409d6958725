//! Arrays of Python that are read where they lie: the package's one line of unsafe code.

use numpy::{Element, PyArray2, PyReadonlyArray2};
use pyo3::prelude::*;

/// An array that stays where it is: held, it is neither freed nor resized. Should somebody write to it meanwhile (from another
/// thread, for this one is waiting), the fit is of whatever it finds, as it is in numpy and scikit-learn.
pub(crate) struct Held<T: 'static> {
    values: &'static [T],
    _array: Py<PyArray2<T>>,
}

impl<T> AsRef<[T]> for Held<T> {
    fn as_ref(&self) -> &[T] {
        self.values
    }
}

impl<T: Element> Held<T> {
    /// Fails where neither rows nor columns lie one after the other.
    pub(crate) fn new(x: &PyReadonlyArray2<'_, T>) -> PyResult<Self> {
        let values = x.as_slice()?;
        // A lifetime would not do: work that somebody has stopped waiting for (`wait.rs`) may look at the array after this call.
        //
        // SAFETY: the numbers are aligned, initialized and as many as the slice says: so says numpy's own slice. They stay for as
        // long as the array does, which `_array` keeps, and nobody is handed them for longer than `self` is borrowed. Any bits
        // are a number, so that one that is written to meanwhile is at worst another one.
        #[allow(unsafe_code)]
        let values = unsafe { std::slice::from_raw_parts(values.as_ptr(), values.len()) };
        Ok(Self { values, _array: (**x).clone().unbind() })
    }
}
