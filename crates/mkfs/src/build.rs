//! Builds an image: scan, content, compress, layout, output.

use std::time::Instant;

use crate::{
    compress::{blocks::compress_blocks, compress},
    content::{ContentPlan, Launch, changed::ChangedFiles, fingerprints::put_fingerprints},
    error::{Error, Result},
    layout::{CompleteLayout, ErofsLayout, squashfs::SquashfsLayout},
    options::{Format, Options, Source},
    output::{
        CompleteImage, Summary,
        expected::{Verifier, verify},
    },
    progress::{Phase, Progress},
    scan::scan,
    tree::{OrderedNode, Tree},
};

/// Builds an image of `sources`. If several sources have the same path, the last one wins; directories are merged.
///
/// # Errors
/// A source cannot be read, changes meanwhile, or cannot be represented in the format; the image cannot be written; the
/// options contradict each other; or `progress` asked to stop. The output path then has no image, or keeps the previous
/// one.
pub fn build(options: &Options, sources: &[Source], progress: &mut dyn Progress) -> Result<Summary> {
    build_unnamed(options, sources, None, progress)?.finish(&[])
}

/// As [`build`], but the image does not get its name before [`CompleteImage::finish`]. The verifier, if there is one, reads the
/// image back.
///
/// # Errors
/// As for [`build`]; or the verifier finds a fault.
pub fn build_unnamed(
    options: &Options,
    sources: &[Source],
    verifier: Option<&mut dyn Verifier>,
    progress: &mut dyn Progress,
) -> Result<CompleteImage> {
    let begin = Instant::now();
    options.check()?;
    let (mut tree, mut warnings) = scan(options, sources, progress)?;
    let scan_time = begin.elapsed();
    let of_image = options.is_profile_of_several.then(|| own_profile(options, &tree));
    let options = of_image.as_ref().unwrap_or(options);

    let mut changed = ChangedFiles::new(&options.output);
    let (order, plan, layout) = loop {
        let order = tree.in_order();
        let prepared = put_fingerprints(&mut tree, &order, options, progress);
        match prepared.and_then(|()| store(&tree, &order, options, progress)) {
            Err(Error::Changed { path }) if !options.strict => changed.replace(&mut tree, &order, &path, progress)?,
            stored => {
                let (plan, layout) = stored?;
                break (order, plan, layout);
            }
        }
    };
    warnings.extend(changed.into_warnings());
    let data_time = begin.elapsed() - scan_time;

    let mut layout = layout.finish(&tree, &order, plan.launch.as_ref(), progress)?;

    let verify_begin = Instant::now();
    let verified = match verifier {
        Some(verifier) => Some(verify(verifier, &tree, &order, &plan.duplicates, &mut layout, options, progress)?),
        None => None,
    };
    let verify_time = verify_begin.elapsed();
    let mut summary = Summary {
        warnings,
        scan_time,
        data_time,
        profile_missing: plan.launch.as_ref().map_or(0, Launch::missing),
        verified,
        verify_time,
        ..Summary::of(&tree, &order, &plan.duplicates, &layout)
    };
    summary.total_time = begin.elapsed();
    CompleteImage::new(layout, summary, &options.temporaries)
}

/// The options, with the steps of the profile that are about entries of the tree.
fn own_profile(options: &Options, tree: &Tree) -> Options {
    let file_type = |path: &[u8]| tree.find(path).map(|node| tree.node(node).file_type());
    let profile = options.profile.as_ref().and_then(|profile| profile.of_image(file_type));
    Options { profile, ..options.clone() }
}

/// An image while it is laid out.
enum OpenLayout<'a> {
    Erofs(Box<ErofsLayout<'a>>),
    Squashfs(Box<SquashfsLayout<'a>>),
}

impl OpenLayout<'_> {
    fn finish(
        self,
        tree: &Tree,
        order: &[OrderedNode],
        launch: Option<&Launch<'_>>,
        progress: &mut dyn Progress,
    ) -> Result<CompleteLayout> {
        match self {
            Self::Erofs(layout) => layout.finish(tree, order, launch, progress),
            Self::Squashfs(layout) => layout.finish(tree, order, progress),
        }
    }
}

/// Stores the content of the files: decides what is stored, compresses it, and lays it out in a new image.
fn store<'a>(
    tree: &Tree,
    order: &[OrderedNode],
    options: &'a Options,
    progress: &mut dyn Progress,
) -> Result<(ContentPlan<'a>, OpenLayout<'a>)> {
    let plan = ContentPlan::new(tree, order, options, progress)?;
    if let Format::Squashfs(squashfs) = &options.format {
        let files = plan.block_files(tree, order, &options.tree_changes.priorities);
        let mut layout = SquashfsLayout::create(&files, &plan, options, squashfs)?;
        compress_blocks(&files, squashfs, options, progress, |blocks| layout.add(blocks))?;
        return Ok((plan, OpenLayout::Squashfs(Box::new(layout))));
    }
    let mut layout = ErofsLayout::create(tree, order, &plan, options)?;
    let to_store = plan.to_store(tree, order, options, progress)?;
    compress(&to_store, Phase::Data, options, progress, |piece| layout.add(piece))?;
    drop(to_store);
    layout.add_rest(tree, order, progress)?;
    Ok((plan, OpenLayout::Erofs(Box::new(layout))))
}
