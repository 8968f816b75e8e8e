//! Changes of permission bits as chmod(1) takes them: `755`, `u=rwx,go=`, `a+X`, `g=u`, `+t`, `-w`.
//!
//! The rules are GNU's, beyond those of POSIX: without `u`, `g`, `o` or `a` the umask holds bits back, and a directory keeps
//! set-id bits that the change does not name, in octal unless five digits are written.

const ALL: u16 = 0o7777;
const SET_ID: u16 = 0o6000;
const EXECUTE: u16 = 0o111;

/// A change, to be applied to any number of modes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModeChange(Vec<Step>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    op: Op,
    /// The bits of those who were named; none: of all, less the umask.
    affected: u16,
    value: Value,
    /// The bits that were named, which change on directories as well.
    mentioned: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Set,
    Add,
    Remove,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    Bits(u16),
    /// These, and to execute for directories and what somebody may execute.
    BitsAndX(u16),
    /// What these have.
    Copy(u16),
}

impl ModeChange {
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a mode; write it in octal, as in 0755, or as in u=rwx,go=rX");
        let bytes = text.as_bytes();
        if bytes.first().is_some_and(u8::is_ascii_digit) {
            let value = octal(bytes).ok_or_else(wrong)?;
            let mentioned = if bytes.len() < 5 { value & SET_ID | 0o1777 } else { ALL };
            return Ok(Self(vec![Step { op: Op::Set, affected: ALL, value: Value::Bits(value), mentioned }]));
        }
        let mut steps = Vec::new();
        for clause in bytes.split(|&byte| byte == b',') {
            parse_clause(clause, &mut steps).ok_or_else(wrong)?;
        }
        Ok(Self(steps))
    }

    /// Just these bits.
    pub fn exactly(mode: u16) -> Self {
        Self(vec![Step { op: Op::Set, affected: ALL, value: Value::Bits(mode), mentioned: ALL }])
    }

    /// The bits that `mode` becomes.
    pub fn apply(&self, mode: u16, is_dir: bool, umask: u16) -> u16 {
        self.0.iter().fold(mode & ALL, |mode, step| step.apply(mode, is_dir, umask))
    }
}

impl Step {
    fn apply(self, mode: u16, is_dir: bool, umask: u16) -> u16 {
        let kept = if is_dir { SET_ID & !self.mentioned } else { 0 };
        let value = match self.value {
            Value::Bits(bits) => bits,
            Value::BitsAndX(bits) if is_dir || mode & EXECUTE != 0 => bits | EXECUTE,
            Value::BitsAndX(bits) => bits,
            Value::Copy(from) => [0o444, 0o222, 0o111].iter().filter(|&&bits| mode & from & bits != 0).sum(),
        };
        let value = value & if self.affected == 0 { !umask } else { self.affected } & !kept;
        match self.op {
            Op::Set => mode & (kept | if self.affected == 0 { 0 } else { !self.affected }) | value,
            Op::Add => mode | value,
            Op::Remove => mode & !value,
        }
    }
}

fn octal(digits: &[u8]) -> Option<u16> {
    let is_octal = !digits.is_empty() && digits.iter().all(|digit| (b'0'..b'8').contains(digit));
    let text = std::str::from_utf8(digits).ok().filter(|_| is_octal)?;
    u16::from_str_radix(text, 8).ok().filter(|&mode| mode <= ALL)
}

/// `go=u`, `+x`, `u-s+t`.
fn parse_clause(clause: &[u8], steps: &mut Vec<Step>) -> Option<()> {
    let is_op = |byte: &u8| b"+-=".contains(byte);
    let start = clause.iter().position(is_op)?;
    let mut affected = 0;
    for who in &clause[..start] {
        affected |= match who {
            b'u' => 0o4700,
            b'g' => 0o2070,
            b'o' => 0o1007,
            b'a' => ALL,
            _ => return None,
        };
    }
    let mut rest = &clause[start..];
    while let Some((op, after)) = rest.split_first() {
        let op = match op {
            b'+' => Op::Add,
            b'-' => Op::Remove,
            _ => Op::Set,
        };
        let end = after.iter().position(is_op).unwrap_or(after.len());
        let (what, next) = after.split_at(end);
        steps.push(step(op, affected, what)?);
        rest = next;
    }
    Some(())
}

fn step(op: Op, affected: u16, what: &[u8]) -> Option<Step> {
    if what.first().is_some_and(u8::is_ascii_digit) {
        let value = octal(what).filter(|_| affected == 0)?;
        return Some(Step { op, affected: ALL, value: Value::Bits(value), mentioned: ALL });
    }
    let (value, named) = match what {
        [b'u'] => (Value::Copy(0o700), 0o700),
        [b'g'] => (Value::Copy(0o070), 0o070),
        [b'o'] => (Value::Copy(0o007), 0o007),
        _ => {
            let mut bits = 0;
            for letter in what {
                bits |= match letter {
                    b'r' => 0o444,
                    b'w' => 0o222,
                    b'x' => EXECUTE,
                    b'X' => 0,
                    b's' => SET_ID,
                    b't' => 0o1000,
                    _ => return None,
                };
            }
            (if what.contains(&b'X') { Value::BitsAndX(bits) } else { Value::Bits(bits) }, bits)
        }
    };
    let mentioned = if affected == 0 { named } else { affected & named };
    Some(Step { op, affected, value, mentioned })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_those_of_chmod() {
        // Change; mode before; of a directory; umask; mode after.
        let cases: &[(&str, u16, bool, u16, u16)] = &[
            ("755", 0o644, false, 0, 0o755),
            ("0", 0o7777, false, 0, 0),
            ("755", 0o2700, true, 0, 0o2755),
            ("00755", 0o2700, true, 0, 0o755),
            ("2755", 0o4700, true, 0, 0o6755),
            ("u=rwx,go=", 0o666, false, 0, 0o700),
            ("a=", 0o6777, true, 0, 0o6000),
            ("=", 0o777, false, 0o22, 0),
            ("+w", 0o444, false, 0o22, 0o644),
            ("a+w", 0o444, false, 0o22, 0o666),
            ("-w", 0o666, false, 0o22, 0o466),
            ("a+X", 0o644, false, 0, 0o644),
            ("a+X", 0o744, false, 0, 0o755),
            ("a+X", 0o644, true, 0, 0o755),
            ("g=u", 0o640, false, 0, 0o660),
            ("o+g", 0o750, false, 0, 0o755),
            ("u+s,g+s,+t", 0o755, false, 0, 0o7755),
            ("u+s", 0o755, true, 0, 0o4755),
            ("a-s", 0o6755, true, 0, 0o755),
            ("u-x+r=w", 0o755, false, 0, 0o255),
            ("+x-w", 0o622, false, 0, 0o511),
            ("=rwX", 0o100, false, 0, 0o777),
            ("=640", 0o2777, true, 0, 0o640),
            ("+4000", 0o755, false, 0o77, 0o4755),
            ("o+t", 0o755, true, 0, 0o1755),
            ("u+t", 0o755, true, 0, 0o755),
        ];
        for &(text, before, is_dir, umask, after) in cases {
            let change = ModeChange::parse(text).unwrap_or_else(|error| panic!("{error}"));
            let found = change.apply(before, is_dir, umask);
            assert_eq!(found, after, "{text} of {before:o}: {found:o}, not {after:o}");
        }
        for text in ["", "8", "10000", "u", "x", "u+y", "u+rw,", ",u+r", "u=7", "a+ux", "755x", "u +x", "+8"] {
            assert!(ModeChange::parse(text).is_err(), "{text}");
        }
    }
}
