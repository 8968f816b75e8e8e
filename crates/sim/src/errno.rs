//! Error numbers of Linux, by name.

use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $value:literal,)*) => {
        impl Errno {
            $(pub const $name: Self = Self($value);)*

            /// The name, where this table has it.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(concat!("E", stringify!($name))),)*
                    _ => None,
                }
            }

            /// From a name as in `EEXIST`.
            pub fn from_name(name: &str) -> Option<Self> {
                $(if name == concat!("E", stringify!($name)) {
                    return Some(Self::$name);
                })*
                None
            }
        }
    };
}

errnos! {
    PERM = 1,
    NOENT = 2,
    INTR = 4,
    IO = 5,
    NXIO = 6,
    TOOBIG = 7,
    BADF = 9,
    ACCES = 13,
    BUSY = 16,
    EXIST = 17,
    NOTDIR = 20,
    ISDIR = 21,
    INVAL = 22,
    FBIG = 27,
    NOSPC = 28,
    ROFS = 30,
    MLINK = 31,
    RANGE = 34,
    NAMETOOLONG = 36,
    NOTEMPTY = 39,
    LOOP = 40,
    NODATA = 61,
    NODEV = 19,
    OPNOTSUPP = 95,
    STALE = 116,
    UCLEAN = 117,
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}
