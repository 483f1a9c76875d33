//! The format of files with changes.
//!
//! A file is a header and frames. A frame is what one sync covers: a marker, a length, a checksum and records. A
//! frame is on disk before the next one is begun, so only the last can be torn; a bad frame before a good one is
//! corruption and is refused.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use flate2::Crc;

const MAGIC: &[u8; 8] = b"BERTHKV1";
/// Bytes that no text in UTF-8 has.
const MARKER: [u8; 4] = [0xFF, 0xFE, 0xF5, 0xC0];
const HEADER_BYTES: usize = 16;
const FRAME_HEADER_BYTES: usize = 12;

#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk, or the permission to use it, failed.
    #[error("{path}: {error}. Check that the directory exists, is writable and has space.")]
    Io { path: PathBuf, error: io::Error },
    /// Somebody else has it open.
    #[error("{path} is in use by another process. Stop that process, or choose another directory.")]
    InUse { path: PathBuf },
    /// Writes that were acknowledged are not there.
    #[error(
        "{path}: {what}. No file was changed. Restore the directory from a backup, or delete {mark} to \
         start without the lost writes."
    )]
    Missing { path: PathBuf, what: String, mark: PathBuf },
    /// Acknowledged data is damaged.
    #[error(
        "{path} is damaged at byte {offset}: {what}. Nothing was changed. Restore the directory from \
         a copy, or move it away to start with an empty cluster."
    )]
    Damaged {
        path: PathBuf,
        /// Where the damage begins.
        offset: u64,
        what: String,
    },
}

impl JournalError {
    pub(super) fn io(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }

    fn damaged(path: &Path, offset: usize, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), offset: offset as u64, what: what.into() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    Put {
        revision: u64,
        group: String,
        plural: String,
        key: String,
        json: Vec<u8>,
    },
    Remove {
        revision: u64,
        group: String,
        plural: String,
        key: String,
    },
    /// The end of a snapshot: its revision and how many objects it has.
    End {
        revision: u64,
        objects: u64,
    },
}

const PUT: u8 = 1;
const REMOVE: u8 = 2;
const END: u8 = 3;

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // Bodies have at most a few megabytes, so a length always fits.
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Appends a record of an object that was written; its JSON is given in pieces.
pub(super) fn write_put(out: &mut Vec<u8>, revision: u64, names: [&str; 3], json: &[u8]) {
    out.push(PUT);
    out.extend_from_slice(&revision.to_le_bytes());
    names.iter().for_each(|name| put_bytes(out, name.as_bytes()));
    put_bytes(out, json);
}

/// Appends a record of an object that was removed.
pub(super) fn write_remove(out: &mut Vec<u8>, revision: u64, names: [&str; 3]) {
    out.push(REMOVE);
    out.extend_from_slice(&revision.to_le_bytes());
    names.iter().for_each(|name| put_bytes(out, name.as_bytes()));
}

pub(super) fn write_end(out: &mut Vec<u8>, revision: u64, objects: u64) {
    out.push(END);
    out.extend_from_slice(&revision.to_le_bytes());
    out.extend_from_slice(&objects.to_le_bytes());
}

/// Reads records one after the other.
struct Records<'a> {
    rest: &'a [u8],
}

impl<'a> Records<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.take(4)?.try_into().ok().map(u32::from_le_bytes)?;
        self.take(usize::try_from(length).ok()?)
    }

    fn text(&mut self) -> Option<String> {
        std::str::from_utf8(self.bytes()?).ok().map(str::to_owned)
    }

    fn record(&mut self) -> Option<Record> {
        let kind = *self.take(1)?.first()?;
        let revision = self.number()?;
        if kind == END {
            return Some(Record::End { revision, objects: self.number()? });
        }
        let (group, plural, key) = (self.text()?, self.text()?, self.text()?);
        match kind {
            PUT => {
                let json = self.bytes()?.to_vec();
                Some(Record::Put { revision, group, plural, key, json })
            }
            REMOVE => Some(Record::Remove { revision, group, plural, key }),
            _ => None,
        }
    }
}

pub(super) struct Writer {
    file: File,
    path: PathBuf,
    pub(super) salt: u64,
    pub(super) bytes: u64,
}

impl Writer {
    /// Makes a new file. The salt keeps what clients write from looking like a frame.
    pub(super) fn create(path: &Path, salt: u64) -> Result<Self, JournalError> {
        let fail = |error| JournalError::io(path, error);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).open(path).map_err(fail)?;
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&salt.to_le_bytes());
        file.write_all(&header).map_err(fail)?;
        file.sync_all().map_err(fail)?;
        Ok(Self { file, path: path.to_owned(), salt, bytes: HEADER_BYTES as u64 })
    }

    /// Appends after the last good frame; the rest is truncated.
    pub(super) fn reopen(path: &Path, read: &ReadFile) -> Result<Self, JournalError> {
        let fail = |error| JournalError::io(path, error);
        let file = OpenOptions::new().append(true).open(path).map_err(fail)?;
        file.set_len(read.good_bytes).map_err(fail)?;
        file.sync_all().map_err(fail)?;
        Ok(Self { file, path: path.to_owned(), salt: read.salt, bytes: read.good_bytes })
    }

    /// Writes a frame. It is on disk only after [`Writer::sync`].
    pub(super) fn frame(&mut self, payload: &[u8]) -> Result<(), JournalError> {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let mut header = Vec::with_capacity(FRAME_HEADER_BYTES);
        header.extend_from_slice(&MARKER);
        header.extend_from_slice(&length.to_le_bytes());
        header.extend_from_slice(&checksum(self.salt, payload).to_le_bytes());
        let written = self.file.write_all(&header).and_then(|()| self.file.write_all(payload));
        written.map_err(|error| JournalError::io(&self.path, error))?;
        self.bytes += (FRAME_HEADER_BYTES + payload.len()) as u64;
        Ok(())
    }

    /// Waits until everything is on disk.
    pub(super) fn sync(&self) -> Result<(), JournalError> {
        self.file.sync_data().map_err(|error| JournalError::io(&self.path, error))
    }
}

/// The checksum of some bytes.
pub(super) fn crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn checksum(salt: u64, payload: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(&salt.to_le_bytes());
    crc.update(&u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes());
    crc.update(payload);
    crc.sum()
}

#[derive(Debug)]
pub(super) struct ReadFile {
    pub(super) records: Vec<Record>,
    pub(super) salt: u64,
    good_bytes: u64,
    /// Whether the last frame, or the header, was not.
    pub(super) torn: bool,
}

impl ReadFile {
    /// Offset of the last good frame's end.
    pub(super) fn good_bytes(&self) -> u64 {
        self.good_bytes
    }
}

/// Reads a whole file. A torn end is allowed; any other defect is damage.
pub(super) fn read(path: &Path) -> Result<ReadFile, JournalError> {
    let fail = |error| JournalError::io(path, error);
    let mut bytes = Vec::new();
    File::open(path).map_err(fail)?.read_to_end(&mut bytes).map_err(fail)?;
    parse(path, &bytes)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<ReadFile, JournalError> {
    let header = bytes.get(..HEADER_BYTES);
    let salt = header.and_then(|header| header.get(8..)?.try_into().ok()).map(u64::from_le_bytes);
    let (Some(header), Some(salt)) = (header, salt) else {
        return Ok(ReadFile { records: Vec::new(), salt: 0, good_bytes: 0, torn: true });
    };
    if !header.starts_with(MAGIC) {
        return Err(JournalError::damaged(path, 0, "it does not begin as a file of Berth does"));
    }
    let mut read = ReadFile { records: Vec::new(), salt, good_bytes: 0, torn: false };
    let mut at = HEADER_BYTES;
    while at < bytes.len() {
        match frame_at(bytes, at, salt) {
            Some(payload) => {
                let mut records = Records { rest: payload };
                while !records.rest.is_empty() {
                    let record = records.record().ok_or_else(|| {
                        JournalError::damaged(path, at, "a record has a form that is not known")
                    })?;
                    read.records.push(record);
                }
                at += FRAME_HEADER_BYTES + payload.len();
            }
            None => {
                if let Some(next) = good_frame_after(bytes, at + 1, salt) {
                    let what = format!(
                        "a frame does not match its checksum, and there are good ones behind it, from byte {next} on"
                    );
                    return Err(JournalError::damaged(path, at, what));
                }
                read.torn = true;
                break;
            }
        }
    }
    read.good_bytes = at as u64;
    Ok(read)
}

/// The payload of the frame at an offset, if there is a whole one.
fn frame_at(bytes: &[u8], at: usize, salt: u64) -> Option<&[u8]> {
    let header = bytes.get(at..at.checked_add(FRAME_HEADER_BYTES)?)?;
    if !header.starts_with(&MARKER) {
        return None;
    }
    let number = |from: usize| header.get(from..from + 4)?.try_into().ok().map(u32::from_le_bytes);
    let length = usize::try_from(number(4)?).ok()?;
    let start = at + FRAME_HEADER_BYTES;
    let payload = bytes.get(start..start.checked_add(length)?)?;
    (checksum(salt, payload) == number(8)?).then_some(payload)
}

fn good_frame_after(bytes: &[u8], from: usize, salt: u64) -> Option<usize> {
    let rest = bytes.get(from..)?;
    let candidates = rest.windows(MARKER.len()).enumerate().filter(|(_, four)| *four == MARKER);
    candidates.map(|(at, _)| from + at).find(|at| frame_at(bytes, *at, salt).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(frames: &[&[u8]]) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut writer = Writer::create(&path, 7).unwrap();
        for frame in frames {
            writer.frame(frame).unwrap();
        }
        (directory, path)
    }

    fn put(revision: u64) -> Vec<u8> {
        let mut out = Vec::new();
        write_put(&mut out, revision, ["", "pods", "n/p"], b"{}");
        out
    }

    #[test]
    fn a_file_cut_anywhere_in_its_last_frame_holds_the_frames_before() {
        let (_directory, path) = file(&[&put(1), &put(2), &put(3)]);
        let whole = std::fs::read(&path).unwrap();
        let all = parse(&path, &whole).unwrap();
        assert_eq!((all.records.len(), all.torn), (3, false));
        let frame = FRAME_HEADER_BYTES + put(3).len();
        for cut in whole.len() - frame + 1..whole.len() {
            let read = parse(&path, &whole[..cut]).unwrap();
            assert_eq!((read.records.len(), read.torn), (2, true), "cut at {cut}");
            assert_eq!(read.good_bytes, (whole.len() - frame) as u64);
        }
    }

    #[test]
    fn damage_before_the_last_frame_is_refused_wherever_it_is() {
        let (_directory, path) = file(&[&put(1), &put(2), &put(3)]);
        let whole = std::fs::read(&path).unwrap();
        let last = whole.len() - FRAME_HEADER_BYTES - put(3).len();
        for at in HEADER_BYTES..last {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            let error = parse(&path, &bytes).unwrap_err();
            let text = error.to_string();
            assert!(text.contains("damaged at byte") && text.contains("Restore"), "{text}");
        }
    }
}
