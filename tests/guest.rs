//! Debian 12's own kernel, 6.1, in QEMU: no file-backed EROFS mounts, no resending of FUSE requests.
//!
//! LAMINA_GUEST_KERNEL is a directory with that kernel's package unpacked (`boot/vmlinuz-…`, `lib/modules/…`); `./test` makes
//! it. The guest is an initramfs of busybox and this build's programs; `guest/init` does the checks.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tests::node::program;

/// Software emulation is slow, and CI's two cores are shared: only a hang takes this long.
const PATIENCE: &str = "300";

fn shell(command: &str) {
    let status = Command::new("sh").arg("-ec").arg(command).status().unwrap();
    assert!(status.success(), "{command}");
}

fn only_entry(dir: &Path, start: &str) -> PathBuf {
    let mut found = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    found.find(|p| p.file_name().unwrap().to_str().unwrap().starts_with(start)).unwrap()
}

/// Shared libraries of a program, as the dynamic linker finds them.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().filter(|w| w.starts_with('/')).map(PathBuf::from).collect()
}

/// The initramfs: busybox, our programs with their libraries, the modules that `init` asks for.
fn initramfs(kernel: &Path, work: &Path) -> PathBuf {
    let root = work.join("root");
    for dir in ["bin", "dev", "proc", "sys", "tmp", "etc", "var/tmp"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    fs::copy(Path::new(env!("CARGO_MANIFEST_DIR")).join("guest/init"), root.join("init")).unwrap();
    for name in ["lamina", "laminad"] {
        let to = root.join("bin").join(name);
        shell(&format!("strip -o {} {}", to.display(), program(name).display()));
        for library in libraries(&program(name)) {
            let to = root.join(library.strip_prefix("/").unwrap());
            fs::create_dir_all(to.parent().unwrap()).unwrap();
            fs::copy(&library, to).unwrap();
        }
    }
    let modules = only_entry(&kernel.join("lib/modules"), "");
    let version = modules.file_name().unwrap().to_str().unwrap();
    let (from, to) = (modules.display(), root.join("lib/modules").join(version));
    fs::create_dir_all(&to).unwrap();
    shell(&format!(
        "cd {from}; cp modules.order modules.builtin modules.builtin.modinfo {to}; find kernel/fs/erofs kernel/fs/fuse kernel/fs/overlayfs kernel/lib kernel/crypto \
         kernel/fs/netfs kernel/fs/fscache kernel/arch/x86/crypto kernel/drivers/block/loop.ko -name '*.ko' 2>/dev/null | \
         cpio -pdm {to} 2>/dev/null; depmod -b {root} {version}",
        to = to.display(),
        root = root.display()
    ));
    let image = work.join("initramfs");
    shell(&format!("cd {}; find . | cpio -o -H newc 2>/dev/null | gzip -1 >{}", root.display(), image.display()));
    image
}

#[test]
fn debian_12s_own_kernel_mounts_layers_through_loop_devices_and_a_dead_worker_is_an_error_there() {
    let Some(kernel) = std::env::var_os("LAMINA_GUEST_KERNEL").map(PathBuf::from) else {
        tests::skipped("a guest", "LAMINA_GUEST_KERNEL (./test sets it)");
        return;
    };
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        tests::skipped("a guest", "qemu-system-x86_64");
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let initramfs = initramfs(&kernel, work.path());
    let vmlinuz = only_entry(&kernel.join("boot"), "vmlinuz-");
    let mut guest = Command::new("timeout")
        .args(["-s", "KILL", PATIENCE, "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "1536"])
        .args(["-nographic", "-no-reboot", "-nic", "none"])
        .arg("-kernel")
        .arg(vmlinuz)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", "console=ttyS0 quiet panic=-1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let console = BufReader::new(guest.stdout.take().unwrap());
    let lines: Vec<String> =
        console.split(b'\n').map(|l| String::from_utf8_lossy(&l.unwrap()).trim().to_owned()).collect();
    guest.wait().unwrap();
    let console = lines.join("\n");
    let results: Vec<&str> = lines.iter().filter_map(|l| l.strip_prefix("GUEST ")).collect();
    assert!(results.contains(&"end"), "the guest did not come to its end:\n{console}");
    assert!(results.contains(&"face loop"), "{console}");
    assert!(!results.iter().any(|r| r.starts_with("FAILED")), "{console}");
    assert!(results.iter().filter(|r| r.starts_with("ok ")).count() >= 14, "{console}");
}
