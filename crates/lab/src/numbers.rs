//! Numbers as people write them.

/// `1000`, `10k`, `1M`, `1e6`: powers of 1000.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let usage = || "write a number, as in 1000, 100k, 10M or 1e6".to_owned();
    if let Some((digits, exponent)) = text.split_once(['e', 'E']) {
        let power = exponent.parse().ok().and_then(|exponent| 10_u64.checked_pow(exponent));
        return digits
            .parse()
            .ok()
            .zip(power)
            .and_then(|(digits, power): (u64, u64)| digits.checked_mul(power))
            .ok_or_else(usage);
    }
    scaled(text, &[('K', 1000), ('M', 1_000_000), ('G', 1_000_000_000)]).ok_or_else(usage)
}

/// As `parse_count`, at least 1.
pub fn parse_some(text: &str) -> Result<u64, String> {
    match parse_count(text)? {
        0 => Err("this is at least 1".to_owned()),
        count => Ok(count),
    }
}

fn scaled(text: &str, units: &[(char, u64)]) -> Option<u64> {
    let last = text.chars().next_back()?.to_ascii_uppercase();
    let (digits, factor) = match units.iter().find(|unit| unit.0 == last) {
        Some(&(_, factor)) => (&text[..text.len() - 1], factor),
        None => (text, 1),
    };
    match digits.split_once('.') {
        None => digits.parse::<u64>().ok()?.checked_mul(factor),
        Some((whole, fraction)) => {
            let power = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
            let part = fraction.parse::<u64>().ok()?.checked_mul(factor)? / power;
            whole.parse::<u64>().ok()?.checked_mul(factor)?.checked_add(part)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts() {
        let counts = [
            ("1000", Some(1000)),
            ("10k", Some(10_000)),
            ("1M", Some(1_000_000)),
            ("1e7", Some(10_000_000)),
            ("1.5k", Some(1500)),
            ("k", None),
            ("-1", None),
            ("1e99", None),
            ("", None),
        ];
        for (text, count) in counts {
            assert_eq!(parse_count(text).ok(), count, "{text}");
        }
    }
}
