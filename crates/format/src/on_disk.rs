//! One declaration per on-disk structure: struct, layout table and compile-time checks.

/// One field of an on-disk structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Bytes from the start of the structure.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
    pub name: &'static str,
    pub type_name: &'static str,
}

/// Name, size and fields of an on-disk structure.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    pub fields: &'static [Field],
}

/// Declares an on-disk structure: `repr(C)`, little-endian unaligned fields, a `LAYOUT` table, and constant
/// assertions that every offset and the size are what the declaration says. A wrong offset does not compile.
macro_rules! on_disk {
    ($(#[$doc:meta])* pub struct $name:ident : $size:literal {
        $($(#[$field_doc:meta])* $offset:literal => $field:ident : $type:ty,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
                 zerocopy::KnownLayout, zerocopy::Unaligned)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            /// Size in bytes on disk.
            pub const SIZE: usize = $size;
            pub const LAYOUT: $crate::on_disk::Layout = $crate::on_disk::Layout {
                name: stringify!($name),
                size: $size,
                fields: &[$($crate::on_disk::Field {
                    offset: $offset,
                    size: size_of::<$type>(),
                    name: stringify!($field),
                    type_name: stringify!($type),
                },)*],
            };

            /// The structure at the start of `bytes`. Panics if `bytes` is shorter than [`Self::SIZE`]: callers
            /// slice a block whose size they know.
            pub fn read(bytes: &[u8]) -> &Self {
                <Self as zerocopy::FromBytes>::ref_from_bytes(&bytes[..$size]).expect("size checked by the slice")
            }

            /// The structure at the start of `bytes`, for change. Panics if `bytes` is too short.
            pub fn read_mut(bytes: &mut [u8]) -> &mut Self {
                <Self as zerocopy::FromBytes>::mut_from_bytes(&mut bytes[..$size]).expect("size checked by the slice")
            }

            /// All bytes zero.
            #[must_use]
            pub fn zeroed() -> Self {
                <Self as zerocopy::FromZeros>::new_zeroed()
            }
        }

        const _: () = {
            assert!(size_of::<$name>() == $size, "size differs from the declaration");
            $(assert!(core::mem::offset_of!($name, $field) == $offset, "offset differs from the declaration");)*
        };
    };
}
pub(crate) use on_disk;
