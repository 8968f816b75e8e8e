//! What a directory tree refuses, and that it refuses it before it changes anything.

use crate::dir::tests::{Tried, formatted};
use myriad_device::BlockDevice;
use myriad_format::choices::{Choices, Directory};
use myriad_format::superblock::Superblock;
use myriad_format::{FEW_TAGS_KEY, NameHasher, header};

/// A volume whose directories are trees.
fn tried(has_few_tags: bool) -> Tried {
    let device = formatted(Choices { directory: Directory::Tree, ..Choices::default() });
    if has_few_tags {
        let mut block = vec![0; 4096];
        device.read(0, &mut block).unwrap();
        Superblock::read_mut(&mut block).hash_key = FEW_TAGS_KEY;
        header::seal(&mut block, 0);
        device.write(0, &block).unwrap();
    }
    Tried::on(device)
}

/// So many nodes that no leaf may be split any more: names that need that are refused, others are not.
#[test]
fn a_directory_of_the_largest_size_refuses_names_and_the_volume_goes_on() {
    let tried = tried(false);
    let long = |i: u32| format!("{i:0255}").into_bytes();
    let made = (0..).take_while(|&i| tried.link(&long(i)).is_ok()).count() as u32;
    assert!((super::tree::NODES_MAX as u32 * 7..super::tree::NODES_MAX as u32 * 15).contains(&made), "{made}");
    tried.assert_refuses(&long(made));
    // There are leaves with room, and for a short name most have some.
    let more = (0..200_u32).filter(|i| tried.link(&i.to_le_bytes().map(|byte| byte | 1)).is_ok()).count();
    assert!(more > 20, "{more}");
    tried.assert_sound();
    for i in 0..made / 2 {
        tried.unlink(&long(i));
    }
    tried.link(&long(made)).unwrap();
    tried.assert_sound();
}

/// A tag has so many numbers and no more; one that a name gave back is another one's.
#[test]
fn names_with_one_tag_are_counted() {
    let tried = tried(true);
    let hasher = NameHasher::new(FEW_TAGS_KEY);
    let names: Vec<Vec<u8>> = (0..)
        .map(|i: u32| format!("{i:x}").into_bytes())
        .filter(|name| hasher.hash(name) as u32 == 3)
        .take(super::NUMBERS as usize + 2)
        .collect();
    let (fit, beyond) = names.split_at(super::NUMBERS as usize);
    for name in fit {
        tried.link(name).unwrap();
    }
    tried.assert_refuses(&beyond[0]);
    tried.unlink(&fit[77]);
    tried.unlink(&fit[78]);
    tried.link(&beyond[0]).unwrap();
    tried.link(&beyond[1]).unwrap();
    tried.assert_refuses(&fit[77]);
    tried.assert_sound();
    // Behind the last number there is room again once the last name has gone.
    tried.unlink(&fit[super::NUMBERS as usize - 1]);
    tried.link(&fit[77]).unwrap();
    tried.assert_sound();
}
