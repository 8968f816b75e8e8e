//! File types and permission bits.

use myriad_engine::{FileType, Stat};

/// The letter that `ls -l` and `find -type` use, except that `ls` writes `-` for a regular file.
pub fn letter(file_type: FileType) -> char {
    match file_type {
        FileType::Fifo => 'p',
        FileType::CharDevice => 'c',
        FileType::Directory => 'd',
        FileType::BlockDevice => 'b',
        FileType::File => 'f',
        FileType::Symlink => 'l',
        FileType::Socket => 's',
    }
}

/// The type in words.
pub fn name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Fifo => "fifo",
        FileType::CharDevice => "character device",
        FileType::Directory => "directory",
        FileType::BlockDevice => "block device",
        FileType::File => "regular file",
        FileType::Symlink => "symbolic link",
        FileType::Socket => "socket",
    }
}

/// `drwxr-xr-x`.
pub fn string(file_type: FileType, mode: u16) -> String {
    let mut text = String::with_capacity(10);
    text.push(if file_type == FileType::File { '-' } else { letter(file_type) });
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => set,
            (false, true) => unset,
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// The type in the words of GNU's questions.
pub fn described(stat: &Stat) -> &'static str {
    match stat.file_type() {
        FileType::File if stat.size == 0 => "regular empty file",
        FileType::CharDevice => "character special file",
        FileType::BlockDevice => "block special file",
        other => name(other),
    }
}

/// The type as JSON says it.
pub fn json_name(file_type: FileType) -> String {
    name(file_type).replace(' ', "_")
}

/// Permission bits in octal, `0755`.
pub fn parse(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 8)
        .ok()
        .filter(|&mode| mode <= 0o7777)
        .ok_or_else(|| format!("`{text}` is not a mode; write it in octal, as in 0755"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_in_ls() {
        for (file_type, mode, text) in [
            (FileType::Directory, 0o755, "drwxr-xr-x"),
            (FileType::File, 0o4755, "-rwsr-xr-x"),
            (FileType::File, 0o2644, "-rw-r-Sr--"),
            (FileType::Directory, 0o1777, "drwxrwxrwt"),
            (FileType::Symlink, 0o1776, "lrwxrwxrwT"),
        ] {
            assert_eq!(string(file_type, mode), text);
        }
        assert_eq!(parse("0750"), Ok(0o750));
        assert!(parse("789").is_err() && parse("10000").is_err() && parse("u+x").is_err());
    }
}
