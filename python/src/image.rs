//! The Python class `Image`.

use std::{
    collections::{HashMap, hash_map::Entry},
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::PathBuf,
    sync::Arc,
};

use floe::{FileType, ImageFiles, ImageSource, Nid, Offset, OpenOptions, ReadRequest};
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyString},
};

use crate::{
    buffer_sys, errors,
    file::{File, check_len, len_within, read_bytes},
    python_source::PythonSource,
    stat::Stat,
};

/// An EROFS or SquashFS image.
#[pyclass(frozen, module = "floe")]
pub(crate) struct Image {
    opened: floe::Image,
    /// The arguments with which another process opens it; `None` if it was opened from an object.
    arguments: Option<(PathBuf, Py<PyDict>)>,
}

/// A directory entry.
#[pyclass(frozen, module = "floe")]
pub(crate) struct DirEntry {
    name: Vec<u8>,
    #[pyo3(get)]
    inode: u64,
    file_type: FileType,
}

/// A path in an image: text or bytes.
struct ImagePath(Vec<u8>);

impl<'a, 'py> FromPyObject<'a, 'py> for ImagePath {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self(bytes.as_bytes().to_vec()));
        }
        Ok(Self(object.extract::<OsString>()?.into_vec()))
    }
}

/// A read of many: the path, the offset and the length.
type Request = (ImagePath, u64, u64);

/// A part of a file that exists.
struct Piece {
    nid: Nid,
    offset: u64,
    len: usize,
}

impl ImagePath {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

/// Decodes a name like `os.fsdecode`: bytes that are not UTF-8 become surrogates.
fn decoded(name: Vec<u8>) -> OsString {
    OsString::from_vec(name)
}

impl Image {
    fn find(&self, py: Python<'_>, path: &ImagePath, follows: bool) -> PyResult<Nid> {
        let image = &self.opened;
        let found = py.detach(|| if follows { image.resolve(&path.0) } else { image.resolve_link(&path.0) });
        found.map_err(|error| errors::of_path(&error))
    }

    /// The inode and the size of a file. Does not need the interpreter lock.
    fn file(&self, path: &ImagePath) -> PyResult<(Nid, u64)> {
        let nid = self.opened.resolve(&path.0).map_err(|error| errors::of_path(&error))?;
        let attr = self.opened.attr(nid).map_err(|error| errors::of_image(&error))?;
        match attr.file_type {
            FileType::Regular => Ok((nid, attr.size)),
            FileType::Directory => Err(errors::is_a_directory(&path.text())),
            _ => Err(PyValueError::new_err(format!("{}: not a regular file", path.text()))),
        }
    }

    /// The parts of files that `requests` select. Each path is resolved once.
    fn pieces(&self, requests: &[Request]) -> PyResult<Vec<Piece>> {
        let mut files: HashMap<&[u8], (Nid, u64)> = HashMap::new();
        let mut pieces = Vec::with_capacity(requests.len());
        for (path, offset, length) in requests {
            let (nid, size) = match files.entry(&path.0) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(place) => *place.insert(self.file(path)?),
            };
            pieces.push(Piece { nid, offset: *offset, len: len_within(size, *offset, *length)? });
        }
        Ok(pieces)
    }

    fn entries(&self, py: Python<'_>, path: &ImagePath) -> PyResult<Vec<DirEntry>> {
        let nid = self.find(py, path, true)?;
        let entries = py.detach(|| {
            let entry = |entry: floe::DirectoryEntry| DirEntry {
                name: entry.name,
                inode: entry.inode_number,
                file_type: entry.file_type,
            };
            self.opened.read_dir(nid).map(|result| result.map(entry)).collect::<Result<Vec<_>, _>>()
        });
        entries.map_err(|error| errors::of_image(&error))
    }
}

#[pymethods]
impl Image {
    #[new]
    #[pyo3(signature = (source, *, offset = None, cache_bytes = None))]
    fn new(source: &Bound<'_, PyAny>, offset: Option<&Bound<'_, PyAny>>, cache_bytes: Option<u64>) -> PyResult<Self> {
        let py = source.py();
        let mut options = OpenOptions::default();
        if let Some(offset) = offset {
            options.offset = match offset.cast::<PyString>() {
                Ok(text) if text.to_cow()? == "auto" => Offset::Auto,
                Ok(_) => return Err(PyValueError::new_err("offset must be a number of bytes or \"auto\"")),
                Err(_) => match offset.extract()? {
                    0 => Offset::None,
                    at => Offset::At(at),
                },
            };
        }
        if let Some(bytes) = cache_bytes {
            (options.engine.cache_bytes, options.engine.cache_growth_bytes) = (bytes, 0);
        }
        let mut arguments = None;
        let opened = if let Ok(path) = source.extract::<PathBuf>() {
            let keywords = PyDict::new(py);
            keywords.set_item("offset", offset)?;
            keywords.set_item("cache_bytes", cache_bytes)?;
            arguments = Some((std::path::absolute(&path)?, keywords.unbind()));
            py.detach(|| floe::Image::open(path, &options))
        } else if source.hasattr("read")? && source.hasattr("seek")? {
            let source = PythonSource::new(source)?;
            let name = source.name();
            let source: Arc<dyn ImageSource> = Arc::new(source);
            py.detach(|| {
                let files = ImageFiles::of_source(&name, &source, &options)?;
                floe::Image::of(files, &options)
            })
        } else {
            return Err(PyTypeError::new_err("the image must be a path, or an object with read and seek"));
        };
        Ok(Self { opened: opened.map_err(|error| errors::of_open(&error))?, arguments })
    }

    /// What pickle passes to the constructor: the process that unpickles the image opens it again.
    fn __getnewargs_ex__(&self, py: Python<'_>) -> PyResult<((PathBuf,), Py<PyDict>)> {
        let (path, keywords) = self.arguments.as_ref().ok_or_else(|| {
            PyTypeError::new_err("an image that was opened from an object cannot be passed to another process")
        })?;
        Ok(((path.clone(),), keywords.clone_ref(py)))
    }

    #[getter]
    fn format(&self) -> &'static str {
        self.opened.file_system().info().format
    }

    #[getter]
    fn label(&self) -> String {
        String::from_utf8_lossy(&self.opened.file_system().info().label).into_owned()
    }

    #[getter]
    fn block_size(&self) -> u32 {
        self.opened.file_system().info().block_size
    }

    #[getter]
    fn inode_count(&self) -> u64 {
        self.opened.file_system().info().inode_count
    }

    #[pyo3(signature = (path, *, follow_symlinks = true))]
    fn stat(&self, py: Python<'_>, path: ImagePath, follow_symlinks: bool) -> PyResult<Stat> {
        let nid = self.find(py, &path, follow_symlinks)?;
        let attr = py.detach(|| self.opened.attr(nid)).map_err(|error| errors::of_image(&error))?;
        Ok(attr.into())
    }

    fn exists(&self, py: Python<'_>, path: ImagePath) -> PyResult<bool> {
        match py.detach(|| self.opened.resolve(&path.0)) {
            Ok(_) => Ok(true),
            Err(floe::PathError::Image(error)) => Err(errors::of_image(&error)),
            Err(_) => Ok(false),
        }
    }

    #[pyo3(signature = (path = ImagePath(b"/".to_vec())))]
    fn listdir(&self, py: Python<'_>, path: ImagePath) -> PyResult<Vec<OsString>> {
        Ok(self.entries(py, &path)?.into_iter().map(|entry| decoded(entry.name)).collect())
    }

    #[pyo3(signature = (path = ImagePath(b"/".to_vec())))]
    fn scandir(&self, py: Python<'_>, path: ImagePath) -> PyResult<Vec<DirEntry>> {
        self.entries(py, &path)
    }

    #[pyo3(signature = (path = ImagePath(b"/".to_vec())))]
    fn walk(&self, py: Python<'_>, path: ImagePath) -> PyResult<Walk> {
        let nid = self.find(py, &path, true)?;
        Ok(Walk(std::sync::Mutex::new(self.opened.walk_from(nid, &path.0))))
    }

    fn readlink(&self, py: Python<'_>, path: ImagePath) -> PyResult<OsString> {
        let nid = self.find(py, &path, false)?;
        let target =
            py.detach(|| self.opened.file_system().read_link(nid)).map_err(|error| errors::of_image(&error))?;
        Ok(decoded(target))
    }

    fn xattrs<'py>(&self, py: Python<'py>, path: ImagePath) -> PyResult<Bound<'py, PyDict>> {
        let nid = self.find(py, &path, false)?;
        let mut all = Vec::new();
        let result = py.detach(|| {
            self.opened.file_system().xattrs(nid, &mut |xattr| {
                all.push((decoded(xattr.name.to_vec()), xattr.value.to_vec()));
                std::ops::ControlFlow::Continue(())
            })
        });
        result.map_err(|error| errors::of_image(&error))?;
        let xattrs = PyDict::new(py);
        for (name, value) in all {
            xattrs.set_item(name, PyBytes::new(py, &value))?;
        }
        Ok(xattrs)
    }

    fn open(&self, py: Python<'_>, path: ImagePath) -> PyResult<File> {
        let (nid, size) = py.detach(|| self.file(&path))?;
        Ok(File::new(self.opened.clone(), nid, path.text(), size))
    }

    #[pyo3(signature = (path, offset = 0, length = None))]
    fn read<'py>(
        &self,
        py: Python<'py>,
        path: ImagePath,
        offset: u64,
        length: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (nid, size) = py.detach(|| self.file(&path))?;
        read_bytes(py, &self.opened, nid, (offset, length.unwrap_or(u64::MAX)), size)
    }

    fn read_many<'py>(&self, py: Python<'py>, requests: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let requests: Vec<Request> = requests.try_iter()?.map(|request| request?.extract()).collect::<PyResult<_>>()?;
        let pieces = py.detach(|| self.pieces(&requests))?;
        let (bytes, results) = buffer_sys::new_filled(py, pieces.iter().map(|piece| piece.len), |outputs| {
            let pairs = outputs.into_iter().zip(&pieces);
            let mut reads: Vec<ReadRequest<'_>> =
                pairs.map(|(output, &Piece { nid, offset, .. })| ReadRequest { nid, offset, output }).collect();
            self.opened.read_many(&mut reads)
        })?;
        for (result, piece) in results.into_iter().zip(&pieces) {
            let read = result.map_err(|error| errors::of_image(&error))?;
            check_len(read, piece.len)?;
        }
        PyList::new(py, bytes)
    }

    fn __repr__(&self) -> String {
        format!("<floe.Image format={} inodes={}>", self.format(), self.inode_count())
    }
}

#[pymethods]
impl DirEntry {
    #[getter]
    fn name(&self) -> OsString {
        decoded(self.name.clone())
    }

    fn is_dir(&self) -> bool {
        self.file_type == FileType::Directory
    }

    fn is_file(&self) -> bool {
        self.file_type == FileType::Regular
    }

    fn is_symlink(&self) -> bool {
        self.file_type == FileType::Symlink
    }

    fn __repr__(&self) -> String {
        format!("<floe.DirEntry {:?}>", String::from_utf8_lossy(&self.name))
    }
}

/// Iterates over an image: paths with their attributes.
#[pyclass(frozen, module = "floe")]
pub(crate) struct Walk(std::sync::Mutex<floe::Walk>);

#[pymethods]
impl Walk {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<(OsString, Stat)>> {
        let next = py.detach(|| self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next());
        match next {
            None => Ok(None),
            Some(Ok(entry)) => Ok(Some((decoded(entry.path), entry.attr.into()))),
            Some(Err(error)) => Err(errors::FloeError::new_err(error.to_string())),
        }
    }
}
