//! Docker's credential helpers: programs `docker-credential-NAME` that print a host's credentials as JSON.

use super::secret::Secret;
use serde::Deserialize;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// Helpers ask clouds for tokens; one that asks a person would wait for ever.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a helper may print.
const OUTPUT_MAX: u64 = 64 << 10;

/// The user name under which a helper gives a refresh token.
const TOKEN_USER: &str = "<token>";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    #[serde(default)]
    username: String,
    secret: String,
}

/// What the helper has for a server, if anything.
pub(super) async fn get(name: &str, server: &str) -> Result<Option<Secret>, String> {
    let word = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    if !name.bytes().all(word) {
        return Err("its name is none of letters, digits, '_', '.' and '-'".to_owned());
    }
    let program = format!("docker-credential-{name}");
    let output = tokio::time::timeout(PATIENCE, run(&program, server)).await;
    let output =
        output.map_err(|_| format!("no answer within {} s", PATIENCE.as_secs()))?.map_err(|e| e.to_string())?;
    if !output.status.success() {
        // Helpers say on stdout what is wrong.
        let said = String::from_utf8_lossy(&output.stdout);
        let said: String = said.trim().chars().filter(|c| !c.is_control()).take(300).collect();
        return match said.contains("credentials not found") {
            true => Ok(None),
            false => Err(format!("{}: {said}", output.status)),
        };
    }
    let answer: Answer = serde_json::from_slice(&output.stdout).map_err(|_| "its answer is not JSON".to_owned())?;
    Ok(match answer.username.as_str() {
        _ if answer.secret.is_empty() => None,
        TOKEN_USER => Some(Secret::Identity(answer.secret)),
        _ => Some(Secret::Basic(answer.username, answer.secret)),
    })
}

async fn run(program: &str, server: &str) -> std::io::Result<Output> {
    let mut command = Command::new(program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // One that does not read what it is asked may still answer.
        let _ = stdin.write_all(server.as_bytes()).await;
    }
    let mut stdout = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        pipe.take(OUTPUT_MAX).read_to_end(&mut stdout).await?;
    }
    Ok(Output { status: child.wait().await?, stdout, stderr: Vec::new() })
}
