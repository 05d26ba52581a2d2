//! IP addresses and CIDR ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Args;
use crate::template::errors::{Fault, Res};
use crate::template::limits::Run;
use crate::template::value::Val;

#[derive(Clone, Copy)]
struct Cidr {
    address: IpAddr,
    prefix: u32,
}

fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// An address of the same family as `like`.
fn address(like: IpAddr, bits: u128) -> Option<IpAddr> {
    Some(match like {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::from_bits(u32::try_from(bits).ok()?)),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(bits)),
    })
}

impl Cidr {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.trim().split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let plain = !prefix.is_empty() && prefix.len() <= 3 && prefix.bytes().all(|b| b.is_ascii_digit());
        let prefix: u32 = if plain { prefix.parse().ok()? } else { return None };
        (prefix <= width(address)).then_some(Self { address, prefix })
    }

    /// The bits below the prefix.
    fn host_mask(self) -> u128 {
        let host = width(self.address) - self.prefix;
        1_u128.checked_shl(host).map_or(u128::MAX, |bit| bit - 1)
    }

    fn network(self) -> u128 {
        bits(self.address) & !self.host_mask()
    }

    fn contains(self, other: IpAddr) -> bool {
        other.is_ipv4() == self.address.is_ipv4() && bits(other) & !self.host_mask() == self.network()
    }
}

fn cidr(run: &Run<'_>, value: &Val) -> Res<Cidr> {
    Cidr::parse(&value.defined()?.text(run)?).ok_or_else(|| {
        Fault::failed("the value is not a CIDR range").help("it looks like 10.0.0.0/8 or fd00::/64")
    })
}

fn ip(run: &Run<'_>, value: &Val) -> Res<Option<IpAddr>> {
    match &*value.resolved(run)? {
        Val::Str(text) => Ok(text.parse().ok()),
        _ => Ok(None),
    }
}

pub(super) fn is_ip(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    Ok(ip(run, input)?.is_some())
}

pub(super) fn is_ipv4(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    Ok(ip(run, input)?.is_some_and(|ip| ip.is_ipv4()))
}

pub(super) fn is_ipv6(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    Ok(ip(run, input)?.is_some_and(|ip| ip.is_ipv6()))
}

pub(super) fn is_cidr(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<bool> {
    Ok(match &*input.resolved(run)? {
        Val::Str(text) => Cidr::parse(text).is_some(),
        _ => false,
    })
}

pub(super) fn in_cidr(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<bool> {
    let range = cidr(run, args.need(0)?)?;
    match ip(run, input.defined()?)? {
        Some(ip) => Ok(range.contains(ip)),
        None => Err(Fault::failed("the value is not an IP address")),
    }
}

/// The IP version (4 or 6) of an address or a range.
pub(super) fn ip_version(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let address = match ip(run, input)? {
        Some(ip) => ip,
        None => {
            cidr(run, input)
                .map_err(|_| Fault::failed("the value is neither an IP address nor a CIDR range"))?
                .address
        }
    };
    Ok(Val::Int(if address.is_ipv4() { 4 } else { 6 }))
}

/// The first address of a range: `'10.1.2.3/8' | cidr_network` is `10.0.0.0`.
pub(super) fn cidr_network(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    let range = cidr(run, input)?;
    Ok(address(range.address, range.network()).map_or(Val::Null, |ip| Val::str(ip.to_string())))
}

pub(super) fn cidr_prefix(run: &Run<'_>, input: &Val, _: &Args<'_>) -> Res<Val> {
    Ok(Val::Int(cidr(run, input)?.prefix.into()))
}

/// The address at that index in a range; negative indices count from its end.
pub(super) fn cidr_host(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let range = cidr(run, input)?;
    args.need(0)?;
    let index = args.int(0)?.unwrap_or(0);
    let mask = range.host_mask();
    let none = || Fault::failed("the range has no address of that index");
    let distance = if index < 0 { index.unsigned_abs() - 1 } else { index.unsigned_abs() };
    let from_start = mask.checked_sub(distance).ok_or_else(none)?;
    let offset = if index < 0 { from_start } else { distance };
    let found = address(range.address, range.network() | offset).ok_or_else(none)?;
    Ok(Val::str(found.to_string()))
}

/// The subnet at that index; the argument is the number of additional prefix bits.
pub(super) fn cidr_subnet(run: &Run<'_>, input: &Val, args: &Args<'_>) -> Res<Val> {
    let range = cidr(run, input)?;
    let more = u32::try_from(args.count(0, 0, 128)?).unwrap_or(128);
    let index = args.int(1)?.and_then(|index| u128::try_from(index).ok());
    let prefix = range.prefix + more;
    let wrong = || Fault::failed("the range has no such subnet");
    if prefix > width(range.address) {
        return Err(wrong());
    }
    let index = index.filter(|index| index.checked_shr(more).unwrap_or(0) == 0).ok_or_else(wrong)?;
    let shifted = index.checked_shl(width(range.address) - prefix).unwrap_or(0);
    let network = address(range.address, range.network() | shifted).ok_or_else(wrong)?;
    Ok(Val::str(format!("{network}/{prefix}")))
}
