//! All entries of a tar into a layer: contents to the spool, the rest to the tree.

use crate::error::{Error, Result, show};
use crate::limits::Budget;
use crate::pack::Spool;
use crate::tar::{Kind, Reader};
use crate::tree::{Meaning, Upper, keep_possible};
use std::io;

/// Reads a tar to its end; how many entries it has.
pub fn read_entries<R: io::Read>(reader: &mut Reader<R>, upper: &mut Upper, spool: &mut Spool) -> Result<u64> {
    let mut budget = Budget::default();
    while let Some(mut entry) = reader.next_entry()? {
        let name = entry.path.to_bytes();
        let at = |e: Error| e.at(&name);
        budget.charge(&entry, upper.paths()).map_err(at)?;
        match Meaning::of(&entry.path).map_err(at)? {
            Meaning::Whiteout(path) => upper.whiteout(&path).map_err(at)?,
            Meaning::Opaque(directory) => upper.opaque(&directory).map_err(at)?,
            Meaning::Ignored => {}
            Meaning::Entry => {
                for dropped in keep_possible(&mut entry.attributes.xattrs) {
                    upper.warn(format!("'{}': the attribute '{}' is left out", entry.path, show(&dropped)));
                }
                for key in reader.passed_over() {
                    upper.warn(format!("'{}': the tar's record '{}' is left out", entry.path, show(key)));
                }
                let contents = match &entry.kind {
                    Kind::File(shape) => {
                        let position = reader.position();
                        let number = spool.add_in_place(shape, position, |buffer| reader.read(buffer)).map_err(at)?;
                        reader.pass_data().map_err(at)?;
                        Some(number)
                    }
                    _ => None,
                };
                upper.add(entry, contents).map_err(at)?;
            }
        }
    }
    Ok(budget.entries())
}
