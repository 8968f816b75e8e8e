//! Paths of a transfer: relative, clean, bytes.

/// Longest path that an archive may give. Linux takes 4096 bytes in one call; trees may be deeper than that.
pub const PATH_MAX: usize = 64 << 10;
/// Longest name of a file, on every file system of Linux and in a volume.
const NAME_MAX: usize = 255;

/// A path of an archive, taken apart and put together again: no leading or trailing slash, no `.`. One that leads out of
/// the target, or that no file can have, is refused in words that follow its name.
pub fn clean(path: &[u8]) -> Result<Vec<u8>, &'static str> {
    if path.len() > PATH_MAX {
        return Err("is longer than 64 KiB");
    }
    if path.is_empty() {
        return Err("is empty");
    }
    if path.contains(&0) {
        return Err("holds a NUL");
    }
    let mut cleaned = Vec::with_capacity(path.len());
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err("leads out of the target by `..`; it is left out"),
            name if name.len() > NAME_MAX => return Err("has a name of more than 255 bytes in it"),
            name => {
                if !cleaned.is_empty() {
                    cleaned.push(b'/');
                }
                cleaned.extend_from_slice(name);
            }
        }
    }
    Ok(cleaned)
}

/// Directory and name; a path without slash is in the directory ``.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below_the_target() {
        let long = "x".repeat(256);
        let cases: &[(&str, Option<&str>)] = &[
            ("a", Some("a")),
            ("./a//b/", Some("a/b")),
            ("/etc/passwd", Some("etc/passwd")),
            ("///", Some("")),
            (".", Some("")),
            ("..", None),
            ("a/../../b", None),
            ("a/..", None),
            ("..a/b..", Some("..a/b..")),
            ("a\0b", None),
            ("", None),
            (&long, None),
        ];
        for (path, expected) in cases {
            assert_eq!(clean(path.as_bytes()).ok().as_deref(), expected.map(str::as_bytes), "{path}");
        }
        assert!(clean(&b"a/".repeat(PATH_MAX)).is_err());
        assert_eq!((split(b"a/b/c"), split(b"a")), ((&b"a/b"[..], &b"c"[..]), (&b""[..], &b"a"[..])));
    }
}
