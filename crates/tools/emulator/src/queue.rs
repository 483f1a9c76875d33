//! Work queues. An object is queued once, is never processed by two at a time, and is retried with exponential
//! backoff.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::future::{Future, pending};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::key::{Key, error_message, is_conflict, is_not_found};

/// Retry delays after the first failure and at most.
const FIRST_DELAY: Duration = Duration::from_millis(10);
const LONGEST_DELAY: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub(crate) struct Queue(mpsc::UnboundedSender<Key>);

pub(crate) struct QueueReceiver(mpsc::UnboundedReceiver<Key>);

/// When to reconcile again without a change, if at all.
pub(crate) type Requeue = Option<Duration>;

pub(crate) fn queue() -> (Queue, QueueReceiver) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (Queue(sender), QueueReceiver(receiver))
}

impl Queue {
    pub(crate) fn add(&self, key: Key) {
        // Sending fails only at shutdown.
        let _ = self.0.send(key);
    }
}

#[derive(Default)]
struct QueueState {
    ready: VecDeque<Key>,
    queued: HashSet<Key>,
    running: HashSet<Key>,
    /// Added while being processed.
    again: HashSet<Key>,
    later: BinaryHeap<Reverse<(Instant, Key)>>,
    /// The entry in `later` that counts for each object; others are outdated.
    due: HashMap<Key, Instant>,
    failures: HashMap<Key, u32>,
}

impl QueueState {
    fn add(&mut self, key: Key) {
        if self.running.contains(&key) {
            self.again.insert(key);
        } else if self.queued.insert(key.clone()) {
            self.ready.push_back(key);
        }
    }

    fn take(&mut self) -> Option<Key> {
        let key = self.ready.pop_front()?;
        self.queued.remove(&key);
        self.due.remove(&key);
        self.running.insert(key.clone());
        Some(key)
    }

    fn done(&mut self, key: Key, result: Result<Requeue, kube::Error>, what: &str) {
        self.running.remove(&key);
        let now = Instant::now();
        match result {
            Ok(again) => {
                self.failures.remove(&key);
                if let Some(after) = again {
                    self.put_off(&key, now + after);
                }
            }
            Err(error) => {
                let count = self.failures.entry(key.clone()).or_default();
                *count = count.saturating_add(1);
                let doubled = FIRST_DELAY.saturating_mul(1 << (*count - 1).min(16));
                let delay = doubled.min(LONGEST_DELAY);
                let message = error_message(&error);
                if is_conflict(&error) || is_not_found(&error) {
                    tracing::debug!("{what} {key}: {message} (retrying in {delay:?})");
                } else {
                    tracing::warn!("{what} {key}: {message} (retrying in {delay:?})");
                }
                self.put_off(&key, now + delay);
            }
        }
        if self.again.remove(&key) {
            self.add(key);
        }
    }

    fn put_off(&mut self, key: &Key, to: Instant) {
        self.due.insert(key.clone(), to);
        self.later.push(Reverse((to, key.clone())));
    }

    fn wake(&mut self, now: Instant) {
        while self.later.peek().is_some_and(|Reverse((due, _))| *due <= now) {
            if let Some(Reverse((due, key))) = self.later.pop()
                && self.due.get(&key) == Some(&due)
            {
                self.add(key);
            }
        }
    }
}

/// Processes keys, at most `width` concurrently, until all senders are gone.
pub(crate) async fn drive<Work, Done>(
    what: &str,
    mut waiting: QueueReceiver,
    width: usize,
    work: Work,
) where
    Work: Fn(Key) -> Done,
    Done: Future<Output = Result<Requeue, kube::Error>>,
{
    let mut lines = QueueState::default();
    let mut running = FuturesUnordered::new();
    loop {
        lines.wake(Instant::now());
        while running.len() < width
            && let Some(key) = lines.take()
        {
            let done = work(key.clone());
            running.push(async move { (key, done.await) });
        }
        let due = lines.later.peek().map(|Reverse((due, _))| *due);
        let alarm = async move {
            match due {
                Some(due) => sleep_until(due).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            key = waiting.0.recv() => match key {
                Some(key) => {
                    lines.add(key);
                    while let Ok(key) = waiting.0.try_recv() {
                        lines.add(key);
                    }
                }
                None => return,
            },
            Some((key, result)) = running.next(), if !running.is_empty() => {
                lines.done(key, result, what);
            }
            () = alarm => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};
    use tokio::time::{sleep, timeout};

    #[tokio::test(start_paused = true)]
    async fn an_object_waits_once_and_is_never_looked_at_by_two() {
        let (queue, waiting) = queue();
        for _ in 0..5 {
            queue.add(Key::new("", "a"));
        }
        let log = Arc::new(Mutex::new(Vec::new()));
        let work = |key: Key| {
            let (log, queue) = (Arc::clone(&log), queue.clone());
            async move {
                let first = log.lock().unwrap().is_empty();
                log.lock().unwrap().push(format!("+{key}"));
                if first {
                    queue.add(key.clone());
                }
                sleep(Duration::from_secs(1)).await;
                log.lock().unwrap().push(format!("-{key}"));
                Ok(None)
            }
        };
        let _ = timeout(Duration::from_secs(60), drive("test", waiting, 8, work)).await;
        assert_eq!(*log.lock().unwrap(), ["+a", "-a", "+a", "-a"]);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_delay_the_next_attempt_and_success_forgives() {
        let (queue, waiting) = queue();
        queue.add(Key::new("", "a"));
        let begin = Instant::now();
        let log = Arc::new(Mutex::new(Vec::new()));
        let work = |_: Key| {
            let log = Arc::clone(&log);
            async move {
                log.lock().unwrap().push(begin.elapsed().as_millis());
                match log.lock().unwrap().len() {
                    1..4 => Err(kube::Error::LinesCodecMaxLineLengthExceeded),
                    4 => Ok(Some(Duration::from_secs(1))),
                    _ => Ok(None),
                }
            }
        };
        let _ = timeout(Duration::from_secs(60), drive("test", waiting, 8, work)).await;
        assert_eq!(*log.lock().unwrap(), [0, 10, 30, 70, 1070]);
    }
}
