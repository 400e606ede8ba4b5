//! Metrics: numbers that grow or change, each described once, where it is counted.

/// A number in a report, with all that a report says about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Metric {
    /// The name, unique within its struct. Its end states the unit: `_bytes`, `_ns`, or the things that are counted.
    pub name: &'static str,
    /// The meaning, in sentences.
    pub help: &'static str,
    /// How the number changes.
    pub kind: MetricKind,
}

/// How a number changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// It only grows.
    Counter,
    /// It grows and shrinks.
    Gauge,
    /// It is zero or one.
    Flag,
}

/// Numbers that are described.
pub trait Metrics {
    /// Their descriptions, in order.
    const METRICS: &'static [Metric];

    /// Their values, in the same order.
    fn values(&self) -> Vec<u64>;
}

/// Declares a struct of metrics. Each is one row: its help, its field, its kind, and its name if that is not the name of the
/// field. Fields that are no metrics follow after a semicolon.
///
/// ```
/// floe_image::metrics! {
///     /// Counters of a cache.
///     #[derive(Default)]
///     pub struct CacheCounters {
///         /// Lookups that found the value.
///         pub hits: u64 = Counter,
///         /// Whether the cache is locked in memory.
///         pub locked: bool = Flag as is_locked,
///         ;
///         /// What is cached.
///         pub content: String,
///     }
/// }
/// ```
#[macro_export]
macro_rules! metrics {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $Struct:ident {
            $(
                $(#[doc = $help:literal])+
                pub $field:ident: $type:ty = $kind:ident $(as $name:ident)?
            ),* $(,)?
            $(; $($(#[$other_attribute:meta])* pub $other:ident: $other_type:ty),* $(,)?)?
        }
    ) => {
        $(#[$attribute])*
        $visibility struct $Struct {
            $($(#[doc = $help])+ pub $field: $type,)*
            $($($(#[$other_attribute])* pub $other: $other_type,)*)?
        }

        impl $crate::Metrics for $Struct {
            const METRICS: &'static [$crate::Metric] = &[$($crate::Metric {
                name: $crate::metrics!(@name $field $($name)?),
                help: concat!($($help),+),
                kind: $crate::MetricKind::$kind,
            }),*];

            fn values(&self) -> Vec<u64> {
                vec![$(<u64 as From<$type>>::from(self.$field)),*]
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:ident) => { stringify!($name) };
}
