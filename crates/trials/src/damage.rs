//! Damage by a table that the layouts make: on a sound volume with every structure that its choices have, each field of a structure is
//! set to its limits, one after the other, with its checksum made right; and blocks are torn, or gone. Nobody lists the cases, so a
//! structure that comes into the build is damaged here as soon as its layout is declared. `hostile` draws such damage and many other
//! kinds at random; here each field has its turn.
//!
//! The judge is that of hostile images (`hostile::exercise`): engine and check agree about what is wrong, nothing panics or goes on
//! for ever, and after a repair there is nothing left to find, to read and to change. Besides, the check looks at every structure: of
//! each kind of block there is one that it misses when it is torn.

use crate::crash::classes::Amount;
use crate::hostile::Field;
use crate::hostile::bases::{self, Base, SHAPES};
use crate::hostile::exercise::{Facts, Plan, examine};
use crate::table::Row;
use crate::verdict::catch;
use myriad_device::{BlockDevice, MemoryDevice};
use myriad_format::{BlockKind, header};
use myriad_sim::rng::Rng;
use myriad_sim::threads::FAILURES_MAX;

/// Blocks of each kind that are damaged field by field: the first, the last, and one between.
const SITES: usize = 3;

/// What is done to a volume of this row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    pub row: Row,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The case of this number.
    Case(usize),
    /// All blocks of this kind, by its index, torn one after the other.
    Torn(usize),
}

impl Damage {
    pub fn name(&self) -> String {
        match self.what {
            What::Case(number) => format!("damage/{number}"),
            What::Torn(kind) => format!("damage/torn/{kind}"),
        }
    }

    pub fn named(row: Row, name: &str) -> Option<Self> {
        let parts: Vec<&str> = name.split('/').collect();
        let what = match parts[..] {
            ["damage", number] => What::Case(number.parse().ok()?),
            ["damage", "torn", kind] => What::Torn(kind.parse().ok().filter(|&kind| kind < BlockKind::ALL.len())?),
            _ => return None,
        };
        Some(Self { row, what })
    }

    /// Does it, and has it judged.
    pub fn run(&self) -> Result<(), String> {
        self.on(&Sample::new(self.row)?)
    }

    fn on(&self, sample: &Sample) -> Result<(), String> {
        let (told, result) = match self.what {
            What::Case(number) => {
                let case = sample.cases.get(number).ok_or_else(|| format!("there are {} cases", sample.cases.len()))?;
                (sample.tell(case), sample.judge(case, Plan { change: true, check: true, repair: true }).map(drop))
            }
            What::Torn(kind) => {
                let kind = BlockKind::ALL[kind];
                (format!("{}, torn", kind.name()), sample.is_missed(kind))
            }
        };
        result.map_err(|message| format!("{told}: {message}\n{}", self.row.replay_line(&self.name())))
    }
}

/// What is done to a block.
#[derive(Clone, Copy)]
enum Deed {
    Field {
        field: Field,
        value: u64,
    },
    /// Its second half is zero, and its checksum that of the whole.
    Torn,
    /// It is zero.
    Gone,
}

struct Case {
    /// Which block: its index among the sample's.
    site: usize,
    deed: Deed,
    /// Not of the same field of another block of its kind.
    is_first: bool,
}

/// A sound volume, and what can be done to it.
struct Sample {
    base: Base,
    cases: Vec<Case>,
}

impl Sample {
    fn new(row: Row) -> Result<Self, String> {
        let shape = SHAPES.iter().find(|shape| shape.order == row.order && shape.is_clean);
        let shape = shape.ok_or_else(|| format!("no volume to damage has order {:?}", row.order))?;
        let base = bases::make(row.choices, *shape).map_err(|error| format!("making a sound volume: {error}"))?;
        let mut cases = Vec::new();
        for kind in BlockKind::ALL {
            let mut seen: Vec<&str> = Vec::new();
            for site in chosen(&base, kind) {
                for deed in [Deed::Torn, Deed::Gone] {
                    cases.push(Case { site, deed, is_first: true });
                }
                let bytes = base.block(base.sites[site].block);
                let mut here: Vec<&str> = Vec::new();
                for field in &base.sites[site].fields {
                    let is_first = !seen.contains(&field.name) && !here.contains(&field.name);
                    here.push(field.name);
                    for value in limits(*field, field.get(&bytes)) {
                        cases.push(Case { site, deed: Deed::Field { field: *field, value }, is_first });
                    }
                }
                seen.append(&mut here);
            }
        }
        Ok(Self { base, cases })
    }

    fn tell(&self, case: &Case) -> String {
        let site = &self.base.sites[case.site];
        let what = match case.deed {
            Deed::Field { field, value } => format!("{} at byte {} is {value:#x}", field.name, field.at),
            Deed::Torn => "torn".to_owned(),
            Deed::Gone => "zero".to_owned(),
        };
        format!("{} in block {}: {what}", site.kind.name(), site.block.0)
    }

    fn damaged(&self, case: &Case) -> MemoryDevice {
        let base = &self.base;
        let block = base.sites[case.site].block;
        let mut bytes = base.block(block);
        match case.deed {
            Deed::Field { field, value } => {
                field.set(&mut bytes, value);
                header::reseal(&mut bytes, &base.volume, block);
            }
            Deed::Torn => {
                // Wherever the sum is, of a block or of a unit, it does not fit any more.
                let half = bytes.len() / 2;
                bytes[half..].fill(0);
                bytes[half - 1] ^= 1;
            }
            Deed::Gone => bytes.fill(0),
        }
        let image = base.image.clone_image();
        image.write(block.0 << base.geometry.block_bits, &bytes).expect("a block of the base");
        image
    }

    fn judge(&self, case: &Case, plan: Plan) -> Result<Facts, String> {
        let image = self.damaged(case);
        catch(|| examine(&image, plan, &mut Rng::new(case.site as u64)))
    }

    /// An error if all blocks of this kind may be torn and the check does not see it. Some may lie in free space: of a closed
    /// volume that has no orphans any more, the blocks of their list do.
    fn is_missed(&self, kind: BlockKind) -> Result<(), String> {
        if kind == BlockKind::Orphans {
            return Ok(());
        }
        let mut sites = self.base.sites.iter().enumerate().filter(|(_, site)| site.kind == kind).peekable();
        if sites.peek().is_none() {
            return Ok(());
        }
        for (site, _) in sites {
            let torn = Case { site, deed: Deed::Torn, is_first: true };
            let facts = self.judge(&torn, Plan { check: true, ..Plan::default() })?;
            if facts.findings > 0 || !facts.checked {
                return Ok(());
            }
        }
        Err("the check has nothing to say, whichever it is".into())
    }
}

/// The blocks of a kind that are damaged field by field: their indices among the base's sites.
fn chosen(base: &Base, kind: BlockKind) -> Vec<usize> {
    let all: Vec<usize> = (0..base.sites.len()).filter(|&site| base.sites[site].kind == kind).collect();
    let mut chosen: Vec<usize> = Vec::new();
    for part in 0..SITES {
        let site = all.get(part * all.len().saturating_sub(1) / (SITES - 1));
        chosen.extend(site.filter(|site| !chosen.contains(site)));
    }
    chosen
}

/// The ends of what a field can hold, and what is next to what it holds.
fn limits(field: Field, old: u64) -> Vec<u64> {
    let mut values = Vec::new();
    for value in [0, field.max(), old.wrapping_add(1) & field.max(), old.wrapping_sub(1) & field.max()] {
        if value != old && !values.contains(&value) {
            values.push(value);
        }
    }
    values
}

/// What was done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub cases: u64,
    /// Kinds of blocks that these were done to.
    pub kinds: u64,
}

/// Does all damage to a volume of this row: to each field of each chosen block, or if it is to be short, to one of each name.
/// What failed.
pub fn all(row: Row, amount: Amount, counts: &mut Counts, is_over: impl Fn() -> bool) -> Vec<String> {
    let sample = match Sample::new(row) {
        Ok(sample) => sample,
        Err(message) => return vec![format!("{}: {message}", row.name())],
    };
    let mut failures = Vec::new();
    let cases = sample.cases.iter().enumerate().filter(|(_, case)| amount == Amount::Long || case.is_first);
    let cases = cases.map(|(number, _)| What::Case(number));
    for what in (0..BlockKind::ALL.len()).map(What::Torn).chain(cases) {
        if is_over() || failures.len() == FAILURES_MAX {
            break;
        }
        counts.cases += u64::from(matches!(what, What::Case(_)));
        failures.extend(Damage { row, what }.on(&sample).err());
    }
    let has = |kind: &&BlockKind| sample.base.sites.iter().any(|site| site.kind == **kind);
    counts.kinds = counts.kinds.max(BlockKind::ALL.iter().filter(has).count() as u64);
    failures
}
