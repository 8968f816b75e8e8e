use myriad_device::MemoryDevice;
use myriad_engine::*;
use std::sync::Arc;
use std::time::Instant;
fn main() {
    let n: u32 = std::env::args().nth(1).map_or(1000, |a| a.parse().unwrap());
    let file = std::env::args().nth(2);
    let device: Arc<dyn myriad_device::BlockDevice> = match &file {
        None => Arc::new(MemoryDevice::new(8 << 30)),
        Some(p) => {
            Fs::format(p.as_ref(), Some(16 << 30), &MkfsOptions::default()).unwrap();
            Arc::new(MemoryDevice::new(1 << 20))
        }
    };
    let fs = match &file {
        None => {
            Fs::format_device(device.clone(), None, &MkfsOptions::default()).unwrap();
            Fs::open_device(device.clone(), None, MountOptions::default()).unwrap()
        }
        Some(p) => Fs::open(p.as_ref(), MountOptions::default()).unwrap(),
    };
    let s = fs.session(Cred::root());
    println!("{:?}", fs.statfs().unwrap());
    s.mkdir("/d", 0o755).unwrap();
    let names: Vec<String> = (0..n).map(|i| format!("/d/file{i:07}")).collect();
    let t = Instant::now();
    for name in &names {
        s.create(name, 0o644).unwrap();
    }
    println!("create {:?}", t.elapsed() / n);
    let t1 = Instant::now();
    fs.sync().unwrap();
    println!("sync {:?} total/op {:?}", t1.elapsed(), t.elapsed() / n);
    let mut order: Vec<usize> = (0..names.len()).collect();
    let mut z = 88172645463325252u64;
    for i in (1..order.len()).rev() {
        z ^= z << 13;
        z ^= z >> 7;
        z ^= z << 17;
        order.swap(i, (z % (i as u64 + 1)) as usize);
    }
    for _ in 0..2 {
        let t = Instant::now();
        for &i in &order {
            s.stat(&names[i]).unwrap();
        }
        println!("stat random {:?}", t.elapsed() / n);
    }
    let t = Instant::now();
    let shuffled: Vec<&String> = order.iter().map(|&i| &names[i]).collect();
    for r in s.stat_many(&shuffled) {
        r.unwrap();
    }
    println!("stat_many {:?}", t.elapsed() / n);
    let t = Instant::now();
    for &i in &order {
        assert!(s.stat(&format!("/d/missing{i}")).is_err());
    }
    println!("stat missing {:?}", t.elapsed() / n);
    let t = Instant::now();
    assert_eq!(s.read_dir("/d").unwrap().count(), n as usize);
    println!("list {:?}", t.elapsed() / n);
    let t = Instant::now();
    assert_eq!(s.walk("/d").unwrap().count(), n as usize + 1);
    println!("walk {:?}", t.elapsed() / n);
    let t = Instant::now();
    for &i in &order {
        if let Err(e) = s.rename(&names[i], &format!("/d/r{i:08}"), RenameMode::Replace) {
            panic!("{e} {:?}", fs.shut_down_reason())
        }
    }
    println!("rename {:?}", t.elapsed() / n);
    let t = Instant::now();
    for &i in &order {
        s.unlink(&format!("/d/r{i:08}")).unwrap();
    }
    fs.sync().unwrap();
    println!("unlink+sync {:?}", t.elapsed() / n);
    println!("{:?}", fs.statfs().unwrap());
    for (k, v) in fs.counters() {
        if v > 0 {
            print!("{k}={v} ");
        }
    }
    println!();
    let f =
        s.open("/x", OpenOptions { read: true, write: true, create: true, mode: 0o644, ..Default::default() }).unwrap();
    let data: Vec<u8> = (0..300000u32).map(|i| (i % 251) as u8).collect();
    f.write_at(&data, 1000).unwrap();
    f.sync().unwrap();
    let mut back = vec![0; 400000];
    assert_eq!(f.read_at(&mut back, 0).unwrap(), 301000);
    assert_eq!(&back[1000..301000], &data[..]);
    drop(f);
    drop(s);
    fs.close().unwrap();
    let t = Instant::now();
    let fs = match &file {
        None => Fs::open_device(device, None, MountOptions::default()).unwrap(),
        Some(p) => Fs::open(p.as_ref(), MountOptions::default()).unwrap(),
    };
    println!("open {:?} recovered {}", t.elapsed(), fs.info().recovered);
    let s = fs.session(Cred::root());
    println!("{:?}", s.stat("/x").unwrap());
    println!("{:?}", fs.statfs().unwrap());
}
