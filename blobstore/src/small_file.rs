//! Files that people name and that are read whole: settings, lists, credentials, certificates.
//!
//! Whatever has that name, there is an end to it: a device gives bytes for ever, and an image file by mistake is larger than
//! memory. Pipes are waited for, as `<(command)` of a shell wants it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// All of a file of at most `most` bytes. The error does not name the file.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > most {
        true => Err(io::Error::other(format!("longer than {most} bytes, which no file of this kind is"))),
        false => Ok(bytes),
    }
}

/// The same of text in UTF-8.
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    String::from_utf8(read(path, most)?).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_one_without_an_end_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "12345").unwrap();
        assert_eq!(read_text(file.path(), 5).unwrap(), "12345");
        for (path, most) in [(file.path(), 4), (Path::new("/dev/zero"), 1 << 20)] {
            let error = read(path, most).unwrap_err().to_string();
            assert!(error.contains(&format!("longer than {most} bytes")), "{error}");
        }
        assert_eq!(read(Path::new("/not/there"), 1).unwrap_err().kind(), io::ErrorKind::NotFound);
        std::fs::write(file.path(), [0xff]).unwrap();
        assert_eq!(read_text(file.path(), 5).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
