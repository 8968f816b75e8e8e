//! `debug map`: where directories, inodes and data lie, so that one sees what a placement policy does.

mod canvas;
mod draw;
mod png;
mod survey;
mod svg;

use super::raw::RawVolume;
use crate::context::Context;
use crate::failure::{At, Failure, image_name};
use crate::show::size;
use crate::volume::{Guard, OpenArgs};
use anyhow::Result;
use myriad_engine::{Fs, MountOptions};
use serde_json::json;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use survey::{Kind, Row, Survey};

#[derive(clap::Args)]
pub struct MapArgs {
    /// Draw a picture into this file, whose name ends in .svg or .png; may be given more than once
    #[arg(short, long, value_name = "FILE")]
    out: Vec<PathBuf>,
    /// Write over pictures that are there
    #[arg(long, requires = "out")]
    force: bool,
    /// Title of the picture, instead of the volume's name and size
    #[arg(long, value_name = "TEXT", requires = "out")]
    title: Option<String>,
}

/// What a picture is written as.
#[derive(Clone, Copy)]
enum Format {
    Svg,
    Png,
}

pub fn show(context: &Context, volume: RawVolume, args: &MapArgs, open: &OpenArgs, json: bool) -> Result<()> {
    // Whatever would be refused is, before a long walk.
    let outs: Vec<(&Path, Format)> = args.out.iter().map(|path| check(path, args.force)).collect::<Result<_>>()?;
    let name = &volume.name;
    let log = volume.log_device.clone().map(|log| log as Arc<_>);
    let options = MountOptions { read_only: true, background: false, ..open.mount_options() };
    let fs = Fs::open_device(Arc::clone(&volume.device) as Arc<_>, log, options).at(name)?;
    let survey = Survey::take(&fs, &volume.geometry, name)?;
    fs.close().at(name)?;
    let total = size::human(volume.geometry.block_count << volume.geometry.block_bits);
    let title = args.title.clone().unwrap_or_else(|| format!("{name}, {total}"));
    for (path, format) in outs {
        let bytes = match format {
            Format::Svg => svg::render(&survey, &title),
            Format::Png => png::render(&survey, &title)?,
        };
        write(path, &bytes, args.force)?;
    }
    let mut out = context.out();
    if json { Ok(out.json(&as_json(&survey))?) } else { print(&mut *out, &survey) }
}

/// The form of a picture by its name, if it may be written there.
fn check(path: &Path, force: bool) -> Result<(&Path, Format)> {
    let place = image_name(path);
    let extension = path.extension().and_then(|extension| extension.to_str()).map(str::to_ascii_lowercase);
    let format = match extension.as_deref() {
        Some("svg") => Format::Svg,
        Some("png") => Format::Png,
        _ => return Err(Failure::usage(place, "a picture's name ends in .svg or .png", "").into()),
    };
    if let Ok(found) = path.symlink_metadata() {
        if found.is_dir() {
            return Err(Failure::new(place, "is a directory", "name a file").into());
        } else if !force {
            return Err(Failure::new(place, "is there already", "--force writes over it").into());
        }
    }
    // A volume is no picture, whatever it is called.
    Guard::Always.check(path)?;
    Ok((path, format))
}

fn write(path: &Path, bytes: &[u8], force: bool) -> Result<()> {
    let place = image_name(path);
    let mut options = File::options();
    options.write(true).create(true).truncate(true).create_new(!force);
    let mut file = match options.open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            return Err(Failure::new(place, "is there already", "--force writes over it").into());
        }
        file => file.at(&place)?,
    };
    file.write_all(bytes).inspect_err(|_| drop(std::fs::remove_file(path))).at(&place)
}

fn print(out: &mut impl Write, survey: &Survey) -> Result<()> {
    writeln!(
        out,
        "D directories, i inodes of files, # data, + other metadata, . free; a sign is {}",
        survey.cell_size()
    )?;
    writeln!(
        out,
        "{:>10} {:>11}  {:cells$}  {:>6} {:>7} {:>8}",
        "at",
        "region",
        "",
        "dirs",
        "inodes",
        "data",
        cells = survey.columns
    )?;
    for row in &survey.rows {
        let signs: String = row.cells.iter().map(|cell| cell.first().map_or('.', Kind::sign)).collect();
        let (at, data) = (survey.label(row), size::human(row.data_blocks * survey.block_size));
        let regions = survey.regions_of(row);
        writeln!(out, "{at:>10} {regions:>11}  {signs}  {:>6} {:>7} {data:>8}", row.directories, row.files)?;
    }
    for line in survey.nearness() {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn as_json(survey: &Survey) -> serde_json::Value {
    let row = |row: &Row| {
        json!({
            "block": row.first_block, "blocks": row.blocks, "directories": row.directories, "inodes": row.files,
            "data_blocks": row.data_blocks, "directory_blocks": row.directory_blocks, "free_blocks": row.free_blocks,
        })
    };
    let near = &survey.near;
    json!({
        "block_size": survey.block_size, "region_blocks": survey.region_blocks, "cell_blocks": survey.cell_blocks,
        "directories": near.directories, "files": near.files, "regions": near.regions,
        "regions_with_directories": near.regions_with_directories,
        "directories_in_region_of_parent": near.directories_near, "files_in_region_of_directory": near.files_near,
        "rows": survey.rows.iter().map(row).collect::<Vec<_>>(),
    })
}
