//! `IMAGE:/path`: a path inside a volume, as scp writes places.

use super::meant::{self, meant_in};
use crate::failure::{At, Failure, host_error, image_name};
use crate::show::name::{self, Shown};
use crate::show::quoted::Quoted;
use myriad_engine::WalkError;
use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A file in a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub image: PathBuf,
    /// Starts with a slash.
    pub path: Vec<u8>,
}

impl Place {
    /// A step of a walk that began here; an error names the file where it happened.
    pub fn step<T>(&self, step: Result<T, WalkError>) -> anyhow::Result<T> {
        step.or_else(|WalkError { path, error }| Err(error).at(self.below(&path)))
    }

    /// Splits `IMAGE:/path` at the last `:/` that follows the name of an existing file, so that both the image's path
    /// and the one inside may contain `:/`. If no such file exists, at the last `:/`.
    pub fn parse(argument: &OsStr) -> Result<Self, PlaceError> {
        Self::split_argument(argument, |image| image.exists())
    }

    /// As `parse`, but an image alone means its root.
    pub fn parse_or_root(argument: &OsStr) -> Result<Self, PlaceError> {
        match Self::parse(argument) {
            Err(PlaceError::NoPath { image, .. }) if !argument.as_bytes().ends_with(b":") => {
                Ok(Self { image, path: b"/".to_vec() })
            }
            other => other,
        }
    }

    fn split_argument(argument: &OsStr, exists: impl Fn(&Path) -> bool) -> Result<Self, PlaceError> {
        let bytes = argument.as_bytes();
        let at = |index: usize| Self { image: image(&bytes[..index]), path: bytes[index + 1..].to_vec() };
        let colons = || (0..bytes.len()).rev().filter(|&index| bytes[index..].starts_with(b":/"));
        let Some(last) = colons().next() else {
            return Err(PlaceError::NoPath { image: image(bytes) });
        };
        let place = colons().map(at).find(|place| exists(&place.image)).unwrap_or_else(|| at(last));
        if place.image.as_os_str().is_empty() {
            return Err(PlaceError::NoImage { shown: Shown(bytes).to_string() });
        }
        Ok(place)
    }

    /// Whether both lie in one image, by whichever of its paths.
    pub fn is_in_image_of(&self, other: &Self) -> bool {
        self.image == other.image || is_same_file(&self.image, &other.image)
    }

    /// `IMAGE:/path`, byte for byte.
    pub fn bytes(&self) -> Vec<u8> {
        [self.image.as_os_str().as_bytes(), b":", &self.path].concat()
    }

    /// The file `name` in this directory.
    pub fn below(&self, name: &[u8]) -> Self {
        Self { image: self.image.clone(), path: name::join(&self.path, name) }
    }

    /// The place as GNU's tools would write it in what they print.
    pub fn quoted(&self) -> String {
        Quoted(&[self.image.as_os_str().as_bytes(), b":", &self.path].concat()).to_string()
    }

    /// The directory that the path's last name is in, and that name. The root, and what ends in `.` or `..`, is the
    /// directory `.` in itself.
    pub fn split(&self) -> (Self, &[u8]) {
        let Some(name) = name::last(&self.path) else { return (self.clone(), b".") };
        let end = self.path.iter().rposition(|&byte| byte != b'/').map_or(0, |last| last + 1);
        let directory = &self.path[..end - name.len()];
        (Self { image: self.image.clone(), path: directory.to_vec() }, name)
    }

    /// Whether the path has no component but `.` and `..`.
    pub fn is_root(&self) -> bool {
        self.path.split(|&byte| byte == b'/').all(|name| matches!(name, b"" | b"." | b".."))
    }
}

/// Whether two paths lead to one file, or one device.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let key = |path: &Path| {
        let found = path.metadata().ok()?;
        let is_device = found.file_type().is_block_device();
        Some(if is_device { (0, found.rdev(), is_device) } else { (found.dev(), found.ino(), is_device) })
    };
    key(one).is_some_and(|found| key(other) == Some(found))
}

fn image(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", image_name(&self.image), Shown(&self.path))
    }
}

/// Why an argument names no place in a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// What was meant is looked for only if the user is told: the argument may be a file of the host, and meant as one.
    #[error("`{}` names no path in a volume; write {}", shown(image), meant_or_form(image))]
    NoPath { image: PathBuf },
    #[error("`{shown}` names no image; write IMAGE:/path")]
    NoImage { shown: String },
}

fn shown(image: &Path) -> String {
    Shown(image.as_os_str().as_bytes()).to_string()
}

fn meant_or_form(image: &Path) -> String {
    meant_in(image.as_os_str()).unwrap_or_else(|| "IMAGE:/path".into())
}

/// An error of the host about a path that nothing has; it says so if a place in a volume is meant.
pub fn unreachable_name(path: &Path, error: io::Error) -> anyhow::Error {
    let is_candidate = matches!(error.kind(), io::ErrorKind::NotADirectory | io::ErrorKind::NotFound);
    if let Ok(place) = Place::parse(path.as_os_str())
        && is_candidate
        && place.image.exists()
    {
        let what = "a path in a volume, where the volume itself is to be named";
        return Failure::new(image_name(path), what, format!("write {}", image_name(&place.image))).into();
    }
    match meant::meant(path.as_os_str().as_bytes()).filter(|_| is_candidate) {
        Some(meant) => {
            let what = format!("{}, but a Myriad volume has the first part of that name", host_error(&error));
            Failure::new(image_name(path), what, format!("write {meant}")).into()
        }
        None if error.kind() == io::ErrorKind::NotFound => {
            Failure::new(image_name(path), host_error(&error), "check the name; myriad mkfs makes a volume").into()
        }
        None => Err::<(), _>(error).at(image_name(path)).expect_err("an error stays one"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_split_at_the_last_colon_slash_that_makes_sense() {
        /// Argument; files that exist; image and path, or none.
        type Case = (&'static str, &'static [&'static str], Option<(&'static str, &'static str)>);
        let cases: &[Case] = &[
            ("a.img:/x/y", &[], Some(("a.img", "/x/y"))),
            ("a.img:/", &[], Some(("a.img", "/"))),
            ("c:d/a.img:/x", &[], Some(("c:d/a.img", "/x"))),
            ("c:/d/a.img:/x", &["c:/d/a.img"], Some(("c:/d/a.img", "/x"))),
            ("a.img:/b:/c", &["a.img"], Some(("a.img", "/b:/c"))),
            ("a.img:/b:/c", &["a.img", "a.img:/b"], Some(("a.img:/b", "/c"))),
            ("a.img:/b:/c", &[], Some(("a.img:/b", "/c"))),
            ("a.img:/x:y", &[], Some(("a.img", "/x:y"))),
            ("a.img://x", &[], Some(("a.img", "//x"))),
            ("a.img", &[], None),
            ("a.img:", &[], None),
            ("a.img:x", &[], None),
            ("/x", &[], None),
            (":/x", &[], None),
            ("", &[], None),
        ];
        for (argument, files, expected) in cases {
            let place =
                Place::split_argument(OsStr::new(argument), |image| files.iter().any(|file| Path::new(file) == image))
                    .ok();
            let expected = expected.map(|(image, path)| Place { image: image.into(), path: path.into() });
            assert_eq!(place, expected, "{argument} with {files:?}");
        }
    }

    #[test]
    fn bytes_of_a_path_are_kept() {
        let argument = OsStr::from_bytes(b"a.img:/caf\xe9\n");
        let place = Place::split_argument(argument, |_| false).unwrap();
        assert_eq!(place.path, b"/caf\xe9\n");
        assert_eq!(place.to_string(), "a.img:$'/caf\\351\\n'");
    }

    #[test]
    fn a_place_is_a_name_in_a_directory() {
        for (path, directory, name) in
            [("/a", "/", "a"), ("/a/b", "/a/", "b"), ("/a//b//", "/a//", "b"), ("/", "/", "."), ("/a/..", "/a/..", ".")]
        {
            let place = Place { image: "v".into(), path: path.into() };
            let (found, last) = place.split();
            assert_eq!((&*found.path, last), (directory.as_bytes(), name.as_bytes()), "{path}");
        }
    }

    #[test]
    fn an_image_alone_is_its_root_where_that_is_meant() {
        assert_eq!(Place::parse_or_root(OsStr::new("a.img")).unwrap().path, b"/");
        assert!(Place::parse_or_root(OsStr::new("a.img:")).is_err());
        for (path, is_root) in [("/", true), ("/..", true), ("/./", true), ("/a/..", false), ("/a", false)] {
            assert_eq!(Place { image: "a".into(), path: path.into() }.is_root(), is_root, "{path}");
        }
    }
}
