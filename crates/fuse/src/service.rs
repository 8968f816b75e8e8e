//! Between transports and servers: a request in, an answer out, counted and logged on the way.

use crate::answer::Answer;
use crate::request::{DecodeError, Dialect, Request};
use crate::stats::Recorder;
use crate::wire::OutHeader;
use myriad_engine::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Who answers requests: a volume, or nobody in particular ([`crate::null`]).
pub trait Service: Send + Sync {
    /// Answers a request: the answer's bytes go to the front of `out`, which has room for as many as the request asks.
    fn answer(&self, request: &Request<'_>, out: &mut [u8]) -> Answer;

    /// In which forms the kernel sends requests.
    fn dialect(&self) -> Dialect {
        Dialect::default()
    }

    /// Whether a request of this kind is to be answered by a thread of its own. It may wait for the kernel to send what it holds, in further
    /// requests, or for a search of all directories. All threads that serve could wait so, and nobody would take what comes meanwhile.
    fn answers_apart(&self, _opcode: u32) -> bool {
        false
    }

    /// Whether a request that found no space has changed nothing, and may find some once the FORGETs that wait have been read.
    fn may_find_space(&self) -> bool {
        false
    }

    /// Whether something is left to do once answers are out: then [`Self::answered`] is called of each.
    fn waits_for_answers(&self) -> bool {
        false
    }

    /// The kernel did not take the answer to a request, which has been carried out: to its caller it has failed.
    fn not_taken(&self, _request: &Request<'_>, _answer: &[u8]) {}

    /// The answer to a request (its `unique`) is with the kernel.
    fn answered(&self, _unique: u64) {}

    /// A request made the program panic: whatever it worked on may be half done.
    fn panicked(&self);

    fn recorder(&self) -> &Recorder;
}

/// Answers what was decoded, or refuses what could not be. The header that goes with the answer's bytes in `out`; `None`
/// if nothing is to be sent.
pub fn respond(
    service: &dyn Service,
    request: Result<Request<'_>, DecodeError>,
    out: &mut [u8],
) -> Option<(OutHeader, usize)> {
    let (unique, answer) = match request {
        Ok(request) => {
            let recorder = service.recorder();
            let start = Instant::now();
            let answer = catch_unwind(AssertUnwindSafe(|| service.answer(&request, out))).unwrap_or_else(|_| {
                service.panicked();
                Answer::Error(Errno::IO)
            });
            recorder.record(&request, answer, start.elapsed());
            (request.header.unique, answer)
        }
        Err(error) => {
            service.recorder().note(&error);
            (error.unique()?, Answer::Error(Errno::INVAL))
        }
    };
    let (error, len) = match answer {
        Answer::Bytes(len) => (0, len),
        Answer::Error(errno) => (-errno.raw_os_error(), 0),
        Answer::Nothing => return None,
    };
    Some((OutHeader { len: (size_of::<OutHeader>() + len) as u32, error, unique }, len))
}
