//! An image that is converted.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::atomic::AtomicBool,
};

use floe::remote::{ImageReference, Network, Version};
use floe_image::machine_architecture;
use floe_remote_cache::Digest;
use floe_sync::Mutex;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    document::Descriptor,
    error::{Error, Result},
    layer::{BuiltLayer, Share, build_error, merged_key},
    layout,
    place::Place,
    plan::Plan,
    registry::RegistrySource,
    settings::Settings,
    source::{LayerFile, Source},
};

/// An image that is converted, once or several times.
pub struct SourceImage {
    pub(crate) source: Box<dyn Source>,
    pub(crate) name: Option<String>,
    /// Where it is, if that is a registry.
    pub(crate) reference: Option<ImageReference>,
}

/// How the programs of an image are started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StartConfiguration {
    /// The environment, `NAME=VALUE` each.
    pub environment: Vec<String>,
    /// The program, with its first arguments.
    pub entrypoint: Vec<String>,
    /// Its other arguments, if the user gives none.
    pub arguments: Vec<String>,
    /// The working directory.
    pub directory: Option<String>,
    /// The user, and possibly the group behind a colon: names or numbers.
    pub user: Option<String>,
}

impl SourceImage {
    /// Opens the image.
    ///
    /// # Errors
    /// There is none, or the place is of another kind.
    pub fn open(place: &Place, network: &Network) -> Result<Self> {
        match place {
            Place::Registry(reference) => {
                let name = if let Version::Tag(tag) = &reference.version { Some(tag.clone()) } else { None };
                let source = Box::new(RegistrySource::open(reference, network)?);
                Ok(Self { source, name, reference: Some(reference.clone()) })
            }
            Place::Local { path, name } => {
                let (source, name) = layout::open(path, name.as_deref())?;
                Ok(Self { source, name, reference: None })
            }
        }
    }

    /// The same image. Its layers are copied once, however often it is converted; the copies are in the directory for temporary files.
    ///
    /// # Errors
    /// No directory can be created there.
    pub fn with_copies(self) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("floe-convert-").tempdir()?;
        let source = Box::new(Copies { source: self.source, directory, files: Mutex::default() });
        Ok(Self { source, ..self })
    }

    /// Merges the layers of the image for this machine into one EROFS image at `output`, which is not compressed. Returns how its programs
    /// are started.
    ///
    /// # Errors
    /// There is no image for this machine, a layer is broken, the output cannot be written, or `cancel` is set.
    pub fn merge(&self, output: &Path, settings: &Settings, cancel: &AtomicBool) -> Result<StartConfiguration> {
        let settings = Settings { compression: None, is_merged: true, profile: None, ..settings.clone() };
        let plan = Plan::read(&*self.source, &settings)?;
        let own = plan.manifests.iter().find_map(|planned| {
            let conversion = planned.conversion.as_ref()?;
            let is_own =
                conversion.platform.os == "linux" && conversion.platform.architecture == machine_architecture();
            is_own.then_some((planned, conversion))
        });
        let (planned, conversion) =
            own.ok_or_else(|| Error::failed(format!("it has no image for linux/{}", machine_architecture())))?;
        let (manifest, layers) = (planned.descriptor.digest()?, &planned.manifest.layers);
        let scratch = output.parent().unwrap_or(Path::new("."));
        let files = layers.iter().map(|layer| self.source.layer(&manifest, layer, scratch));
        let files = files.collect::<Result<Vec<LayerFile>>>()?;
        let paths: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
        let share = Share { jobs: settings.jobs, memory_bytes: settings.memory_bytes };
        let built = BuiltLayer::new(&paths, output, &settings, share, cancel);
        built.map_err(build_error(&merged_key(layers)?))?;
        Ok(StartConfiguration::of(&conversion.config))
    }
}

impl StartConfiguration {
    fn of(config: &Value) -> Self {
        let field = |name: &str| config.get("config").and_then(|config| config.get(name));
        let list = |name: &str| {
            let words = field(name).and_then(Value::as_array).into_iter().flatten();
            words.filter_map(|word| word.as_str().map(str::to_owned)).collect()
        };
        let text = |name: &str| field(name).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
        Self {
            environment: list("Env"),
            entrypoint: list("Entrypoint"),
            arguments: list("Cmd"),
            directory: text("WorkingDir"),
            user: text("User"),
        }
    }
}

/// An image whose layers are copied once.
struct Copies {
    source: Box<dyn Source>,
    directory: TempDir,
    files: Mutex<BTreeMap<Digest, LayerFile>>,
}

impl Source for Copies {
    fn root(&self) -> Result<(Descriptor, Vec<u8>)> {
        self.source.root()
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        self.source.document(descriptor)
    }

    fn small_blob(&self, descriptor: &Descriptor) -> Result<Vec<u8>> {
        self.source.small_blob(descriptor)
    }

    fn layer(&self, manifest: &Digest, layer: &Descriptor, _: &Path) -> Result<LayerFile> {
        let digest = layer.digest()?;
        let known = self.files.lock().get(&digest).map(|file| file.path.clone());
        if let Some(path) = known {
            return Ok(LayerFile { path, copy: None });
        }
        let file = self.source.layer(manifest, layer, self.directory.path())?;
        let path = file.path.clone();
        self.files.lock().insert(digest, file);
        Ok(LayerFile { path, copy: None })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn configurations_say_how_programs_start() {
        let config = json!({ "config": {
            "Env": ["PATH=/bin", 7], "Cmd": ["serve"], "Entrypoint": null, "WorkingDir": "/srv", "User": "",
        } });
        let expected = StartConfiguration {
            environment: vec!["PATH=/bin".to_owned()],
            arguments: vec!["serve".to_owned()],
            directory: Some("/srv".to_owned()),
            ..StartConfiguration::default()
        };
        assert_eq!(StartConfiguration::of(&config), expected);
        for none in [json!({}), json!({ "config": null }), json!([]), json!({ "config": "x" })] {
            assert_eq!(StartConfiguration::of(&none), StartConfiguration::default());
        }
    }
}
