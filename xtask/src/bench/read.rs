//! Reading through mounts, side by side.

use std::{
    collections::HashMap,
    env,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use floe_testkit::{corpus::Format, target_dir, workspace_root};
use serde_json::json;

use super::{
    cold::Cold,
    contender::Contender,
    listing::{self, ListedFile},
    results::Results,
    session::Session,
    subject::{Image, SourceTree},
    workload::{self, Measurement, Scene, SubjectKind, Workload},
};
use crate::complaint::{Complaint, During, Outcome};

/// Reading through mounts: Floe beside erofsfuse or squashfuse_ll, and the kernel. Rounds are interleaved; before each
/// run the image is unmounted and its pages, and for root all caches of the machine, are dropped. The table shows
/// medians, and in brackets how many times as good Floe is. Peers that are not there are left out by name.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Folders to make the image of; several are put side by side. Copied once into target/bench.
    #[arg(long, value_name = "DIR", default_values = ["/usr/share"])]
    tree: Vec<PathBuf>,
    /// Read this image, instead of making one.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tree", "mkfs_options"])]
    image: Option<PathBuf>,
    /// The format of the image that is made.
    #[arg(long, value_parser = ["erofs", "squashfs"], default_value = "erofs")]
    format: String,
    /// Options for mkfs.erofs (-zlz4 if none) or mksquashfs. Given several times, each makes an image of its own.
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    mkfs_options: Vec<String>,
    /// Where the peers' programs are, if not on PATH.
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// How many times everything is measured.
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// How long random reads go on, in seconds.
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Only these workloads: whole-tree, random-1, random-8, find-N, stat-wide; compare is only done when named.
    #[arg(long, value_delimiter = ',')]
    workload: Vec<String>,
    /// How many finds run in parallel.
    #[arg(long, value_delimiter = ',', default_values_t = [8])]
    finds: Vec<usize>,
    /// Only these contenders: floe, erofsfuse, squashfuse_ll, kernel, and names of variants.
    #[arg(long, value_delimiter = ',')]
    contender: Vec<String>,
    /// A further Floe, with options of `floe mount`: NAME=OPTIONS.
    #[arg(long, value_name = "NAME=OPTIONS", allow_hyphen_values = true)]
    variant: Vec<String>,
    /// Measure this program, instead of building Floe.
    #[arg(long, value_name = "PROGRAM")]
    floe: Option<PathBuf>,
    /// Drop the image's pages only, also as root: on a machine that others use.
    #[arg(long)]
    image_caches_only: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let floe = arguments.floe.clone().map_or_else(build_floe, Ok)?;
    let workloads = arguments.workloads()?;
    let mut reports = Vec::new();
    let mut failures = Vec::new();
    for (title, subjects) in arguments.subjects(&workloads)? {
        let tree = &subjects[&SubjectKind::Tree];
        let (contenders, absent) = arguments.contenders(tree.format, &floe)?;
        let results = measure(arguments, &subjects, &contenders, &workloads)?;
        let names: Vec<String> = contenders.iter().map(|contender| contender.name.clone()).collect();
        if arguments.json {
            let versions: HashMap<&String, &String> =
                contenders.iter().map(|contender| (&contender.name, &contender.version)).collect();
            reports.push(json!({
                "image": title,
                "image_bytes": tree.path.metadata()?.len(),
                "rounds": arguments.rounds,
                "cpus": thread::available_parallelism().map_or(0, usize::from),
                "versions": versions,
                "absent": absent,
                "results": results.json(&names),
                "failures": results.failures(),
            }));
        } else {
            println!("{title}: {} MiB, {} rounds", tree.path.metadata()?.len() >> 20, arguments.rounds);
            for contender in &contenders {
                println!("  {}: {}", contender.name, contender.version);
            }
            for reason in &absent {
                println!("  skipped: {reason}");
            }
            println!("\n{}", results.table(&names));
        }
        failures.extend_from_slice(results.failures());
    }
    if arguments.json {
        println!("{:#}", json!(reports));
    }
    Complaint::from_lines("runs failed", &failures)
}

fn measure(
    arguments: &Arguments,
    subjects: &HashMap<SubjectKind, Image>,
    contenders: &[Contender],
    workloads: &[Box<dyn Workload>],
) -> Outcome<Results> {
    let cold = Cold::best(arguments.image_caches_only);
    let mut listings: HashMap<SubjectKind, Vec<ListedFile>> = HashMap::new();
    for (kind, image) in subjects {
        let first = contenders.first().ok_or(Complaint::new("nobody is left to measure"))?;
        let session = Session::new(first, &image.path, image.format)?;
        listings.insert(*kind, listing::list(&session.path())?);
    }
    let mut results = Results::default();
    for round in 0..arguments.rounds {
        for workload in workloads {
            let image = &subjects[&workload.subject()];
            // Who comes first must not always be the same.
            let mut order: Vec<&Contender> = contenders.iter().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for contender in order {
                let title = workload.title();
                eprintln!("round {}: {title}: {}", round + 1, contender.name);
                cold.drop_caches(&image.path)?;
                let session = Session::new(contender, &image.path, image.format)?;
                let scene = Scene {
                    mount: &session.path(),
                    files: &listings[&workload.subject()],
                    tree: image.tree.as_deref(),
                    round,
                    duration: Duration::from_secs_f64(arguments.seconds),
                };
                match workload.run(&scene) {
                    Ok(mut measurements) => {
                        let resident = session.resident_mib_max();
                        measurements.extend(resident.map(|mib| Measurement::less("peak RSS MiB", mib)));
                        results.add(&title, &contender.name, measurements);
                    }
                    Err(complaint) => results.add_failure(format!("{title}: {}: {complaint:?}", contender.name)),
                }
            }
        }
    }
    Ok(results)
}

impl Arguments {
    fn workloads(&self) -> Outcome<Vec<Box<dyn Workload>>> {
        let mut workloads = workload::all(&self.finds);
        let unknown = |name: &&String| !workloads.iter().any(|workload| workload.name() == **name);
        if let Some(name) = self.workload.iter().find(unknown) {
            let names: Vec<String> = workloads.iter().map(|workload| workload.name()).collect();
            return Err(Complaint::new(format!("there is no workload {name}; there are {}", names.join(", "))));
        }
        workloads.retain(|workload| match self.workload.is_empty() {
            true => workload.is_default(),
            false => self.workload.contains(&workload.name()),
        });
        Ok(workloads)
    }

    fn contenders(&self, format: Format, floe: &Path) -> Outcome<(Vec<Contender>, Vec<String>)> {
        let mut contenders = vec![Contender::floe("floe", floe, &[])?];
        for variant in &self.variant {
            let (name, options) =
                variant.split_once('=').ok_or(Complaint::new(format!("{variant} is not NAME=OPTIONS")))?;
            let options: Vec<String> = options.split_whitespace().map(str::to_owned).collect();
            contenders.push(Contender::floe(name, floe, &options)?);
        }
        let (peers, absent) = Contender::peers(format, self.peers.as_deref());
        contenders.extend(peers);
        contenders.retain(|contender| self.contender.is_empty() || self.contender.contains(&contender.name));
        Ok((contenders, absent))
    }

    /// What is to be read: each image with the wide directory made by the same options, where a workload asks for it.
    fn subjects(&self, workloads: &[Box<dyn Workload>]) -> Outcome<Vec<(String, HashMap<SubjectKind, Image>)>> {
        let format = if self.format == "squashfs" { Format::Squashfs } else { Format::Erofs };
        let wide = |format: Format, options: &str| -> Outcome<Option<Image>> {
            if !workloads.iter().any(|workload| workload.subject() == SubjectKind::Wide) {
                return Ok(None);
            }
            SourceTree::wide()?.image(format, options, self.peers.as_deref()).map(Some)
        };
        if let Some(path) = &self.image {
            let image = Image::at(path)?;
            let wide = wide(image.format, default_options(image.format))?.map(|image| (SubjectKind::Wide, image));
            let subjects = [(SubjectKind::Tree, image)].into_iter().chain(wide).collect();
            return Ok(vec![(path.display().to_string(), subjects)]);
        }
        let tree = SourceTree::copy_of(&self.tree)?;
        let mut options: Vec<&str> = self.mkfs_options.iter().map(String::as_str).collect();
        if options.is_empty() {
            options.push(default_options(format));
        }
        let mut subjects = Vec::new();
        for options in options {
            let image = tree.image(format, options, self.peers.as_deref())?;
            let wide = wide(format, options)?.map(|image| (SubjectKind::Wide, image));
            let title = format!("{} {options} of {}", format.name(), join(&self.tree));
            subjects.push((title, [(SubjectKind::Tree, image)].into_iter().chain(wide).collect()));
        }
        Ok(subjects)
    }
}

const fn default_options(format: Format) -> &'static str {
    match format {
        Format::Erofs => "-zlz4",
        Format::Squashfs => "-comp zstd",
    }
}

fn join(folders: &[PathBuf]) -> String {
    let names: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    names.join(" and ")
}

/// Builds Floe as users get it.
fn build_floe() -> Outcome<PathBuf> {
    let program = env::var_os("CARGO").unwrap_or("cargo".into());
    let mut command = Command::new(program);
    command.args(["build", "--release", "--package", "floe"]).current_dir(workspace_root());
    if !command.status().during("cargo cannot be run")?.success() {
        return Err(Complaint::new("Floe does not build"));
    }
    Ok(target_dir().join("release/floe"))
}
