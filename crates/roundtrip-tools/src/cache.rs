//! What was read, for as long as it may be believed.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::Instant;

/// Most values that are kept; the oldest go.
const ENTRIES_MAX: usize = 1024;

/// Values by what they were asked for with. Whoever asks while somebody else reads waits for
/// the same answer; a read that failed is forgotten.
pub(crate) struct Cache<T> {
    ttl: Duration,
    entries: Mutex<HashMap<String, Entry<T>>>,
}

struct Entry<T> {
    since: Instant,
    value: Arc<OnceCell<T>>,
}

impl<T> fmt::Debug for Cache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cache({:?})", self.ttl)
    }
}

impl<T: Clone> Cache<T> {
    pub(crate) fn new(ttl: Duration) -> Cache<T> {
        Cache { ttl, entries: Mutex::new(HashMap::new()) }
    }

    /// The value of a key, read if it is not known or too old.
    pub(crate) async fn get<E>(&self, key: &str, read: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        if self.ttl.is_zero() {
            return read.await;
        }
        let cell = self.cell(key, Instant::now());
        cell.get_or_try_init(|| read).await.cloned()
    }

    fn cell(&self, key: &str, now: Instant) -> Arc<OnceCell<T>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(key).filter(|entry| now.duration_since(entry.since) < self.ttl) {
            return entry.value.clone();
        }
        if entries.len() >= ENTRIES_MAX {
            entries.retain(|_, entry| now.duration_since(entry.since) < self.ttl);
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.since).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest.filter(|_| entries.len() >= ENTRIES_MAX) {
                entries.remove(&oldest);
            }
        }
        let value = Arc::new(OnceCell::new());
        entries.insert(key.to_owned(), Entry { since: now, value: value.clone() });
        value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_value_is_read_once_until_it_is_too_old() {
        let (cache, reads) = (Cache::new(Duration::from_secs(10)), AtomicUsize::new(0));
        let read = || async { Ok::<_, String>(reads.fetch_add(1, Ordering::Relaxed)) };
        let failed = || async { Err::<usize, _>("no".to_owned()) };
        assert_eq!(cache.get("a", failed()).await, Err("no".to_owned()), "what failed is not kept");
        let (one, other) = tokio::join!(cache.get("a", read()), cache.get("a", read()));
        assert_eq!((one, other), (Ok(0), Ok(0)), "who asks meanwhile gets the same");
        assert_eq!(cache.get("b", read()).await, Ok(1));
        tokio::time::advance(Duration::from_secs(11)).await;
        assert_eq!(cache.get("a", read()).await, Ok(2));
        let never: Cache<usize> = Cache::new(Duration::ZERO);
        assert_eq!((never.get("a", read()).await, never.get("a", read()).await), (Ok(3), Ok(4)));
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_is_kept_than_there_is_room_for() {
        let cache = Cache::new(Duration::from_secs(10));
        for n in 0..2 * ENTRIES_MAX {
            let _kept = cache.get(&n.to_string(), async { Ok::<_, String>(n) }).await;
        }
        assert_eq!(cache.entries.lock().map(|entries| entries.len()).unwrap_or_default(), ENTRIES_MAX);
    }
}
