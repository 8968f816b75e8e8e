//! What programs read of changes and of errors.

use crate::apart::{furnished, objects, with_input};
use serde_json::{Value, json};

/// Each line is run on the volume as the lines before it left it: what it says of files.
#[test]
fn changes_are_told_as_json() {
    let place = furnished();
    let file = |change: &str, path: &str| json!({ "change": change, "image": "vol.img", "path": path });
    let with = |mut object: Value, fields: Value| {
        object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        object
    };
    let owner = |uid: u32, before: u32| json!({ "uid": uid, "gid": 7, "uid_before": before, "gid_before": before });
    let cases: &[(&str, &str, Vec<Value>)] = &[
        (
            "mkdir -p --json vol.img:/a/b",
            "",
            ["/a", "/a/b"].map(|path| with(file("created", path), json!({ "type": "directory" }))).to_vec(),
        ),
        ("mv --json vol.img:/f vol.img:/h", "", vec![with(file("renamed", "/h"), json!({ "path_before": "/f" }))]),
        (
            "mv --json --exchange vol.img:/h vol.img:/a",
            "",
            vec![with(file("exchanged", "/a"), json!({ "path_before": "/h" }))],
        ),
        (
            "mv --json --exchange -q vol.img:/h vol.img:/a",
            "",
            vec![with(file("exchanged", "/a"), json!({ "path_before": "/h" }))],
        ),
        ("ln --json vol.img:/h vol.img:/i", "", vec![with(file("linked", "/i"), json!({ "target": "/h" }))]),
        (
            "ln -sb --json x vol.img:/i",
            "",
            vec![with(file("created", "/i"), json!({ "type": "symbolic_link", "target": "x", "backup": "/i~" }))],
        ),
        (
            "touch --json -d @5 vol.img:/h vol.img:/new",
            "",
            [("touched", "/h"), ("created", "/new")]
                .map(|(change, path)| {
                    with(file(change, path), json!({ "atime_ns": 5_000_000_000_u64, "mtime_ns": 5_000_000_000_u64 }))
                })
                .to_vec(),
        ),
        (
            "chmod --json 600 vol.img:/h vol.img:/h",
            "",
            vec![with(file("mode", "/h"), json!({ "mode": "0600", "mode_before": "0644" }))],
        ),
        ("chown --json 5:7 vol.img:/h", "", vec![with(file("owner", "/h"), owner(5, 0))]),
        (
            "truncate --json -s +4 vol.img:/h",
            "",
            vec![with(file("size", "/h"), json!({ "size": 9, "size_before": 5 }))],
        ),
        (
            "tee -a --json vol.img:/h vol.img:/new",
            "more",
            ["/h", "/new"].map(|path| with(file("written", path), json!({ "bytes": 4, "appended": true }))).to_vec(),
        ),
        ("sync --json vol.img", "", vec![file("synced", "/")]),
        (
            "rm -r --json vol.img:/d",
            "",
            vec![
                with(file("removed", "/d/g"), json!({ "type": "regular_file" })),
                with(file("removed", "/d"), json!({ "type": "directory" })),
            ],
        ),
        ("rm -f --json vol.img:/none", "", vec![]),
    ];
    for (line, input, expected) in cases {
        let verb = line.split(' ').next().unwrap();
        let answer = with_input(&place, line, input).ok();
        let mut said = objects(answer.text());
        let sum = said.pop().expect("a line that sums up");
        assert!(sum["seconds"].is_f64(), "{sum}");
        let sum = without(sum, "seconds");
        let count = expected.len();
        assert_eq!(sum, json!({ "verb": verb, "changed": count, "errors": 0, "complete": true }), "{line}");
        let expected: Vec<Value> =
            expected.iter().map(|object| with(json!({ "verb": verb }), object.clone())).collect();
        assert_eq!(said, expected, "{line}");
    }
    place.assert_sound();
}

fn without(mut object: Value, field: &str) -> Value {
    object.as_object_mut().unwrap().remove(field);
    object
}

#[test]
fn errors_are_told_as_json() {
    let place = furnished();
    let missing = json!({ "place": "vol.img:/none", "what": "No such file or directory",
        "next": "myriad ls shows what is there", "kind": "error" });
    let said = place.line("rm --json vol.img:/none vol.img:/f").expect(1, &[]);
    assert_eq!(objects(&said.err), [json!({ "error": missing })]);
    let lines = objects(said.text());
    assert_eq!((&lines[0]["path"], &lines[1]["errors"], &lines[1]["changed"]), (&"/f".into(), &1.into(), &1.into()));
    // Verbs that only look speak so, too.
    let said = place.line("stat --json vol.img:/none").expect(1, &[]);
    assert_eq!(objects(&said.err), [json!({ "error": missing })]);
    for (line, code, what) in [
        ("chmod --json rwx vol.img:/d", 2, "`rwx` is not a mode"),
        ("rm --json", 2, "the following required arguments were not provided: <IMAGE:/path>..."),
        ("remov --json vol.img:/d", 2, "there is no verb `remov`"),
        ("mv --json vol.img:/d", 2, "where is it to go?"),
    ] {
        let said = place.line(line).expect(code, &[]);
        let [error] = &objects(&said.err)[..] else { panic!("{said:?}") };
        assert_eq!(error["error"]["kind"], "usage", "{said:?}");
        assert!(error["error"]["what"].as_str().unwrap().starts_with(what), "{said:?}");
        assert!(said.out.is_empty(), "nothing was done: {said:?}");
    }
    // Files may be named like the option.
    place.line("rm -- --json").expect(2, &["error: "]);
}
