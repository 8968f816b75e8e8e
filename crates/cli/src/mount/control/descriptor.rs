//! A file passed along with a request: both ends then have the same one open.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Sends bytes, and a file with the first of them.
pub fn send(stream: &mut UnixStream, bytes: &[u8], file: &File) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&files)), "there is room for one");
    let sent = sendmsg(&*stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    io::Write::write_all(stream, &bytes[sent..])
}

/// Reads a connection and keeps the first file that comes with it; further ones are closed.
pub struct Receiver<'a> {
    stream: &'a UnixStream,
    pub file: Option<File>,
}

impl<'a> Receiver<'a> {
    pub fn new(stream: &'a UnixStream) -> Self {
        Self { stream, file: None }
    }
}

impl Read for Receiver<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = recvmsg(self.stream, &mut [IoSliceMut::new(buf)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more than one file with a request"));
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                for file in files {
                    self.file.get_or_insert_with(|| file.into());
                }
            }
        }
        Ok(received.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Seek, Write};

    #[test]
    fn a_file_comes_with_its_line() {
        let (mut one, other) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        send(&mut one, b"a line\n", &file).unwrap();
        one.write_all(b"and more").unwrap();
        drop(one);
        let mut receiver = Receiver::new(&other);
        let mut text = String::new();
        receiver.read_to_string(&mut text).unwrap();
        assert_eq!(text, "a line\nand more");
        receiver.file.expect("it came").write_all(b"by the other end").unwrap();
        file.rewind().unwrap();
        let mut seen = String::new();
        file.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, "by the other end");
    }

    #[test]
    fn without_a_file_there_is_none() {
        let (mut one, other) = UnixStream::pair().unwrap();
        one.write_all(b"a line\n").unwrap();
        drop(one);
        let mut receiver = Receiver::new(&other);
        receiver.read_to_end(&mut Vec::new()).unwrap();
        assert!(receiver.file.is_none());
    }
}
