//! `lamina store fsck`: whether the store is whole.

use super::super::Context;
use crate::args::StoreFsck;
use crate::failure::Failure;
use crate::output;
use crate::progress;
use blobstore::fsck::{Kind, Options, Report, check};
use serde_json::json;

pub(super) async fn run(context: &Context, arguments: &StoreFsck) -> Result<(), Failure> {
    let refs = context.refs()?;
    let options = Options { deep: arguments.deep, repair: arguments.repair };
    let bar = progress::bar("looking at layers");
    let told = |done: u64, of: u64| {
        progress::set_length(&bar, of);
        bar.set_position(done);
    };
    let report = check(&refs, options, &told).await;
    bar.finish_and_clear();
    let report = report.map_err(|e| Failure::failed(blobstore::causes(&e)))?;
    match context.json {
        true => output::json(&as_json(&report))?,
        false => print(&report, arguments),
    }
    match report.faults() {
        0 => Ok(()),
        n => {
            let faults = output::count(n as u64, "fault");
            let hint = if arguments.repair { "" } else { "; --repair does what is safe" };
            Err(Failure::failed(format!("{}: {faults}{hint}", refs.store().url())))
        }
    }
}

fn as_json(report: &Report) -> serde_json::Value {
    let findings = report.findings.iter().map(|finding| {
        let kind = if finding.kind == Kind::Fault { "fault" } else { "note" };
        json!({"kind": kind, "key": finding.key, "what": finding.what, "repaired": finding.repaired})
    });
    json!({
        "layers": report.layers.objects, "bytes": report.layers.bytes, "names": report.names,
        "documents": report.documents, "references": report.references, "faults": report.faults(),
        "findings": findings.collect::<Vec<_>>(),
    })
}

fn print(report: &Report, arguments: &StoreFsck) {
    for finding in &report.findings {
        let kind = match (finding.kind, finding.repaired) {
            (Kind::Fault, false) => "FAULT",
            (Kind::Fault, true) => "repaired",
            (Kind::Note, false) => "note",
            (Kind::Note, true) => "removed",
        };
        let text = format!("{kind}  {}: {}", finding.key, finding.what);
        match finding.kind {
            Kind::Fault => output::line(text),
            Kind::Note => output::done(text),
        }
    }
    let layers = output::count(report.layers.objects, "layer");
    let bytes = output::bytes(report.layers.bytes);
    let (names, references) = (output::count(report.names, "name"), output::count(report.references, "reference"));
    let documents = output::count(report.documents, "document");
    output::done(format!("{layers}, {bytes}; {names}, {documents}, {references} looked at"));
    if report.faults() == 0 {
        let unread = if arguments.deep { "" } else { "; contents not read: --deep reads them" };
        output::done(format!("nothing wrong{unread}"));
    }
}
