//! The snapshotter alone, for tests: `serve SOCKET ROOT [LAMINAD-SOCKET]`, until SIGTERM.

use std::path::Path;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (socket, root, daemon) = match args.as_slice() {
        [socket, root] => (socket, root, "/nonexistent/laminad.sock"),
        [socket, root, daemon] => (socket, root, daemon.as_str()),
        _ => return Err("usage: serve SOCKET ROOT [LAMINAD-SOCKET]".into()),
    };
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let config = snapshotter::Config::new(Path::new(root), Path::new(socket), Path::new(daemon));
    snapshotter::run(config, async move {
        terminate.recv().await;
    })
    .await?;
    Ok(())
}
