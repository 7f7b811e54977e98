//! `lamina store gc`: what nothing needs.

use super::super::Context;
use super::super::interrupt::{Stop, interruptible};
use crate::args::StoreGc;
use crate::failure::Failure;
use crate::output;
use crate::progress;
use blobstore::collect::{Error, Fate, Options, Report, Step, Sum, collect};
use serde_json::json;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

pub(super) async fn run(context: &Context, arguments: &StoreGc) -> Result<(), Failure> {
    let refs = context.refs()?;
    let StoreGc { delete, grace, settle } = *arguments;
    let (tell, told_to_end) = watch::channel(false);
    let mut options = Options::new(delete, grace, settle);
    options.stop = Some(told_to_end);
    let progress = progress::steps();
    let told = |step: Step| match step {
        Step::Reading => progress.set_message("reading what is needed"),
        Step::Marking => progress.set_message("marking"),
        Step::References => progress.set_message("removing references"),
        Step::Waiting => progress.set_message("waiting for nodes to say what they use"),
        Step::Deleting(done, of) => progress.set_message(format!("deleting {done} of {of}")),
    };
    let done = interruptible(async |mut stop: Stop| {
        let mut collected = std::pin::pin!(collect(&refs, &options, &told));
        let done = tokio::select! {
            done = &mut collected => done,
            // A dry run has nothing to take back.
            () = stop.wait() => match delete {
                false => return Ok(None),
                // What it is at it does, and takes its word back that it is at work: others would wait for it.
                true => {
                    let _ = tell.send(true);
                    collected.await
                }
            },
        };
        match done {
            Err(Error::Stopped) => Ok(None),
            done => done.map(Some).map_err(failed),
        }
    });
    let done = done.await;
    progress.finish_and_clear();
    let report = done?;
    match context.json {
        true => output::json(&as_json(&report, delete)),
        false => {
            print(&report, arguments);
            Ok(())
        }
    }
}

fn failed(error: Error) -> Failure {
    let text = blobstore::causes(&error);
    match error {
        // What it is about has to be seen to first; nothing was deleted.
        Error::Refs(error) if !matches!(error, blobstore::refs::Error::Store(_)) => {
            let what = "what that reaches is not known, so nothing is deleted; lamina store fsck says what to do";
            Failure::refused(format!("{text}; {what}"))
        }
        Error::Lease { .. } => Failure::refused(text),
        _ => Failure::failed(text),
    }
}

fn as_json(report: &Report, delete: bool) -> serde_json::Value {
    let sum = |sum: Sum| json!({"objects": sum.objects, "bytes": sum.bytes});
    let since = |at: Option<SystemTime>| at.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map(|d| d.as_secs());
    let objects = report.unneeded.iter();
    let objects = objects.map(|object| {
        json!({"key": object.key, "bytes": object.size, "fate": word(object.fate), "since": since(object.since)})
    });
    json!({
        "dry_run": !delete,
        "images": report.images, "tags": report.tags, "leases": report.leases,
        "needed_layers": sum(report.needed),
        "marked": sum(report.sum(Fate::Marked)), "waiting": sum(report.sum(Fate::Waiting)),
        "deleted": sum(report.sum(Fate::Deleted)), "spared": sum(report.sum(Fate::Spared)),
        "references": report.references, "leftovers": report.leftovers,
        "objects": objects.collect::<Vec<_>>(),
    })
}

fn word(fate: Fate) -> &'static str {
    match fate {
        Fate::Marked => "marked",
        Fate::Waiting => "waiting",
        Fate::Deleted => "deleted",
        Fate::Spared => "spared",
    }
}

fn print(report: &Report, arguments: &StoreGc) {
    // What would be done is what was asked for; what was done is not.
    let say = |text: String| if arguments.delete { output::done(text) } else { output::line(text) };
    let would = if arguments.delete { "" } else { "would be " };
    for object in report.unneeded.iter().filter(|object| object.key.starts_with("layers/")) {
        let id = object.key.rsplit('/').next().unwrap_or_default();
        let what = match object.fate {
            Fate::Marked | Fate::Deleted => format!("{would}{}", word(object.fate)),
            Fate::Waiting => waits(object.since, arguments.grace),
            Fate::Spared => "spared: somebody has begun to use it".to_owned(),
        };
        say(format!("layer:{id}  {}  {what}", output::bytes(object.size)));
    }
    let names = format!(
        "{}, {}, {}",
        output::count(report.images as u64, "image"),
        output::count(report.tags as u64, "tag"),
        output::count(report.leases as u64, "lease")
    );
    let needed = output::count(report.needed.objects, "layer");
    say(format!("{names} need {needed}, {}", output::bytes(report.needed.bytes)));
    for (fate, what) in [
        (Fate::Marked, format!("{would}marked: nothing needs them; they go after the grace")),
        (Fate::Waiting, "waiting for the end of their grace".to_owned()),
        (Fate::Deleted, format!("{would}deleted")),
        (Fate::Spared, "spared".to_owned()),
    ] {
        let sum = report.sum(fate);
        if sum.objects > 0 {
            say(format!("{}, {} {what}", output::count(sum.objects, "object"), output::bytes(sum.bytes)));
        }
    }
    let small = report.references + report.leftovers;
    if small > 0 {
        say(format!("{} to what is gone or has moved {would}removed", output::count(small as u64, "reference")));
    }
    let anything = !report.unneeded.is_empty() || small > 0;
    if anything && !arguments.delete {
        say("nothing was changed: --delete does it".to_owned());
    }
}

fn waits(since: Option<SystemTime>, grace: Duration) -> String {
    let left = since.and_then(|since| (since + grace).duration_since(SystemTime::now()).ok()).unwrap_or_default();
    match left.as_secs() {
        0 => "unneeded: goes with what names it".to_owned(),
        seconds => format!("unneeded: may go in {}:{:02} h", seconds / 3600, seconds / 60 % 60),
    }
}
