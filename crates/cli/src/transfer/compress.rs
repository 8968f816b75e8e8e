//! Compressed streams: told by their first bytes when read, by the name's end when written.

use std::io::{self, Chain, Cursor, Read, Write};
use std::path::Path;

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
    Xz,
}

/// Ends of names, and what they mean. With `.tar`, also the names of archives.
const SUFFIXES: &[(&str, Compression)] = &[
    (".tar", Compression::None),
    (".tar.gz", Compression::Gzip),
    (".tgz", Compression::Gzip),
    (".tar.zst", Compression::Zstd),
    (".tzst", Compression::Zstd),
    (".tar.xz", Compression::Xz),
    (".txz", Compression::Xz),
];

impl Compression {
    /// What the name of an archive says; `None` if it is not one.
    pub fn of_archive(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_lowercase();
        SUFFIXES.iter().find(|(suffix, _)| name.ends_with(suffix)).map(|&(_, compression)| compression)
    }
}

/// Memory that a hostile stream may make us take: zstd's own limit of what every program must accept is 8 MiB, but
/// `--long=27` is usual for big archives.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;
const XZ_MEMORY_MAX: u64 = 256 << 20;

/// The content of a stream that may be compressed.
pub fn decoder(mut input: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
    let mut magic = [0; 6];
    let mut length = 0;
    while length < magic.len() {
        match input.read(&mut magic[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let whole: Chain<_, _> = Cursor::new(magic[..length].to_vec()).chain(input);
    Ok(match &magic {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            let mut decoder = zstd::Decoder::new(whole)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
            Box::new(decoder)
        }
        b"\xfd7zXZ\0" => {
            let flags = liblzma::stream::CONCATENATED;
            let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY_MAX, flags).map_err(io::Error::other)?;
            Box::new(liblzma::read::XzDecoder::new_stream(whole, stream))
        }
        [b'B', b'Z', b'h', ..] => return Err(io::Error::other("bzip2 is not read here; pipe it through bzip2 -d")),
        _ => Box::new(whole),
    })
}

/// A stream that is compressed as it is written.
pub enum Encoder<W: Write> {
    Plain(Valve<W>),
    Gzip(flate2::write::GzEncoder<Valve<W>>),
    Zstd(zstd::Encoder<'static, Valve<W>>),
    Xz(liblzma::write::XzEncoder<Valve<W>>),
}

/// What a compressor writes to. Some of them end their stream when they are dropped, and a stream that was cut short must
/// not end: then this is shut.
pub struct Valve<W> {
    output: W,
    is_shut: bool,
}

impl<W: Write> Write for Valve<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_shut { Err(io::Error::other("the stream was cut short")) } else { self.output.write(bytes) }
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.is_shut { Ok(()) } else { self.output.flush() }
    }
}

impl<W: Write> Encoder<W> {
    pub fn new(output: W, compression: Compression) -> io::Result<Self> {
        let output = Valve { output, is_shut: false };
        Ok(match compression {
            Compression::None => Self::Plain(output),
            Compression::Gzip => Self::Gzip(flate2::write::GzEncoder::new(output, flate2::Compression::default())),
            Compression::Zstd => Self::Zstd(zstd::Encoder::new(output, zstd::DEFAULT_COMPRESSION_LEVEL)?),
            Compression::Xz => Self::Xz(liblzma::write::XzEncoder::new(output, 6)),
        })
    }

    pub fn finish(self) -> io::Result<W> {
        let valve = match self {
            Self::Plain(output) => output,
            Self::Gzip(encoder) => encoder.finish()?,
            Self::Zstd(encoder) => encoder.finish()?,
            Self::Xz(encoder) => encoder.finish()?,
        };
        Ok(valve.output)
    }

    /// Drops the stream as it is, without its end.
    pub fn abandon(mut self) {
        let valve = match &mut self {
            Self::Plain(output) => output,
            Self::Gzip(encoder) => encoder.get_mut(),
            Self::Zstd(encoder) => encoder.get_mut(),
            Self::Xz(encoder) => encoder.get_mut(),
        };
        valve.is_shut = true;
    }

    fn inner(&mut self) -> &mut dyn Write {
        match self {
            Self::Plain(output) => output,
            Self::Gzip(encoder) => encoder,
            Self::Zstd(encoder) => encoder,
            Self::Xz(encoder) => encoder,
        }
    }
}

impl<W: Write> Write for Encoder<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        // Compressors lose by it, and `finish` writes everything.
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_round_trip() {
        let text = b"many files ".repeat(10_000);
        for compression in [Compression::None, Compression::Gzip, Compression::Zstd, Compression::Xz] {
            let mut encoder = Encoder::new(Vec::new(), compression).unwrap();
            encoder.write_all(&text).unwrap();
            let bytes = encoder.finish().unwrap();
            assert_eq!(bytes.len() < text.len(), compression != Compression::None);
            let mut decoded = Vec::new();
            decoder(Cursor::new(bytes.clone())).unwrap().read_to_end(&mut decoded).unwrap();
            assert!(decoded == text, "{compression:?}");
            if compression != Compression::None {
                let cut = bytes[..bytes.len() / 2].to_vec();
                assert!(decoder(Cursor::new(cut)).unwrap().read_to_end(&mut decoded).is_err(), "{compression:?}");
            }
        }
        assert!(decoder(&b"BZh91AY"[..]).is_err());
        let mut short = Vec::new();
        decoder(&b"ab"[..]).unwrap().read_to_end(&mut short).unwrap();
        assert_eq!(short, b"ab");
    }

    #[test]
    fn names_tell_archives() {
        for (name, compression) in [
            ("a.tar", Some(Compression::None)),
            ("A.TGZ", Some(Compression::Gzip)),
            ("a.tar.zst", Some(Compression::Zstd)),
            ("tar", None),
            ("dir", None),
        ] {
            assert_eq!(Compression::of_archive(Path::new(name)), compression, "{name}");
        }
    }
}
