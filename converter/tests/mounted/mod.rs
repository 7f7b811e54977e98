//! Stacks of layer files mounted the way anybody could: decompressed, mounted by the kernel, laid one over the other by
//! overlayfs. No code of ours reads the layers here.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a command; its output where it fails.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    if output.status.success() { Ok(said) } else { Err(format!("{command:?}: {said}")) }
}

/// Mounts that go when this does, the last first.
#[derive(Default)]
pub(crate) struct Mounts(Vec<PathBuf>);

impl Mounts {
    pub(crate) fn add(&mut self, at: &Path, mut mount: Command) -> Result<(), String> {
        std::fs::create_dir_all(at).map_err(|e| e.to_string())?;
        run(&mut mount)?;
        self.0.push(at.to_owned());
        Ok(())
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for at in self.0.iter().rev() {
            let _ = run(Command::new("umount").arg(at));
        }
    }
}

/// Mounts a stack of layer files, given bottom to top, the way anybody could; where the tree is then.
pub(crate) fn mount(layers: &[PathBuf], work: &Path, mounts: &mut Mounts) -> Result<PathBuf, String> {
    let mut lower = Vec::new();
    std::fs::create_dir_all(work).map_err(|e| e.to_string())?;
    for (number, layer) in layers.iter().enumerate() {
        let image = work.join(format!("{number}.erofs"));
        run(Command::new("zstd").args(["-q", "-d"]).arg(layer).arg("-o").arg(&image))?;
        let at = work.join(number.to_string());
        let mut command = Command::new("mount");
        command.args(["-t", "erofs", "-o", "loop,ro"]).arg(&image).arg(&at);
        mounts.add(&at, command)?;
        lower.insert(0, number.to_string());
    }
    if let [_] = layers {
        return Ok(work.join("0"));
    }
    let at = work.join("merged");
    let options = format!("ro,redirect_dir=nofollow,metacopy=off,lowerdir={}", lower.join(":"));
    let mut command = Command::new("mount");
    command.current_dir(work).args(["-t", "overlay", "-o", &options, "overlay"]).arg(&at);
    mounts.add(&at, command)?;
    Ok(at)
}
