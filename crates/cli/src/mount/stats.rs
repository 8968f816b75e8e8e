//! The figures of a live mount: collected by the daemon, sent as JSON, compared and shown by `myriad stats`.

use super::control::Status;
use crate::show::statfs::put_statfs;
use myriad_engine::Fs;
use myriad_fuse::Stats;
use serde_json::{Map, Value, json};

/// Everything that mount and volume count, since the mount began, and how full memory and log are now.
pub fn collect(status: &Status, stats: &Stats, fs: &Fs) -> Value {
    let requests = stats.requests.iter().map(|request| {
        json!({
            "name": request.name,
            "count": request.count,
            "errors": request.errors,
            "total_ns": request.total_ns,
            "max_ns": request.max_ns,
            "latency": request.latency,
        })
    });
    let levels = fs.levels();
    let counters = fs.counters().into_iter().map(|(name, value)| (name.to_owned(), Value::from(value)));
    let Value::Object(mut object) = status.json() else { unreachable!("a status is an object") };
    let figures = json!({
        "uptime_ns": u64::try_from(stats.uptime.as_nanos()).unwrap_or(u64::MAX),
        "transport": stats.transport,
        "kind": stats.kind,
        "why_no_sync": stats.why_no_sync,
        "nodes": stats.nodes,
        "bytes_read": stats.bytes_read,
        "bytes_written": stats.bytes_written,
        "requests": requests.collect::<Vec<Value>>(),
        "cache_size": levels.cache_size,
        "cache_used": levels.cache_used,
        "dirty_data": levels.dirty_data,
        "dirty_log": levels.dirty_log,
        "dircache_used": levels.dircache_used,
        "dirhash_used": levels.dirhash_used,
        "dirhash_count": levels.dirhash_count,
        "log_size": fs.info().log_size,
        "log_used": levels.log_used,
        "shut_down": fs.shut_down_reason(),
        "counters": Map::from_iter(counters),
    });
    let Value::Object(figures) = figures else { unreachable!("written as an object above") };
    object.extend(figures);
    // Counts in memory; the device is not asked.
    if let Ok(statfs) = fs.statfs() {
        put_statfs(&mut object, &statfs);
    }
    object.into()
}

/// As what the kernel has a mount, and what follows for those who sync.
pub fn kind_text(kind: &str, why_no_sync: Option<&str>) -> String {
    match why_no_sync {
        None => format!("{kind}: sync, syncfs and umount wait until everything is durable"),
        Some(why) => format!("{kind}: sync and syncfs do not reach it ({why}); sync DIRECTORY does"),
    }
}

/// The figures as numbers, for those who compare or add them up.
pub struct Figures {
    value: Value,
}

/// One kind of request.
pub struct Requests<'a> {
    pub name: &'a str,
    pub count: u64,
    pub errors: u64,
    pub total_ns: u64,
    pub max_ns: u64,
    pub latency: Vec<u64>,
}

impl Requests<'_> {
    /// A time within which `share` of the requests were answered. What the powers of two say is more than the longest took, at
    /// times: then it is that one.
    pub fn within(&self, share: f64) -> Option<u64> {
        percentile(&self.latency, share).map(|time| time.min(self.max_ns))
    }
}

impl Figures {
    pub fn new(value: Value) -> Self {
        Self { value }
    }

    pub fn json(&self) -> &Value {
        &self.value
    }

    /// Zero for what this daemon does not count.
    pub fn number(&self, key: &str) -> u64 {
        self.value.get(key).and_then(Value::as_u64).unwrap_or(0)
    }

    pub fn text(&self, key: &str) -> &str {
        self.value.get(key).and_then(Value::as_str).unwrap_or("")
    }

    pub fn counter(&self, name: &str) -> u64 {
        self.value.get("counters").and_then(|counters| counters.get(name)).and_then(Value::as_u64).unwrap_or(0)
    }

    pub fn counters(&self) -> impl Iterator<Item = (&str, u64)> {
        let counters = self.value.get("counters").and_then(Value::as_object);
        counters.into_iter().flatten().map(|(name, value)| (&**name, value.as_u64().unwrap_or(0)))
    }

    pub fn requests(&self) -> impl Iterator<Item = Requests<'_>> {
        let list = self.value.get("requests").and_then(Value::as_array);
        list.into_iter().flatten().map(|request| {
            let number = |key| request.get(key).and_then(Value::as_u64).unwrap_or(0);
            let latency = request.get("latency").and_then(Value::as_array);
            Requests {
                name: request.get("name").and_then(Value::as_str).unwrap_or(""),
                count: number("count"),
                errors: number("errors"),
                total_ns: number("total_ns"),
                max_ns: number("max_ns"),
                latency: latency.into_iter().flatten().map(|count| count.as_u64().unwrap_or(0)).collect(),
            }
        })
    }

    /// One kind of request, by name.
    pub fn request(&self, name: &str) -> Option<Requests<'_>> {
        self.requests().find(|request| request.name == name)
    }
}

/// The time within which `share` of the requests were answered, in nanoseconds: the upper end of a power of two.
fn percentile(latency: &[u64], share: f64) -> Option<u64> {
    let total = latency.iter().fold(0, |sum, &count| u64::saturating_add(sum, count));
    let wanted = ((total as f64 * share).ceil() as u64).max(1);
    let mut seen = 0_u64;
    let bucket = latency.iter().position(|&count| {
        seen = u64::saturating_add(seen, count);
        seen >= wanted
    })?;
    Some(1_u64.checked_shl(bucket as u32 + 1).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_upper_ends() {
        assert_eq!(percentile(&[], 0.5), None);
        assert_eq!(percentile(&[0, 0], 0.5), None);
        assert_eq!(percentile(&[0, 10, 0, 1], 0.5), Some(4));
        assert_eq!(percentile(&[0, 10, 0, 1], 0.99), Some(16));
        assert_eq!(percentile(&[1], 0.0), Some(2));
    }

    #[test]
    fn no_share_takes_longer_than_the_longest() {
        let figures = Figures::new(json!({"requests": [
            {"name": "READ", "count": 3, "max_ns": 5, "latency": [0, 1, 2]},
            {"name": "WRITE", "count": 1, "max_ns": 100, "latency": [0, 1]},
            {"name": "LOOKUP", "count": 0, "max_ns": 0, "latency": []},
        ]}));
        let within = |name, share| figures.request(name).unwrap().within(share);
        assert_eq!((within("READ", 0.3), within("READ", 0.5)), (Some(4), Some(5)));
        assert_eq!((within("WRITE", 0.99), within("LOOKUP", 0.5)), (Some(4), None));
    }

    #[test]
    fn missing_figures_are_zero() {
        let figures = Figures::new(json!({"requests": [{"name": "LOOKUP", "count": 3}, 7], "nodes": -1}));
        assert_eq!((figures.number("nodes"), figures.number("none"), figures.counter("none")), (0, 0, 0));
        assert_eq!(figures.request("LOOKUP").unwrap().count, 3);
        assert_eq!(figures.requests().count(), 2);
    }
}
