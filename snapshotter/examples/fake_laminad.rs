//! A fake laminad for tests from outside: `fake_laminad SOCKET CHAIN-ID DIR` serves one chain of one layer, which shows
//! DIR, until SIGTERM.

#[allow(dead_code, clippy::unwrap_used)]
#[path = "../tests/lazy/fake.rs"]
mod fake;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [socket, chain, dir] = args.as_slice() else { return Err("usage: fake_laminad SOCKET CHAIN-ID DIR".into()) };
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let fake = fake::Fake::default();
    let layer = "1a".repeat(32);
    {
        let mut inner = fake.lock();
        inner.stacks.insert(chain.clone(), vec![layer.clone()]);
        inner.layers.insert(layer, dir.into());
    }
    let serving = fake.serve(socket.as_ref());
    terminate.recv().await;
    drop(serving);
    fake.unmount_all();
    Ok(())
}
