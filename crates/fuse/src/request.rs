//! From bytes to requests. Total: whatever the bytes, the answer is a request or an error, never a panic.
//!
//! A request is a header, the structure of its kind (often empty), and a payload of names or data. On the ring the three
//! come apart, so [`decode_parts`] takes them so; [`decode`] splits what comes from /dev/fuse.

use crate::wire::{self, opcode, *};
use zerocopy::FromBytes;

/// A request from the kernel.
#[derive(Debug)]
pub struct Request<'a> {
    pub header: InHeader,
    pub operation: Operation<'a>,
}

impl Request<'_> {
    pub fn name(&self) -> &'static str {
        wire::opcode_name(self.header.opcode).unwrap_or("unknown")
    }
}

/// What is asked. Nodes are those of the header unless said otherwise.
#[derive(Debug)]
pub enum Operation<'a> {
    Lookup {
        name: &'a [u8],
    },
    Forget {
        lookups: u64,
    },
    BatchForget {
        nodes: Forgets<'a>,
    },
    GetAttr,
    Statx {
        mask: u32,
    },
    SetAttr(SetAttrIn),
    ReadLink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    MkNod {
        name: &'a [u8],
        args: MknodIn,
    },
    MkDir {
        name: &'a [u8],
        args: MkdirIn,
    },
    Unlink {
        name: &'a [u8],
    },
    RmDir {
        name: &'a [u8],
    },
    Rename {
        name: &'a [u8],
        new_parent: u64,
        new_name: &'a [u8],
        flags: u32,
    },
    Link {
        node: u64,
        name: &'a [u8],
    },
    Open(OpenIn),
    Create {
        name: &'a [u8],
        args: CreateIn,
    },
    TmpFile(CreateIn),
    Read(ReadIn),
    Write {
        args: WriteIn,
        data: &'a [u8],
    },
    Release(ReleaseIn),
    Flush,
    Fsync,
    FsyncDir,
    SyncFs,
    OpenDir,
    ReadDir {
        args: ReadIn,
        plus: bool,
    },
    ReleaseDir,
    StatFs,
    GetXattr {
        name: &'a [u8],
        size: u32,
    },
    SetXattr {
        name: &'a [u8],
        value: &'a [u8],
        args: SetXattrIn,
    },
    ListXattr {
        size: u32,
    },
    RemoveXattr {
        name: &'a [u8],
    },
    Access {
        mask: u32,
    },
    Fallocate(FallocateIn),
    Lseek(LseekIn),
    CopyFileRange {
        args: CopyFileRangeIn,
        wide: bool,
    },
    Ioctl {
        args: IoctlIn,
        data: &'a [u8],
    },
    Init(InitIn),
    Interrupt,
    Destroy,
    /// One that we do not serve, or do not know.
    Other,
}

/// The nodes of a BATCH_FORGET.
#[derive(Clone, Debug)]
pub struct Forgets<'a>(&'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = ForgetOne;

    fn next(&mut self) -> Option<ForgetOne> {
        let (one, rest) = ForgetOne::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(one)
    }
}

/// Bytes that are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("{length} bytes are too few for a request's header")]
    NoHeader { length: usize },
    #[error("request {unique}: {length} bytes came, and its header says {stated}")]
    Length { unique: u64, length: usize, stated: u32 },
    #[error("request {unique}: arguments of {opcode} are cut off or lack the end of a name")]
    Arguments { unique: u64, opcode: u32 },
}

impl DecodeError {
    /// Which request to answer with EINVAL; none without a header.
    pub fn unique(&self) -> Option<u64> {
        match *self {
            Self::NoHeader { .. } => None,
            Self::Length { unique, .. } | Self::Arguments { unique, .. } => Some(unique),
        }
    }
}

/// In which forms the kernel sends requests that have several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// SETXATTR begins with its first two fields only, as it did before Linux 5.13.
    pub short_setxattr: bool,
}

/// Decodes one message as read from /dev/fuse.
pub fn decode(bytes: &[u8], dialect: Dialect) -> Result<Request<'_>, DecodeError> {
    let (header, rest) =
        InHeader::read_from_prefix(bytes).map_err(|_| DecodeError::NoHeader { length: bytes.len() })?;
    if header.len as usize != bytes.len() {
        return Err(DecodeError::Length { unique: header.unique, length: bytes.len(), stated: header.len });
    }
    if dialect.short_setxattr && header.opcode == opcode::SETXATTR {
        let mut args = [0; size_of::<SetXattrIn>()];
        let parts = rest.split_at_checked(SETXATTR_SHORT);
        let (short, payload) = parts.ok_or(DecodeError::Arguments { unique: header.unique, opcode: header.opcode })?;
        args[..SETXATTR_SHORT].copy_from_slice(short);
        return decode_parts(header, &args, payload);
    }
    let size = args_size(header.opcode);
    match rest.split_at_checked(size) {
        Some((args, payload)) => decode_parts(header, args, payload),
        None => Err(DecodeError::Arguments { unique: header.unique, opcode: header.opcode }),
    }
}

/// Size of the fields of [`SetXattrIn`] that every kernel sends.
const SETXATTR_SHORT: usize = 8;

/// Size of the structure that begins a request's arguments.
fn args_size(opcode: u32) -> usize {
    match opcode {
        opcode::FORGET => size_of::<ForgetIn>(),
        opcode::BATCH_FORGET => size_of::<BatchForgetIn>(),
        opcode::GETATTR => size_of::<GetAttrIn>(),
        opcode::STATX => size_of::<StatxIn>(),
        opcode::SETATTR => size_of::<SetAttrIn>(),
        opcode::MKNOD => size_of::<MknodIn>(),
        opcode::MKDIR => size_of::<MkdirIn>(),
        opcode::RENAME => size_of::<RenameIn>(),
        opcode::RENAME2 => size_of::<Rename2In>(),
        opcode::LINK => size_of::<LinkIn>(),
        opcode::OPEN | opcode::OPENDIR => size_of::<OpenIn>(),
        opcode::CREATE | opcode::TMPFILE => size_of::<CreateIn>(),
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => size_of::<ReadIn>(),
        opcode::WRITE => size_of::<WriteIn>(),
        opcode::RELEASE | opcode::RELEASEDIR => size_of::<ReleaseIn>(),
        opcode::FLUSH => size_of::<FlushIn>(),
        opcode::FSYNC | opcode::FSYNCDIR => size_of::<FsyncIn>(),
        opcode::SYNCFS => size_of::<SyncFsIn>(),
        opcode::GETXATTR | opcode::LISTXATTR => size_of::<GetXattrIn>(),
        opcode::SETXATTR => size_of::<SetXattrIn>(),
        opcode::ACCESS => size_of::<AccessIn>(),
        opcode::FALLOCATE => size_of::<FallocateIn>(),
        opcode::LSEEK => size_of::<LseekIn>(),
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => size_of::<CopyFileRangeIn>(),
        opcode::IOCTL => size_of::<IoctlIn>(),
        opcode::INTERRUPT => size_of::<InterruptIn>(),
        // INIT grew over time; it is read from the payload.
        _ => 0,
    }
}

/// Decodes a request whose parts came apart. `args` may be longer than the structure of its kind.
pub fn decode_parts<'a>(header: InHeader, args: &[u8], payload: &'a [u8]) -> Result<Request<'a>, DecodeError> {
    // What we negotiate brings no extensions; a kernel that sends some all the same puts them last.
    let extensions = usize::from(header.total_extlen) * 8;
    let payload = payload.len().checked_sub(extensions).map(|len| &payload[..len]);
    let operation = payload.and_then(|payload| operation(header.opcode, args, payload));
    match operation {
        Some(operation) => Ok(Request { header, operation }),
        None => Err(DecodeError::Arguments { unique: header.unique, opcode: header.opcode }),
    }
}

fn args_of<T: FromBytes>(args: &[u8]) -> Option<T> {
    Some(T::read_from_prefix(args).ok()?.0)
}

/// The bytes before the next NUL, and what follows it.
fn split_name(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = payload.iter().position(|&byte| byte == 0)?;
    Some((&payload[..end], &payload[end + 1..]))
}

fn operation<'a>(opcode: u32, args: &[u8], payload: &'a [u8]) -> Option<Operation<'a>> {
    let name = || split_name(payload).map(|(name, _)| name);
    Some(match opcode {
        opcode::LOOKUP => Operation::Lookup { name: name()? },
        opcode::FORGET => Operation::Forget { lookups: args_of::<ForgetIn>(args)?.nlookup },
        opcode::BATCH_FORGET => {
            let count = args_of::<BatchForgetIn>(args)?.count as usize;
            let bytes = count.checked_mul(size_of::<ForgetOne>())?;
            Operation::BatchForget { nodes: Forgets(payload.get(..bytes)?) }
        }
        opcode::GETATTR => args_of::<GetAttrIn>(args).map(|_| Operation::GetAttr)?,
        opcode::STATX => Operation::Statx { mask: args_of::<StatxIn>(args)?.sx_mask },
        opcode::SETATTR => Operation::SetAttr(args_of(args)?),
        opcode::READLINK => Operation::ReadLink,
        opcode::SYMLINK => {
            let (name, rest) = split_name(payload)?;
            Operation::Symlink { name, target: split_name(rest)?.0 }
        }
        opcode::MKNOD => Operation::MkNod { name: name()?, args: args_of(args)? },
        opcode::MKDIR => Operation::MkDir { name: name()?, args: args_of(args)? },
        opcode::UNLINK => Operation::Unlink { name: name()? },
        opcode::RMDIR => Operation::RmDir { name: name()? },
        opcode::RENAME | opcode::RENAME2 => {
            let (new_parent, flags) = if opcode == opcode::RENAME {
                (args_of::<RenameIn>(args)?.newdir, 0)
            } else {
                let args: Rename2In = args_of(args)?;
                (args.newdir, args.flags)
            };
            let (name, rest) = split_name(payload)?;
            Operation::Rename { name, new_parent, new_name: split_name(rest)?.0, flags }
        }
        opcode::LINK => Operation::Link { node: args_of::<LinkIn>(args)?.oldnodeid, name: name()? },
        opcode::OPEN => Operation::Open(args_of(args)?),
        opcode::CREATE => Operation::Create { name: name()?, args: args_of(args)? },
        opcode::TMPFILE => Operation::TmpFile(args_of(args)?),
        opcode::READ => Operation::Read(args_of(args)?),
        opcode::WRITE => {
            let args: WriteIn = args_of(args)?;
            Operation::Write { args, data: payload.get(..args.size as usize)? }
        }
        opcode::RELEASE => Operation::Release(args_of(args)?),
        opcode::FLUSH => Operation::Flush,
        opcode::FSYNC => Operation::Fsync,
        opcode::FSYNCDIR => Operation::FsyncDir,
        opcode::SYNCFS => Operation::SyncFs,
        opcode::OPENDIR => Operation::OpenDir,
        opcode::READDIR | opcode::READDIRPLUS => {
            Operation::ReadDir { args: args_of(args)?, plus: opcode == opcode::READDIRPLUS }
        }
        opcode::RELEASEDIR => Operation::ReleaseDir,
        opcode::STATFS => Operation::StatFs,
        opcode::GETXATTR => Operation::GetXattr { name: name()?, size: args_of::<GetXattrIn>(args)?.size },
        opcode::SETXATTR => {
            let args: SetXattrIn = args_of(args)?;
            let (name, rest) = split_name(payload)?;
            Operation::SetXattr { name, value: rest.get(..args.size as usize)?, args }
        }
        opcode::LISTXATTR => Operation::ListXattr { size: args_of::<GetXattrIn>(args)?.size },
        opcode::REMOVEXATTR => Operation::RemoveXattr { name: name()? },
        opcode::ACCESS => Operation::Access { mask: args_of::<AccessIn>(args)?.mask },
        opcode::FALLOCATE => Operation::Fallocate(args_of(args)?),
        opcode::LSEEK => Operation::Lseek(args_of(args)?),
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
            Operation::CopyFileRange { args: args_of(args)?, wide: opcode == opcode::COPY_FILE_RANGE_64 }
        }
        opcode::IOCTL => {
            let args: IoctlIn = args_of(args)?;
            Operation::Ioctl { args, data: payload.get(..args.in_size as usize)? }
        }
        opcode::INIT => Operation::Init(init_in(payload)?),
        opcode::INTERRUPT => Operation::Interrupt,
        opcode::DESTROY => Operation::Destroy,
        _ => Operation::Other,
    })
}

/// INIT as long as the kernel's protocol makes it; what it lacks is zero.
fn init_in(payload: &[u8]) -> Option<InitIn> {
    const SHORTEST: usize = 16;
    let mut whole = [0; size_of::<InitIn>()];
    let len = payload.len().min(whole.len());
    (len >= SHORTEST).then(|| {
        whole[..len].copy_from_slice(&payload[..len]);
        zerocopy::transmute!(whole)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    fn decode(bytes: &[u8]) -> Result<Request<'_>, DecodeError> {
        super::decode(bytes, Dialect::default())
    }

    /// A message of one kind with these arguments.
    fn message(opcode: u32, parts: &[&[u8]]) -> Vec<u8> {
        let body: Vec<u8> = parts.concat();
        let header = InHeader { len: (40 + body.len()) as u32, opcode, unique: 7, nodeid: 9, ..InHeader::default() };
        [header.as_bytes(), &body].concat()
    }

    #[test]
    fn parts_are_found() {
        let bytes =
            message(opcode::RENAME2, &[Rename2In { newdir: 3, flags: 1, padding: 0 }.as_bytes(), b"old\0new\0"]);
        match decode(&bytes).unwrap().operation {
            Operation::Rename { name: b"old", new_parent: 3, new_name: b"new", flags: 1 } => {}
            other => panic!("{other:?}"),
        }
        let write = WriteIn { size: 3, offset: 5, ..WriteIn::default() };
        match decode(&message(opcode::WRITE, &[write.as_bytes(), b"abc"])).unwrap().operation {
            Operation::Write { args, data: b"abc" } => assert_eq!(args.offset, 5),
            other => panic!("{other:?}"),
        }
        let forgets = [ForgetOne { nodeid: 1, nlookup: 2 }, ForgetOne { nodeid: 3, nlookup: 4 }];
        let head = BatchForgetIn { count: 2, dummy: 0 };
        match decode(&message(opcode::BATCH_FORGET, &[head.as_bytes(), forgets.as_bytes()])).unwrap().operation {
            Operation::BatchForget { nodes } => {
                let pairs: Vec<_> = nodes.map(|one| (one.nodeid, one.nlookup)).collect();
                assert_eq!(pairs, [(1, 2), (3, 4)]);
            }
            other => panic!("{other:?}"),
        }
    }

    /// The first eight bytes of the name were taken for fields that Linux before 5.13 does not send.
    #[test]
    fn the_short_form_of_setxattr_is_understood() {
        let dialect = Dialect { short_setxattr: true };
        let args = SetXattrIn { size: 2, flags: 1, ..SetXattrIn::default() };
        let tail = [&args.as_bytes()[..SETXATTR_SHORT], b"user.comment\0vv"].concat();
        let bytes = message(opcode::SETXATTR, &[&tail]);
        match super::decode(&bytes, dialect).unwrap().operation {
            Operation::SetXattr { name: b"user.comment", value: b"vv", args } => {
                assert_eq!((args.flags, args.setxattr_flags), (1, 0));
            }
            other => panic!("{other:?}"),
        }
        for len in 0..tail.len() {
            let error = super::decode(&message(opcode::SETXATTR, &[&tail[..len]]), dialect).unwrap_err();
            assert_eq!(error, DecodeError::Arguments { unique: 7, opcode: opcode::SETXATTR });
        }
    }

    #[test]
    fn what_is_cut_off_is_refused() {
        // Every request, complete and then one byte shorter each time.
        let write = WriteIn { size: 3, ..WriteIn::default() };
        let set = SetXattrIn { size: 2, ..SetXattrIn::default() };
        let ioctl = IoctlIn { in_size: 4, ..IoctlIn::default() };
        let batch = BatchForgetIn { count: 1, dummy: 0 };
        let tails: [(u32, Vec<u8>); 5] = [
            (opcode::WRITE, [write.as_bytes(), b"abc"].concat()),
            (opcode::SETXATTR, [set.as_bytes(), b"user.a\0vv"].concat()),
            (opcode::IOCTL, [ioctl.as_bytes(), b"1234"].concat()),
            (opcode::BATCH_FORGET, [batch.as_bytes(), &[0; 16]].concat()),
            (opcode::SYMLINK, b"name\0target\0".to_vec()),
        ];
        for (opcode, tail) in tails {
            assert!(decode(&message(opcode, &[&tail])).is_ok(), "{opcode}");
            for len in 0..tail.len() {
                let error = decode(&message(opcode, &[&tail[..len]])).unwrap_err();
                assert_eq!(error, DecodeError::Arguments { unique: 7, opcode });
            }
        }
        assert_eq!(decode(&[0; 39]).unwrap_err().unique(), None);
        let mut wrong = message(opcode::READLINK, &[]);
        wrong[0] += 1;
        assert_eq!(decode(&wrong).unwrap_err(), DecodeError::Length { unique: 7, length: 40, stated: 41 });
    }

    #[test]
    fn any_bytes_have_an_answer() {
        // Every kind, with arguments of every length, all bits set or none, and extensions longer than the message.
        for opcode in 0..80 {
            for len in 0..200 {
                for (fill, extlen) in [(0, 0), (0xff, 0), (b'a', 0), (0, 1), (0, u16::MAX)] {
                    let mut bytes = message(opcode, &[&vec![fill; len]]);
                    bytes[36..38].copy_from_slice(&u16::to_ne_bytes(extlen));
                    if let Ok(Request { operation: Operation::BatchForget { nodes }, .. }) = decode(&bytes) {
                        assert!(nodes.count() * 16 <= len);
                    }
                }
            }
        }
    }
}
