//! The Python module `floe._floe`.

mod buffer_sys;
mod errors;
mod file;
mod image;
mod python_source;
mod stat;

use pyo3::{prelude::*, types::PyModule};

#[pymodule(gil_used = false)]
fn _floe(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("FloeError", module.py().get_type::<errors::FloeError>())?;
    module.add_class::<image::Image>()?;
    module.add_class::<file::File>()?;
    module.add_class::<stat::Stat>()?;
    module.add_class::<image::DirEntry>()?;
    Ok(())
}
