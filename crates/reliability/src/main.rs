fn main() {
    use myriad_reliability::crash::campaign::Campaign;
    use myriad_reliability::crash::classes::{Amount, Class, RunId, runs};
    let campaign = Campaign::default();
    let amount = if std::env::var("LONG").is_ok() { Amount::Long } else { Amount::Short };
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.iter().any(|name| name == "fault") {
        use myriad_reliability::fault::{campaign::*, run::Outcome};
        let counts = Counts::default();
        let start = std::time::Instant::now();
        for failure in inject(&counts, &seeds(amount), 2, || false) {
            println!("{failure}");
        }
        for (number, (name, ..)) in KINDS.iter().enumerate() {
            println!("{name}: {:?}", Outcome::ALL.map(|o| counts.of(number, o)));
        }
        println!("{} in {:?}", counts.total(), start.elapsed());
    }
    for class in Class::ALL {
        let mut ids: Vec<RunId> =
            wanted.iter().filter_map(|name| RunId::named(name)).filter(|id| id.class == class).collect();
        if wanted.iter().any(|name| name == class.name()) {
            ids = runs(class, amount);
        }
        if ids.is_empty() {
            continue;
        }
        let start = std::time::Instant::now();
        let failures = campaign.run(&ids, amount, 2, || false);
        let counts = campaign.counts(class);
        println!(
            "{}: {} runs, {} distinct, states {:?} recoveries {:?} again {:?} continued {:?} in {:?}",
            class.name(),
            ids.len(),
            counts.distinct(),
            counts.states,
            counts.recoveries,
            counts.again,
            counts.continued,
            start.elapsed()
        );
        for failure in failures {
            println!("{failure}");
        }
    }
}
