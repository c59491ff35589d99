//! Ranks of several machines, over TCP: one connection between two ranks of a stage, and between neighbours of two
//! stages. Bytes go in frames: kind and size as two little-endian u32, then the bytes.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::{Pattern, Place, RankError, Result, Transport};

const HEADER: usize = 8;
/// The kind of a frame between stages; others have the number of their pattern.
const MESSAGE: u32 = 0;

/// See the module.
pub(super) struct Sockets {
    place: Place,
    timeout: Duration,
    /// The other ranks by number; none where two ranks exchange nothing.
    peers: Vec<Option<Peer>>,
    /// The messages to the next stage, which a thread sends.
    outbox: Option<Sender<Vec<u8>>>,
    /// The frame of this round.
    given: Vec<u8>,
}

/// Another rank.
struct Peer {
    stream: TcpStream,
    /// Bytes of the round's frame that were sent.
    num_sent: usize,
    incoming: Frame,
}

/// A frame that is being received. Its bytes are aligned for every dtype.
#[derive(Default)]
struct Frame {
    header: [u8; HEADER],
    words: Vec<u32>,
    num_received: usize,
}

impl Sockets {
    /// `streams` are connected to the ranks with which this one exchanges bytes.
    pub(super) fn new(streams: Vec<(usize, TcpStream)>, place: Place, timeout: Duration) -> io::Result<Self> {
        let mut peers: Vec<Option<Peer>> = (0..place.num_ranks()).map(|_| None).collect();
        let mut outbox = None;
        for (rank, stream) in streams {
            stream.set_nodelay(true)?;
            if Some(rank) == place.after() {
                stream.set_nonblocking(false)?;
                stream.set_write_timeout(Some(timeout))?;
                let (sender, messages) = channel();
                thread::spawn(move || send_all(&messages, stream));
                outbox = Some(sender);
            } else {
                stream.set_nonblocking(true)?;
                peers[rank] = Some(Peer { stream, num_sent: 0, incoming: Frame::default() });
            }
        }
        Ok(Self { place, timeout, peers, outbox, given: Vec::new() })
    }

    /// Send the round's frame to the ranks `to`, and receive a frame from the ranks `from`, both at the same time.
    fn exchange(&mut self, to: &[usize], from: &[usize], expected: (u32, usize)) -> Result<()> {
        for peer in self.peers.iter_mut().flatten() {
            (peer.num_sent, peer.incoming.num_received) = (0, 0);
        }
        let started = Instant::now();
        loop {
            let mut waits = Vec::new();
            for rank in self.place.stage().chain(self.place.before()) {
                let (sends, receives) = (to.contains(&rank), from.contains(&rank));
                let Some(peer) = self.peers[rank].as_mut().filter(|_| sends || receives) else { continue };
                let is_sent = !sends || peer.send(&self.given).map_err(|error| lost(rank, error))?;
                let is_received = !receives || peer.receive(rank, expected)?;
                let events = if is_sent { 0 } else { libc::POLLOUT } | if is_received { 0 } else { libc::POLLIN };
                if events != 0 {
                    waits.push((rank, libc::pollfd { fd: peer.stream.as_raw_fd(), events, revents: 0 }));
                }
            }
            let Some(&(rank, _)) = waits.first() else { return Ok(()) };
            let left = self.timeout.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(RankError::Late(rank, self.timeout.as_secs_f64()));
            }
            let left = i32::try_from(left.as_millis() + 1).unwrap_or(i32::MAX);
            let mut polled: Vec<_> = waits.into_iter().map(|(_, wait)| wait).collect();
            // SAFETY: the address and the number of structs are those of a vector.
            unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, left) };
        }
    }
}

impl Transport for Sockets {
    fn give(&mut self, pattern: Pattern, own: &[u8]) -> Result<()> {
        self.given.clear();
        self.given.extend(header(pattern as u32, own.len()));
        self.given.extend(own);
        Ok(())
    }

    fn take(&mut self, pattern: Pattern, num_bytes: usize, use_bytes: &mut dyn FnMut(&[&[u8]])) -> Result<()> {
        let (own, stage) = (self.place.index(), self.place.stage());
        let ranks = |holds: &dyn Fn(usize) -> bool| -> Vec<usize> {
            stage.clone().enumerate().filter(|&(index, _)| holds(index)).map(|(_, rank)| rank).collect()
        };
        let to = ranks(&|index| pattern.takes(index, own));
        let from = ranks(&|index| pattern.takes(own, index));
        self.exchange(&to, &from, (pattern as u32, num_bytes))?;
        let pieces: Vec<&[u8]> = stage
            .map(|rank| match &self.peers[rank] {
                Some(peer) if from.contains(&rank) => peer.incoming.bytes(num_bytes),
                _ => &[],
            })
            .collect();
        use_bytes(&pieces);
        Ok(())
    }

    /// Messages wait in memory of their own size; the core has no more steps in flight than there are stages.
    fn allocate_messages(&mut self, _: usize, _: usize) -> Result<()> {
        Ok(())
    }

    fn send(&mut self, parts: &[&[u8]]) -> Result<()> {
        let message = header(MESSAGE, parts.iter().map(|part| part.len()).sum());
        let message = [&message[..]].iter().chain(parts).flat_map(|part| part.iter().copied()).collect();
        let after = self.place.after().expect("the last stage sends nothing");
        self.outbox.as_ref().and_then(|outbox| outbox.send(message).ok()).ok_or(RankError::Ended(after))
    }

    fn receive(&mut self, parts: &mut [&mut [u8]]) -> Result<()> {
        let before = self.place.before().expect("the first stage receives nothing");
        let num_bytes = parts.iter().map(|part| part.len()).sum();
        self.exchange(&[], &[before], (MESSAGE, num_bytes))?;
        let peer = self.peers[before].as_ref().ok_or(RankError::Ended(before))?;
        let mut bytes = peer.incoming.bytes(num_bytes);
        for part in parts {
            let (now, later) = bytes.split_at(part.len());
            part.copy_from_slice(now);
            bytes = later;
        }
        Ok(())
    }
}

impl Peer {
    /// Send as much as the connection takes; whether all was sent.
    fn send(&mut self, frame: &[u8]) -> io::Result<bool> {
        while self.num_sent < frame.len() {
            match self.stream.write(&frame[self.num_sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => self.num_sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Receive as much as has come; whether the whole frame has, which must be the expected one.
    fn receive(&mut self, rank: usize, (kind, num_bytes): (u32, usize)) -> Result<bool> {
        let Frame { header: found, words, num_received } = &mut self.incoming;
        words.resize(num_bytes.div_ceil(size_of::<u32>()).max(words.len()), 0);
        loop {
            let rest = if *num_received < HEADER {
                &mut found[*num_received..]
            } else if *found == header(kind, num_bytes) {
                &mut as_bytes(words)[*num_received - HEADER..num_bytes]
            } else {
                let [found_kind, found_bytes] =
                    [0, 4].map(|at| u32::from_le_bytes([found[at], found[at + 1], found[at + 2], found[at + 3]]));
                let text = if found_kind == kind {
                    format!("gave {found_bytes} bytes, and this rank expected {num_bytes}")
                } else {
                    "takes part in another collective than this rank".to_owned()
                };
                return Err(RankError::Differs(rank, text));
            };
            if rest.is_empty() {
                return Ok(true);
            }
            match self.stream.read(rest) {
                Ok(0) => return Err(RankError::Ended(rank)),
                Ok(count) => *num_received += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(lost(rank, error)),
            }
        }
    }
}

impl Frame {
    fn bytes(&self, num_bytes: usize) -> &[u8] {
        assert!(num_bytes <= size_of_val(&*self.words));
        // SAFETY: the words have as many bytes.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), num_bytes) }
    }
}

fn as_bytes(words: &mut [u32]) -> &mut [u8] {
    // SAFETY: the same memory, in which every byte is valid.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

fn header(kind: u32, num_bytes: usize) -> [u8; HEADER] {
    let size = u32::try_from(num_bytes).expect("a frame has less than 4 GiB");
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&kind.to_le_bytes());
    header[4..].copy_from_slice(&size.to_le_bytes());
    header
}

/// Send messages until there are no more senders, or the connection is lost, which the next sender sees.
fn send_all(messages: &Receiver<Vec<u8>>, mut stream: TcpStream) {
    while let Ok(message) = messages.recv() {
        if stream.write_all(&message).is_err() {
            return;
        }
    }
}

fn lost(rank: usize, error: io::Error) -> RankError {
    match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::WriteZero | ErrorKind::ConnectionAborted => {
            RankError::Ended(rank)
        }
        _ => RankError::System(error),
    }
}
