//! `df`: its columns are those of df(1); what a volume holds, df(1) has no copy of.

use super::Bench;

#[test]
fn headings_are_those_of_df() {
    let bench = Bench::new();
    for options in
        ["", "-T", "-h", "-hT", "-H", "-k", "-m", "-BM", "-B 1G", "-B 1000", "-i", "-iT", "-hi", "-P", "-Pm", "-a"]
    {
        let heading =
            |answer: super::Answer| answer.ok().lines()[0].split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (mut ours, mut theirs) =
            (heading(bench.ours(&format!("df {options} vol.img"))), heading(bench.theirs(&format!("df {options} ."))));
        // `Filesystem`, and `Mounted on`.
        theirs.truncate(theirs.len() - 2);
        (theirs[0], ours[0]) = (String::new(), String::new());
        // df(1) calls 1000 bytes 1kB.
        let theirs: Vec<String> = theirs.iter().map(|word| word.replace("1kB-", "1000-")).collect();
        assert_eq!(ours, theirs, "{options}");
    }
}

#[test]
fn figures_add_up_in_every_unit() {
    let bench = Bench::new();
    bench.place.line("mkfs b.img --size 128M -q").ok();
    let json = bench.place.line("df --json vol.img").ok().json();
    let field = |name: &str| json[name].as_u64().unwrap();
    let figures = |options: &str| {
        let shown = bench.place.line(&format!("df {options} vol.img")).ok();
        shown.lines()[1].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for (options, unit) in [("-k", 1024), ("-m", 1 << 20), ("-B 512", 512)] {
        let expected = ["size", "used", "available"].map(|name| field(name).div_ceil(unit).to_string());
        assert_eq!(figures(options)[1..4], expected, "{options}");
    }
    assert_eq!(figures("-T")[1], "myriad");
    assert_eq!(figures("-i")[2], field("inodes_used").to_string());
    assert_eq!(figures("--output=avail,source -k"), [field("available").div_ceil(1024).to_string(), "vol.img".into()]);
    let total = bench.place.line("df -k --total vol.img b.img").ok();
    let rows: Vec<Vec<&str>> = total.lines().iter().map(|line| line.split_whitespace().collect()).collect();
    let number = |row: usize| rows[row][1].parse::<u64>().unwrap();
    assert_eq!((rows[3][0], number(3)), ("total", number(1) + number(2)), "{rows:?}");
    bench.place.line("df --output=color vol.img").expect(2, &["possible values: source, fstype"]);
}
