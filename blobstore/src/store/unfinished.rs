//! Work that goes on for callers who went away, or takes back what they began: a process that is about to end waits for it.

use std::sync::Arc;
use tokio::sync::watch;

/// How many pieces of such work there are. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Unfinished(Arc<watch::Sender<usize>>);

/// One piece, as long as it is there.
#[derive(Debug)]
pub(super) struct Task(Unfinished);

impl Unfinished {
    pub(super) fn begin(&self) -> Task {
        self.0.send_modify(|count| *count += 1);
        Task(self.clone())
    }

    /// Waits until there are none.
    pub(super) async fn settled(&self) {
        // Fails when the sender is gone, which is here.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count -= 1);
    }
}
